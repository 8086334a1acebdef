import { LOCAL_ADMIN } from '../../server/src/services/access/access.ts'
import type { Stage } from './stage.ts'

export const QUEUE = 'cloud.page'

/** Text that would change the title and a global variable if a page took it for markup. */
export const MARKUP = '<img src=x onerror="window.xss=document.title=1"><script>window.xss=document.title=2</script>'

export async function submit(
  { http }: Stage,
  { payload = { n: 1 }, key = null, queue = QUEUE, ...more }: SubmitOptions = {},
): Promise<string> {
  const request = { kind: 'cloud.train', queue, payload, max_attempts: 1, ...more }
  const outcome = await http.services.submission.submit(LOCAL_ADMIN, request, { key })
  if (outcome.kind === 'refused') throw new Error(outcome.refusal.message)
  return outcome.jobId
}

interface SubmitOptions {
  payload?: unknown
  key?: string | null
  queue?: string
  kind?: string
  labels?: Record<string, string>
  stages?: { name: string; from: number; to: number }[] | 'eco2'
  max_attempts?: number
  backoff?: { base_seconds: number; jitter: number }
}

/** The id of a job as pages show it. */
export const shortId = (id: string): string => `${id.slice(0, 13)}…${id.slice(-4)}`
