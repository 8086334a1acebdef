import {
  DEFAULT_CONTINUATION_SECONDS,
  DEFAULT_LEASE_TTL_MS,
  type JobPolicy,
  PAYLOAD_BYTES_MAX,
} from '../../core/run/job.ts'
import { integer, integerOrNull, type Row, text, textOrNull } from '../statement.ts'
import { PAYLOADS_BYTES_MAX } from './leases.sql.ts'

export interface LeaseItem {
  workerId: string
  /** Asked in this order. */
  queues: readonly string[]
  /** None: any kind. */
  kinds: readonly string[]
  max: number
  /** Names the poll: asked again under the same name, the same leases are the answer. */
  pollId: string
  /** Whether it may have been asked before: its name came from the worker. */
  named: boolean
  /** Random; what makes each lease_id a name that nobody else can guess. */
  token: string
  leaseTtlMs: number
  /** Set: the runs are RUNNING at once, started by this process. */
  startId: string | null
}

export interface Leased {
  runId: string
  workerId: string
  jobId: string
  attempt: number
  retryCount: number
  version: number
  leaseId: string
  leaseExpiresAtMs: number
  leaderEpoch: number | null
  queue: string
  kind: string
  userId: string
  priority: number
  fairTag: number
  payload: string
  policy: JobPolicy
  leaseTtlMs: number
  continuationMs: number
  traceparent: string | null
  /** JSON: a list. */
  artifacts: string
  /** JSON; null when no attempt before this one has told of any. */
  lastProgress: string | null
  /** From when the run was due until this lease started it; null: it did not, or this answer repeats an earlier one. */
  waitedMs: number | null
}

/** A place in the order of a queue. */
export interface Position {
  priority: number
  fairTag: number
}

/** From where on the runs of these kinds in this queue are looked at; null: from the beginning. */
export type LeaseFrom = (queue: string, kinds: readonly string[]) => Position | null

/** By queue, the last kind that was looked at, where there are more than are looked at together. */
export type KindRotation = Map<string, string>

export const nameOf = ({ workerId, pollId }: LeaseItem) => JSON.stringify([workerId, pollId])

/** Whether so many bytes of payloads may have left no room for the next: then there may be more than was found. */
export const isFull = (bytes: number) => bytes + PAYLOAD_BYTES_MAX > PAYLOADS_BYTES_MAX

/** What was found for an item. */
export function toLeases(item: LeaseItem, rows: readonly Row[]): Leased[] {
  return rows.toSorted(inOrderOf(item)).map(toLeased)
}

/** An UPDATE answers in the order of its plan; work is handed out in the order of the queues, and of each queue. */
function inOrderOf({ queues }: LeaseItem): (a: Row, b: Row) => number {
  return (a, b) =>
    queues.indexOf(text(a, 'queue')) - queues.indexOf(text(b, 'queue')) ||
    integer(b, 'priority') - integer(a, 'priority') ||
    (integerOrNull(a, 'fair_tag') ?? 0) - (integerOrNull(b, 'fair_tag') ?? 0) ||
    (text(a, 'run_id') < text(b, 'run_id') ? -1 : 1)
}

function toLeased(row: Row): Leased {
  const waitedMs = integerOrNull(row, 'waited_ms')
  return {
    runId: text(row, 'run_id'),
    workerId: text(row, 'worker_id'),
    jobId: text(row, 'job_id'),
    attempt: integer(row, 'attempt'),
    retryCount: integer(row, 'retry_count'),
    version: integer(row, 'version'),
    leaseId: text(row, 'lease_id'),
    leaseExpiresAtMs: integer(row, 'lease_expires_at'),
    leaderEpoch: integerOrNull(row, 'leader_epoch'),
    queue: text(row, 'queue'),
    kind: text(row, 'kind'),
    userId: text(row, 'user_id'),
    priority: integer(row, 'priority'),
    fairTag: integer(row, 'fair_tag'),
    payload: text(row, 'payload'),
    policy: JSON.parse(text(row, 'policy')) as JobPolicy,
    leaseTtlMs: integerOrNull(row, 'lease_ttl_ms') ?? DEFAULT_LEASE_TTL_MS,
    continuationMs: integerOrNull(row, 'continuation_ms') ?? DEFAULT_CONTINUATION_SECONDS * 1000,
    traceparent: textOrNull(row, 'traceparent'),
    artifacts: textOrNull(row, 'artifacts') ?? '[]',
    lastProgress: textOrNull(row, 'last_progress'),
    waitedMs: waitedMs === null ? null : Math.max(0, waitedMs),
  }
}
