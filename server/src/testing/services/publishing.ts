import type { SubmitInput } from '../../contract/submit.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import type { NewEvent } from '../../services/events/events.ts'
import type { Services } from '../../services/index.ts'
import { finished } from '../store/scene.ts'
import { unique } from '../store/store.ts'

/** A started job, for publishing events. It already has two events: PENDING and RUNNING. */
export interface Publishing {
  jobId: string
  publish(...events: NewEvent[]): Promise<boolean[]>
  /** Publishes the next `count` events of the stage `progress`. */
  progress(count: number, data?: unknown): Promise<void>
  succeed(): Promise<void>
}

const WORKER = 'local-publisher'

export async function beginPublishing(
  services: Services,
  input: Partial<SubmitInput> = {},
  caller = LOCAL_ADMIN,
): Promise<Publishing> {
  const queue = unique('q')
  const submitted = await services.submission.submit(caller, { kind: 'work', queue, ...input }, { key: null })
  if (submitted.kind === 'refused') throw new Error(submitted.refusal.message)
  const request = { queues: [queue], kinds: [], max: 1, waitMs: 10_000, startId: 's' }
  const [lease] = await services.runs.lease(WORKER, request)
  if (lease === undefined) throw new Error('There is no run to lease')
  const { lease_id: leaseId, job_id: jobId } = lease
  const publish = (...events: NewEvent[]) => services.events.publishAll(WORKER, leaseId, events)
  let seq = 0
  return {
    jobId,
    publish,
    async progress(count, data = null) {
      await publish(...Array.from({ length: count }, () => ({ stage: 'progress', seq: seq++, data })))
    },
    async succeed() {
      await services.runs.finish(WORKER, leaseId, finished())
    },
  }
}
