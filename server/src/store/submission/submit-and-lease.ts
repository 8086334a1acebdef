import { type Leased, type LeaseItem, nameOf, type Position } from '../leasing/leased.ts'
import { type Command, command, type FastPath } from '../port.ts'
import { integer, integerOrNull, type Row, text, textOrNull } from '../statement.ts'
import type { RenderAccepted, SubmitItem, SubmitOutcome } from './submission.ts'
import { submitAndLease as submitAndLeasePlain } from './submit-and-lease.sql.ts'
import { submitWork } from './submit-jobs.ts'
import { plainSubmission } from './submit-plain.ts'

/** Who waits for jobs of one kind in one queue that are only just being submitted. */
export interface Awaiting {
  /** One for each job; all of them ask for the same kinds. */
  polls: readonly LeaseItem[]
  /** From where on it is looked whether something has waited longer; null: from the beginning. */
  from: Position | null
}

export type SubmitAndLeaseOutcome =
  /** One lease for each job, in their order. */
  | { kind: 'leased'; outcomes: SubmitOutcome[]; leases: Leased[] }
  /** Nothing was done. `plain`: nothing stands in the way of the submission, only of its leases. */
  | { kind: 'declined'; plain: boolean }
  /** Stored by a commit that nobody heard of, perhaps with the leases: the names of the polls tell. */
  | { kind: 'unheard'; outcomes: SubmitOutcome[] }

const DECLINED: SubmitAndLeaseOutcome = { kind: 'declined', plain: false }

/** Jobs for which somebody waits are submitted and leased in one statement, where that can be. */
export function submitAndLease(
  items: readonly SubmitItem[],
  awaiting: Awaiting,
  render: RenderAccepted,
): Command<SubmitAndLeaseOutcome> {
  function* work(again: boolean) {
    if (!again) return DECLINED
    return { kind: 'unheard' as const, outcomes: yield* submitWork(items, render, again) }
  }
  return command('submit', work, fastPath(items, awaiting, render))
}

function fastPath(
  items: readonly SubmitItem[],
  { polls, from }: Awaiting,
  render: RenderAccepted,
): FastPath<SubmitAndLeaseOutcome> | undefined {
  const plain = plainSubmission(items, render)
  if (plain === undefined) return undefined
  const place = [from?.priority ?? null, from?.fairTag ?? null]
  const rows = plain.rows.map((row, i) => {
    const poll = pollOf(polls, i)
    const { workerId, pollId, token, leaseTtlMs, startId, kinds } = poll
    const asked = kinds.length === 0 ? null : JSON.stringify(kinds)
    return [...row, workerId, pollId, token, leaseTtlMs, startId, nameOf(poll), asked, ...place]
  })
  return {
    step: { kind: 'each', statement: submitAndLeasePlain, rows },
    declineOnLock: true,
    settle(written) {
      const iso = textOrNull(written[0], 'iso')
      if (iso === null) return { kind: 'declined', plain: written.length > 0 }
      const byRun = new Map(written.map((row) => [text(row, 'run_id'), row]))
      return {
        kind: 'leased',
        outcomes: plain.outcomes(iso, false),
        leases: items.map((item, i) => leasedBy(pollOf(polls, i), item, byRun.get(item.runId))),
      }
    },
  }
}

function pollOf(polls: readonly LeaseItem[], i: number): LeaseItem {
  const poll = polls[i]
  if (poll === undefined) throw new TypeError('Every job that is offered has a poll')
  return poll
}

function leasedBy({ workerId, token, startId }: LeaseItem, item: SubmitItem, row: Row | undefined): Leased {
  const { runId, jobId, queue, kind, userId, priority, fairTag, payload, policy, traceparent } = item
  return {
    ...{ runId, jobId, queue, kind, userId, priority, fairTag, payload, policy, traceparent, workerId },
    attempt: 1,
    retryCount: 0,
    version: 2,
    leaseId: `${runId}.${token}`,
    leaseExpiresAtMs: integer(row, 'lease_expires_at'),
    leaderEpoch: integerOrNull(row, 'leader_epoch'),
    leaseTtlMs: integer(row, 'lease_ttl_ms'),
    continuationMs: integer(row, 'continuation_ms'),
    artifacts: '[]',
    lastProgress: null,
    waitedMs: startId === null ? null : 0,
  }
}
