import { type Leased, type LeaseItem, nameOf, type Position } from '../leasing/leased.ts'
import { type Command, command, type FastPath } from '../port.ts'
import { eachStep, readRows, type Values } from '../statement.ts'
import type { RenderAccepted, SubmitItem, SubmitOutcome } from './submission.ts'
import { SUBMITTED_AND_LEASED_ROW, submitAndLease as submitAndLeasePlain } from './submit-and-lease.sql.ts'
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
  const place = { from_priority: from?.priority ?? null, from_fair_tag: from?.fairTag ?? null }
  const rows = plain.rows.map((row, i) => {
    const poll = pollOf(polls, i)
    return {
      ...row,
      worker_id: poll.workerId,
      poll_id: poll.pollId,
      token: poll.token,
      lease_ttl_ms: poll.leaseTtlMs,
      start_id: poll.startId,
      poll: nameOf(poll),
      kinds: poll.kinds.length === 0 ? null : JSON.stringify(poll.kinds),
      ...place,
    }
  })
  return {
    step: eachStep(submitAndLeasePlain, rows),
    declineOnLock: true,
    settle(answer) {
      const [first] = readRows(submitAndLeasePlain, answer)
      if (first === undefined || first.iso === null) return { kind: 'declined', plain: first !== undefined }
      const { iso } = first
      const byRun = new Map(readRows({ row: SUBMITTED_AND_LEASED_ROW }, answer).map((row) => [row.run_id, row]))
      return {
        kind: 'leased',
        outcomes: plain.outcomes(iso, false),
        leases: items.map((item, i) => leasedBy(pollOf(polls, i), item, byRun.get(item.runId) ?? missing(item))),
      }
    },
  }
}

function pollOf(polls: readonly LeaseItem[], i: number): LeaseItem {
  const poll = polls[i]
  if (poll === undefined) throw new TypeError('Every job that is offered has a poll')
  return poll
}

function missing({ runId }: SubmitItem): never {
  throw new Error(`The run ${runId} was submitted without its lease`)
}

type LeaseRow = Values<typeof SUBMITTED_AND_LEASED_ROW>

function leasedBy({ workerId, token, startId }: LeaseItem, item: SubmitItem, row: LeaseRow): Leased {
  const { runId, jobId, queue, kind, userId, priority, fairTag, payload, policy, traceparent } = item
  return {
    ...{ runId, jobId, queue, kind, userId, priority, fairTag, payload, policy, traceparent, workerId },
    attempt: 1,
    retryCount: 0,
    version: 2,
    leaseId: `${runId}.${token}`,
    leaseExpiresAtMs: row.lease_expires_at,
    leaderEpoch: row.leader_epoch,
    leaseTtlMs: row.lease_ttl_ms,
    continuationMs: row.continuation_ms,
    artifacts: '[]',
    lastProgress: null,
    waitedMs: startId === null ? null : 0,
  }
}
