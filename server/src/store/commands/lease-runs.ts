import type { JobPolicy } from '../../core/job.ts'
import { type Command, command } from '../port.ts'
import { leasedByPoll, leaseRuns, lockPolls } from '../sql/runs.ts'
import { each, integer, integerOrNull, query, type Row, text, textOrNull, type Work } from '../statement.ts'
import { recordMoves } from './lifecycle.ts'

export interface LeaseItem {
  workerId: string
  queue: string
  kinds: readonly string[]
  max: number
  /** Names the poll: asked again under the same name, the same leases are the answer. */
  pollId: string
  /** Random; what makes each lease_id a name that nobody else can guess. */
  token: string
  leaseTtlMs: number
  /** Set: the runs are RUNNING at once, started by this process. */
  startId: string | null
}

export interface Leased {
  runId: string
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
  payload: string
  policy: JobPolicy
  traceparent: string | null
}

export function leaseBatch(items: readonly LeaseItem[]): Command<Leased[][]> {
  return command('lease', function* work(): Work<Leased[][]> {
    yield* each(
      lockPolls,
      items
        .map(({ workerId, pollId }) => JSON.stringify([workerId, pollId]))
        .sort()
        .map((name) => [name]),
    )
    const answers: Leased[][] = []
    for (const item of items) answers.push(yield* leaseOne(item))
    return answers
  })
}

function* leaseOne(item: LeaseItem): Work<Leased[]> {
  const earlier = yield* query(leasedByPoll, item.workerId, item.pollId)
  if (earlier.length > 0) return earlier.map(toLeased)
  const kinds = JSON.stringify(item.kinds)
  const { queue, max, workerId, pollId, token, leaseTtlMs, startId } = item
  const rows = yield* query(leaseRuns, queue, kinds, max, workerId, pollId, token, leaseTtlMs, startId)
  yield* recordMoves(rows)
  return rows.toSorted(inOrder).map(toLeased)
}

/** An UPDATE answers in the order of its plan; work is handed out in the order of the queue. */
function inOrder(a: Row, b: Row): number {
  return (
    integer(b, 'priority') - integer(a, 'priority') ||
    (integerOrNull(a, 'fair_tag') ?? 0) - (integerOrNull(b, 'fair_tag') ?? 0) ||
    (text(a, 'run_id') < text(b, 'run_id') ? -1 : 1)
  )
}

function toLeased(row: Row): Leased {
  return {
    runId: text(row, 'run_id'),
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
    payload: text(row, 'payload'),
    policy: JSON.parse(text(row, 'policy')) as JobPolicy,
    traceparent: textOrNull(row, 'traceparent'),
  }
}
