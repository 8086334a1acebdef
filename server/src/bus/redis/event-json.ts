import { NAME_PATTERN } from '@ichido/sdk/protocol'
import { isUuid } from '../../contract/common.ts'
import { foreignEvent } from '../../contract/events.ts'
import type { ForeignEvent, StoredEvent } from '../../core/events/event.ts'
import { remember } from '../../core/node/remember.ts'

/** Events of one batch have few different names and times. */
const NAMES_MAX = 100

/** Writes events in the format of S4, with their cursors. The scripts read the cursor, so it is first. */
export function eventWriter(): (event: StoredEvent) => string {
  const quoted = remember(NAMES_MAX, (text: string) => JSON.stringify(text))
  const instant = remember(NAMES_MAX, (ms: number) => new Date(ms).toISOString())
  return ({ jobId, domain, n, stage, seq, data, createdAtMs }) => {
    const about = `"job_id":"${jobId}","domain":${quoted(domain)},"stage":${quoted(stage)},"seq":${seq}`
    return `{"cursor":${n},${about},"data":${data},"timestamp":"${instant(createdAtMs)}"}`
  }
}

interface RelayedEvent {
  jobId: string
  domain: string
  cursor: number
  stage: string
  seq: number
  timestampMs: number
}

/** Returns null if the text is not an event: any program may write into a stream, and names become parts of keys. */
export function readEventJson(text: string | undefined): RelayedEvent | null {
  const found = parse(text)
  if (found === null) return null
  const { job_id: jobId, domain, cursor, stage, seq, timestamp } = found
  if (typeof jobId !== 'string' || typeof domain !== 'string' || typeof stage !== 'string') return null
  if (typeof cursor !== 'number' || typeof seq !== 'number' || typeof timestamp !== 'string') return null
  if (!isUuid(jobId) || !NAME_PATTERN.test(stage)) return null
  const timestampMs = Date.parse(timestamp)
  return Number.isNaN(timestampMs) ? null : { jobId, domain, cursor, stage, seq, timestampMs }
}

/**
 * True if the entry makes its stream one of S4's; `publish.lua` has the same test. Streams of other programs are not
 * touched.
 */
export function isEvent({ message: { data = '' } }: Entry): boolean {
  return ['"job_id":', '"stage":', '"seq":'].every((name) => data.includes(name))
}

/** An entry of a stream, as Redis returns it. */
export interface Entry {
  id: string
  message: Readonly<Record<string, string>>
}

/** Reads an event of another program; null if the text is not an event. */
export function readForeignEvent(text: string | undefined): ForeignEvent | null {
  const found = foreignEvent.safeParse(parse(text))
  if (!found.success) return null
  const { job_id: jobId, stage, seq, data } = found.data
  try {
    return { jobId, stage, seq, data: JSON.stringify(data ?? null) }
  } catch {
    // The data is nested so deeply that it can be parsed but not written again.
    return null
  }
}

function parse(text: string | undefined): Readonly<Record<string, unknown>> | null {
  try {
    const value: unknown = JSON.parse(text ?? '')
    return typeof value === 'object' && value !== null ? { ...value } : null
  } catch {
    return null
  }
}
