import { type AtOnce, type Command, command } from '../port.ts'
import { submitLeased as submitLeasedStatement } from '../sql/submit-leased.ts'
import { integer, integerOrNull, type Row, text } from '../statement.ts'
import { type Leased, type LeaseItem, nameOf, type Position } from './leased.ts'
import type { RenderAccepted, SubmitItem, SubmitOutcome } from './submission.ts'
import { plainSubmission } from './submit-at-once.ts'
import { submitWork } from './submit-jobs.ts'

/** Who waits for jobs of one kind in one queue that are only just being submitted. */
export interface Awaiting {
  /** One for each job; all of them ask for the same kinds. */
  polls: readonly LeaseItem[]
  /** From where on it is looked whether something has waited longer; null: from the beginning. */
  from: Position | null
}

export interface LeasedSubmission {
  outcomes: SubmitOutcome[]
  /** One for each job; null: they have still to be looked for. */
  leases: Leased[] | null
}

/**
 * A job for which somebody waits is submitted and leased in one statement. Where that cannot be it is submitted alone; and an
 * unheard commit that is found again says nothing of leases: the poll's name does.
 */
export function submitLeased(
  items: readonly SubmitItem[],
  awaiting: Awaiting,
  render: RenderAccepted,
): Command<LeasedSubmission> {
  function* work(again: boolean) {
    return { outcomes: yield* submitWork(items, render, again), leases: null }
  }
  return command('submit', work, atOnce(items, awaiting, render))
}

function atOnce(
  items: readonly SubmitItem[],
  { polls, from }: Awaiting,
  render: RenderAccepted,
): AtOnce<LeasedSubmission> | undefined {
  const plain = plainSubmission(items, render)
  const [first] = polls
  if (plain === undefined || first === undefined) return undefined
  const kinds = first.kinds.length === 0 ? null : JSON.stringify(first.kinds)
  const rows = plain.rows.map((row, i) => {
    const { workerId, pollId, token, leaseTtlMs, startId } = polls[i] ?? first
    const poll = nameOf(polls[i] ?? first)
    return [
      ...row,
      workerId,
      pollId,
      token,
      leaseTtlMs,
      startId,
      poll,
      kinds,
      from?.priority ?? null,
      from?.fairTag ?? null,
    ]
  })
  return {
    step: { kind: 'each', statement: submitLeasedStatement, rows },
    settle(written) {
      const [any] = written
      if (any === undefined) return null
      const byRun = new Map(written.map((row) => [text(row, 'run_id'), row]))
      return {
        outcomes: plain.outcomes(text(any, 'iso'), false),
        leases: items.map((item, i) => leasedBy(polls[i] ?? first, item, byRun.get(item.runId) ?? any)),
      }
    },
  }
}

const FIRST = { attempt: 1, retryCount: 0, version: 2, artifacts: '[]', lastProgress: null }

function leasedBy({ workerId, token }: LeaseItem, item: SubmitItem, row: Row): Leased {
  const { runId, jobId, queue, kind, userId, priority, fairTag, payload, policy, traceparent } = item
  return {
    ...FIRST,
    ...{ runId, jobId, queue, kind, userId, priority, fairTag, payload, policy, traceparent, workerId },
    leaseId: `${runId}.${token}`,
    leaseExpiresAtMs: integer(row, 'lease_expires_at'),
    leaderEpoch: integerOrNull(row, 'leader_epoch'),
    leaseTtlMs: integer(row, 'lease_ttl_ms'),
    continuationMs: integer(row, 'continuation_ms'),
  }
}
