import {
  anyReady,
  BARRED,
  DEFAULT_CONTINUATION_MS,
  DUE,
  queueLock,
  RESUMED,
  timeOf,
} from '../leasing/lease-runs.sql.ts'
import { type Leased, type LeaseItem, nameOf, type Position } from '../leasing/leased.ts'
import { type Command, commandIn, type FastPath } from '../port.ts'
import { EPOCH, HELD_POSTGRES, HELD_STATE, MOVES_WRITTEN, ofPolicy, TX } from '../runs/rooms.sql.ts'
import { leaseIdOf } from '../runs/run-facts.ts'
import { eachStep, readRows, statement, type Values } from '../statement.ts'
import type { RenderAccepted, SubmitItem, SubmitOutcome } from './submission.ts'
import { PLAIN_PARAMS, submitPostgres } from './submit.sql.ts'
import { submitWork } from './submit-jobs.ts'
import { plainSubmission } from './submit-plain.ts'

/** How long it waits for a lock on a key or a user. Meanwhile no look serves the polls that it has taken. */
const PATIENCE_MS = 50

const QUEUE = '($queue::text[])[1]'
const WORKERS = '$worker_id::text[]'
const POLLS = '$poll_id::text[]'
const KINDS = '($kinds::text[])[1]'

/**
 * Takes the locks of a lease if the submission itself is plain. It waits for none of them: a submitter must not wait for
 * workers. A function whose snapshot is newer than the locks then tells whether all is plain. Runs that have waited longer go
 * first.
 */
const GATE = `p AS MATERIALIZED (
      SELECT count(*) AS taken FROM (SELECT DISTINCT t.poll AS name FROM t, g) x
      WHERE NOT pg_try_advisory_xact_lock(hashtextextended(x.name, 0))),
    o AS MATERIALIZED (SELECT taken = 0 AND pg_try_advisory_xact_lock_shared(${queueLock(QUEUE)}) AS entered FROM p),
    l AS MATERIALIZED (
      SELECT ${BARRED} AS barred FROM ichido.workers
      WHERE worker_id = ANY(${WORKERS}) AND (SELECT entered FROM o) AND EXISTS (SELECT FROM g)
      ORDER BY worker_id FOR KEY SHARE SKIP LOCKED),
    h AS MATERIALIZED (
      SELECT o.entered AND l.barred = 0
        AND l.locked = (SELECT count(*) FROM ichido.workers WHERE worker_id = ANY(${WORKERS}))
        AND ichido.lease_is_plain(${QUEUE}, ${WORKERS}, ${POLLS}) AND NOT CASE
          WHEN ${KINDS} IS NULL THEN EXISTS (SELECT 1 FROM ichido.ready WHERE queue = ${QUEUE} AND ${DUE})
          WHEN ($from_priority::integer[])[1] IS NULL THEN ${anyReady(QUEUE, KINDS, '')}
          ELSE ${anyReady(QUEUE, KINDS, RESUMED)} END AS open
      FROM o, (SELECT count(*) AS locked, count(*) FILTER (WHERE barred) AS barred FROM l) l)`

const time = (column: 'lease_ttl' | 'continuation', otherwise: string) =>
  timeOf(column, ofPolicy.postgres('s.policy', `${column}_seconds`), QUEUE, otherwise)
const TTL = time('lease_ttl', 's.lease_ttl_ms')
const ifStarted = (value: string) => `CASE WHEN s.start_id IS NOT NULL THEN ${value} END`

/** The run as it would be after an insert and a lease: version, attempt and event are those of the lease. */
const HELD_RUNS = `INSERT INTO ichido.held (${HELD_POSTGRES})
      SELECT s.job_id, s.job_id, 1, s.queue, s.kind, s.user_id, 0, s.priority, s.run_at, s.fair_tag, s.created_at, s.definition_id,
        1, 2, 2, s.worker_id, s.poll_id, s.token, s.created_at, s.created_at + ${TTL}, ${TTL},
        ${time('continuation', String(DEFAULT_CONTINUATION_MS))}, s.start_id, ${ifStarted('s.created_at')}, ${ifStarted(EPOCH)},
        NULL, NULL, NULL, ${ifStarted('2')}, ${ifStarted(TX)}
      FROM s
      RETURNING job_id, attempt, n, leased_n, ${HELD_STATE('held')} AS state, lease_ttl_ms, lease_expires_at, continuation_ms, leader_epoch`

/**
 * `poll` is the name of the poll. `kinds` is a JSON array of the kinds that the polls ask for; null: any. `from_priority` and
 * `from_fair_tag` say where the scan of ready runs begins; null: at the beginning.
 */
const POLL_PARAMS = {
  worker_id: 'text',
  poll_id: 'text',
  token: 'text',
  lease_ttl_ms: 'integer',
  start_id: 'text?',
  poll: 'text',
  kinds: 'text?',
  from_priority: 'integer?',
  from_fair_tag: 'integer?',
} as const

