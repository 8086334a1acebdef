import type { StoredEvent } from '../../core/event.ts'

/** An event as S4 has it, with its cursor. The scripts read the cursor, so it comes first. */
export function eventJson({ jobId, domain, n, stage, seq, data, createdAtMs }: StoredEvent): string {
  const about = `"job_id":"${jobId}","domain":${JSON.stringify(domain)},"stage":${JSON.stringify(stage)},"seq":${seq}`
  return `{"cursor":${n},${about},"data":${data},"timestamp":"${new Date(createdAtMs).toISOString()}"}`
}

export interface RelayedEvent {
  jobId: string
  domain: string
  cursor: number
  stage: string
  seq: number
  timestampMs: number
}

/** Null for what is no event: anybody may write into a stream. */
export function readEventJson(text: string | undefined): RelayedEvent | null {
  const found = parse(text)
  if (found === null) return null
  const { job_id: jobId, domain, cursor, stage, seq, timestamp } = found
  if (typeof jobId !== 'string' || typeof domain !== 'string' || typeof stage !== 'string') return null
  if (typeof cursor !== 'number' || typeof seq !== 'number' || typeof timestamp !== 'string') return null
  const timestampMs = Date.parse(timestamp)
  return Number.isNaN(timestampMs) ? null : { jobId, domain, cursor, stage, seq, timestampMs }
}

function parse(text: string | undefined): Readonly<Record<string, unknown>> | null {
  try {
    const value: unknown = JSON.parse(text ?? '')
    return typeof value === 'object' && value !== null ? { ...value } : null
  } catch {
    return null
  }
}