/** The rows if the jobs were submitted and leased. */
const SUBMITTED_AND_LEASED_ROW = {
  iso: 'text',
  job_id: 'text',
  lease_ttl_ms: 'integer',
  lease_expires_at: 'integer',
  continuation_ms: 'integer',
  leader_epoch: 'integer?',
} as const

/**
 * Plain submissions of one kind to one queue in which no other run waits. A waiting poll leases each of them. So one commit and
 * one wait for the disk do the work of two. It does all or nothing: it answers with no row if the submission is not plain, and
 * with one row of nulls if only the leases are not.
 */
const submitAndLeasePlain = statement('submit_and_lease', {
  params: { ...PLAIN_PARAMS, ...POLL_PARAMS },
  row: { iso: 'text?', job_id: 'text?' },
  postgres: submitPostgres({
    given: {
      arrays: `${WORKERS}, ${POLLS}, $token::text[], $lease_ttl_ms::bigint[], $start_id::text[], $poll::text[]`,
      columns: 'worker_id, poll_id, token, lease_ttl_ms, start_id, poll',
    },
    gate: { with: GATE, open: '(SELECT open FROM h)', patienceMs: PATIENCE_MS },
    runs: HELD_RUNS,
    answer: `, m AS NOT MATERIALIZED (SELECT * FROM r), e AS (${MOVES_WRITTEN} WHERE m.leased_n IS NULL)
    SELECT x.iso, x.job_id, x.lease_ttl_ms, x.lease_expires_at, x.continuation_ms, x.leader_epoch
    FROM g LEFT JOIN (SELECT a.iso, r.* FROM a, r) x ON true`,
  }),
  sqlite: [],
})

/** Polls that wait for jobs of one kind in one queue, which are being submitted. */
export interface Awaiting {
  /** One for each job. All of them ask for the same kinds. */
  polls: readonly LeaseItem[]
  /** Where the scan for runs that have waited longer begins; null: at the beginning. */
  from: Position | null
}

export type SubmitAndLeaseOutcome =
  /** One lease for each job, in the order of the jobs. */
  | { kind: 'leased'; outcomes: SubmitOutcome[]; leases: Leased[] }
  /** Nothing was done. `plain`: the submission alone would succeed. */
  | { kind: 'declined'; plain: boolean }
  /** An uncertain commit has stored the jobs, perhaps with the leases: the names of the polls tell. */
  | { kind: 'unheard'; outcomes: SubmitOutcome[] }

const DECLINED: SubmitAndLeaseOutcome = { kind: 'declined', plain: false }

/** Submits jobs and leases them to waiting polls, in one statement. It declines where that is not possible. */
export function submitAndLease(
  items: readonly SubmitItem[],
  awaiting: Awaiting,
  render: RenderAccepted,
): Command<SubmitAndLeaseOutcome> {
  function* work(again: boolean) {
    if (!again) return DECLINED
    return { kind: 'unheard' as const, outcomes: yield* submitWork(items, render, again) }
  }
  return commandIn('batches', 'submit', work, fastPath(items, awaiting, render))
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
      const byJob = new Map(readRows({ row: SUBMITTED_AND_LEASED_ROW }, answer).map((row) => [row.job_id, row]))
      return {
        kind: 'leased',
        outcomes: plain.outcomes(iso, false),
        leases: items.map((item, i) => leasedBy(pollOf(polls, i), item, byJob.get(item.jobId) ?? missing(item))),
      }
    },
  }
}

function pollOf(polls: readonly LeaseItem[], i: number): LeaseItem {
  const poll = polls[i]
  if (poll === undefined) throw new TypeError('Every job has a poll')
  return poll
}

function missing({ jobId }: SubmitItem): never {
  throw new Error(`The job ${jobId} was submitted without its lease`)
}

type LeaseRow = Values<typeof SUBMITTED_AND_LEASED_ROW>

function leasedBy({ workerId, token, startId }: LeaseItem, item: SubmitItem, row: LeaseRow): Leased {
  const { jobId, queue, kind, userId, priority, fairTag, payload, policy, traceparent } = item
  return {
    ...{ jobId, queue, kind, userId, priority, fairTag, payload, policy, traceparent, workerId },
    runId: jobId,
    attempt: 1,
    retryCount: 0,
    version: 2,
    leaseId: leaseIdOf(jobId, token),
    leaseExpiresAtMs: row.lease_expires_at,
    leaderEpoch: row.leader_epoch,
    leaseTtlMs: row.lease_ttl_ms,
    continuationMs: row.continuation_ms,
    artifacts: '[]',
    lastProgress: null,
    waitedMs: startId === null ? null : 0,
  }
}
