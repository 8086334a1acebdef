import { v7 } from 'uuid'
import { beforeAll, expect, test } from 'vitest'
import { full, size } from '../../../../scripts/testing/size.ts'
import { isFinal, type RunState } from '../../../src/core/run/run-state.ts'
import { cancelJob } from '../../../src/store/jobs/cancel-or-delete.ts'
import { heartbeatBatch } from '../../../src/store/leasing/heartbeat-runs.ts'
import { releaseBatch } from '../../../src/store/leasing/release-runs.ts'
import type { Command } from '../../../src/store/port.ts'
import { finishBatch } from '../../../src/store/runs/finish-runs.ts'
import { expireBatch, type PendingExpiry, reviewRuns } from '../../../src/store/runs/reap-runs.ts'
import { startBatch } from '../../../src/store/runs/start-runs.ts'
import type { Term } from '../../../src/store/system/term.ts'
import { revokeWorker } from '../../../src/store/workers/workers.ts'
import { seize } from '../../../src/testing/nodes/reaper.ts'
import { twoNodes } from '../../../src/testing/nodes/two-nodes.ts'
import { retry } from '../../../src/testing/store/dead-letters.ts'
import { text } from '../../../src/testing/store/rows.ts'
import { failed, finished, type Holding, leasesFor, only, Scene } from '../../../src/testing/store/scene.ts'
import { sql } from '../../../src/testing/store/store.ts'

/** Two nodes on PostgreSQL run every pair of commands on one run. The result must be that of one of the two orders. */

const nodes = twoNodes()
let term: Term
beforeAll(async () => {
  term = await seize(nodes.a())
})

const VERBS = [
  ...['lease', 'start', 'heartbeat', 'finish', 'fail', 'cancel', 'release', 'revoke'],
  ...['reap', 'orphan', 'retry'],
] as const
type Verb = (typeof VERBS)[number]

/** The situations of a run, and the commands that change something in each. */
const STANDINGS = {
  pending: ['lease', 'cancel'],
  /** The lease has expired, but the leader has not checked it yet. */
  assigned: ['start', 'heartbeat', 'cancel', 'release', 'revoke', 'orphan'],
  running: ['heartbeat', 'finish', 'fail', 'cancel', 'release', 'revoke'],
  /** The leader has waited for the worker in vain, and is about to end the run. */
  confirming: ['heartbeat', 'finish', 'fail', 'cancel', 'release', 'revoke', 'reap'],
  /** The same as `confirming`, with no retries left. */
  last: ['heartbeat', 'finish', 'fail', 'cancel', 'release', 'revoke', 'reap'],
  orphaned: ['lease', 'cancel'],
  dead: ['retry'],
} as const satisfies Record<string, readonly Verb[]>
type Standing = keyof typeof STANDINGS

/** In the small size each pair runs in one order only, alternately in one or the other. */
const PAIRS = VERBS.flatMap((one, i) =>
  VERBS.slice(i).map((other, n): [Verb, Verb] => (n % 2 === 0 ? [one, other] : [other, one])),
)

/** The situations in which both commands have an effect; if there is none, those in which one of them has. */
function standingsOf([one, other]: [Verb, Verb]): Standing[] {
  const all = Object.entries(STANDINGS) as [Standing, readonly Verb[]][]
  const both = all.filter(([, verbs]) => verbs.includes(one) && verbs.includes(other))
  const either = all.filter(([, verbs]) => verbs.includes(one) || verbs.includes(other))
  return (both.length > 0 ? both : either).map(([standing]) => standing)
}

const CASES = PAIRS.flatMap((pair, i) => {
  const all = standingsOf(pair)
  return all.flatMap((standing, n): [Verb, Verb, Standing][] =>
    full || n === i % all.length ? [[...pair, standing]] : [],
  )
})

interface Given {
  scene: Scene
  jobId: string
  /** The lease of the run; before it has one, the lease that it is about to get. */
  held: Holding
  /** The run as the leader has seen it. */
  seen: PendingExpiry
}

async function bringTo(standing: Standing): Promise<Given> {
  const scene = new Scene(nodes.a())
  await sql(nodes.a(), ALONE)
  await sql(nodes.a(), WORKER, scene.workerId)
  const item = scene.item({ policy: { max_attempts: standing === 'last' ? 1 : 3 } })
  await scene.submitAll([item])
  const { jobId } = item
  const seen = { jobId, version: 1, deadlineAtMs: 1, cancelRequestedAtMs: null, continuationMs: 0 }
  if (standing === 'pending') return { scene, jobId, held: { jobId, leaseId: `${jobId}.next`, version: 2 }, seen }

  const started = standing !== 'assigned' && standing !== 'orphaned'
  const lapsed = standing === 'assigned' || standing === 'confirming' || standing === 'last'
  const times = { leaseTtlMs: lapsed ? -1_000 : 60_000, startId: started ? 'start' : null }
  const held = await scene.leased({ token: 'first', ...times })
  if (standing === 'orphaned') await scene.release(held)
  if (standing === 'dead') await nodes.a().write(finishBatch([scene.endItem(held, failed(undefined, false))]))
  if (!(started && lapsed)) return { scene, jobId, held, seen }
  return { scene, jobId, held, seen: only((await nodes.a().write(review())).waiting) }
}

/** Ends the runs of other scenes, so that the leader sees only this one. */
const ALONE = `UPDATE ichido.runs SET state = 'CANCELED' WHERE state IN ('ASSIGNED', 'RUNNING', 'ORPHANED') AND latest`

const WORKER = `INSERT INTO ichido.workers (worker_id, name, queues, created_at, last_seen_at)
    VALUES ($1, 'w', 'null', now_ms(), now_ms())`

function review() {
  const bounds = { batchMax: 100, waitingMax: 100, reassignAfterMs: 0 }
  // This is later than any assignment: the store rounds its clock, and the same review runs twice.
  return reviewRuns(term, { nowMs: Date.now() + 500, evenMs: Number.MAX_SAFE_INTEGER, ...bounds })
}

/** A command that returns the answer to its caller. */
type Party = Command<string>

/** The answer of a poll or leader loop that found nothing. */
const NOTHING = 'nothing'

function party(verb: Verb, { scene, jobId, held, seen }: Given, nth: number): Party {
  switch (verb) {
    case 'lease':
      return telling(leasesFor([scene.leaseItem({ token: nth === 0 ? 'next' : 'other' })]), (leases) => {
        const lease = leases[0]?.[0]
        return lease && `attempt ${lease.attempt}`
      })
    case 'start':
      return telling(startBatch([scene.startItem(held, { version: null })]), told)
    case 'heartbeat':
      return telling(heartbeatBatch([scene.heartbeatItem(held)]), told)
    case 'finish':
      return telling(finishBatch([scene.endItem(held, finished())]), told)
    case 'fail':
      return telling(finishBatch([scene.endItem(held, failed())]), told)
    case 'cancel':
      return telling(cancelJob(jobId), (outcome) => told([outcome]))
    case 'release':
      return telling(releaseBatch([scene.releaseItem(held)]), told)
    case 'revoke':
      return telling(revokeWorker(scene.workerId, 'ann', v7()), (outcome) =>
        outcome === null ? undefined : told([outcome]),
      )
    case 'reap':
      return telling(
        expireBatch(term, [{ ...seen, nextRunId: v7(), random: 0 }]),
        (ended) => ended[0] && `${ended[0].state} ${ended[0].dead}`,
      )
    case 'orphan':
      return telling(review(), ({ queues }) => queues[0] && 'orphaned')
    case 'retry':
      return telling(retry(jobId), (outcome) => told([outcome]))
  }
}

function telling<T>(command: Command<T>, tell: (answer: T) => string | undefined): Party {
  const { name, lane, fastPath } = command
  const say = (answer: T) => tell(answer) ?? NOTHING
  return {
    name,
    lane,
    *work(again) {
      return say(yield* command.work(again))
    },
    fastPath: fastPath && {
      step: fastPath.step,
      settle(rows) {
        const answer = fastPath.settle(rows)
        return answer === null ? null : say(answer)
      },
      left: (rows) => telling(fastPath.left?.(rows) ?? { ...command, fastPath: undefined }, tell),
    },
  }
}

/** Leaves out the fields that differ from one run of the test to the next. */
function told([outcome]: readonly { kind: string }[]): string {
  const facts = Object.entries(outcome ?? {}).filter(([name]) => ['kind', 'state', 'reason', 'leases'].includes(name))
  return JSON.stringify(Object.fromEntries(facts))
}

type Meeting = (one: Party, other: Party) => Promise<string[]>

const inOrder: Meeting = async (one, other) => [await nodes.a().write(one), await nodes.b().write(other)]
/** The second command starts when the first has done everything but commit. */
const held: Meeting = (one, other) => nodes.meet(one, other)
const fastPath: Meeting = (one, other) => Promise.all([nodes.a().write(one), nodes.b().write(other)])
const reversed =
  (meeting: Meeting): Meeting =>
  async (one, other) =>
    (await meeting(other, one)).toReversed()

/** The answers to both commands, and all stored rows. */
async function outcome(standing: Standing, one: Verb, other: Verb, meeting: Meeting): Promise<string> {
  const given = await bringTo(standing)
  const parties = [party(one, given, 0), party(other, given, 1)] as const
  const answers = await meeting(...parties)
  // A poll or a leader loop that found nothing, or skipped a locked row, runs again.
  for (const [i, command] of parties.entries()) if (answers[i] === NOTHING) answers[i] = await nodes.a().write(command)
  return JSON.stringify({ told: answers, ...(await stored(given)) }, null, 1)
}

async function stored({ jobId, scene }: Given): Promise<Record<string, unknown>> {
  const row = only(await sql(nodes.a(), STORED, jobId, scene.workerId))
  const runs = JSON.parse(text(row, 'runs')) as { run_no: number; latest: boolean; state: RunState }[]
  // In every order, exactly one run is the latest, and only that run may be open.
  expect(runs.map(({ run_no }) => run_no)).toEqual(runs.map((_, i) => i + 1))
  expect(runs.filter(({ latest }) => latest)).toEqual(runs.slice(-1))
  expect(runs.slice(0, -1).filter(({ state }) => !isFinal(state))).toEqual([])
  return { ...row, runs }
}

/** The stored rows of a job ($1) and a worker ($2), without ids and times. */
const STORED = `SELECT
  (SELECT json_agg(r ORDER BY run_no) FROM (
    SELECT run_no, latest, attempt, retry_count, state, version, assigned_worker_id = $2 AS assigned,
      right(lease_id, -37) AS lease, lease_expires_at > now_ms() AS live, poll_id IS NOT NULL AS polled, start_id,
      started_at IS NOT NULL AS started, finished_at IS NOT NULL AS finished, leader_epoch IS NOT NULL AS epoch,
      continuation_state, continuation_check_deadline_at IS NOT NULL AS deadline,
      cancel_requested_at IS NOT NULL AS cancel, last_event_n, outcome_hash, error, run_at > now_ms() + 1000 AS later,
      fair_tag IS NOT NULL AS ready
    FROM ichido.runs WHERE job_id = CAST($1 AS uuid)) r)::text AS runs,
  (SELECT json_agg(json_build_array(n, stage, data) ORDER BY n)
    FROM ichido.events WHERE job_id = CAST($1 AS uuid))::text AS events,
  (SELECT json_agg(json_build_array(d.error_code, d.retry_count, r.run_no)) FROM ichido.dead_letters d
    JOIN ichido.runs r ON r.job_id = d.job_id AND r.id = d.run_id WHERE d.job_id = CAST($1 AS uuid))::text AS dead_letters,
  (SELECT json_agg(json_build_array(s.result, r.run_no)) FROM ichido.results s
    JOIN ichido.runs r ON r.job_id = s.job_id AND r.id = s.run_id WHERE s.job_id = CAST($1 AS uuid))::text AS results,
  (SELECT json_agg(action ORDER BY action) FROM ichido.audit WHERE subject IN (CAST($1 AS uuid)::text, $2))::text AS audit,
  (SELECT revoked_at IS NOT NULL FROM ichido.workers WHERE worker_id = $2) AS revoked`

test.each(CASES)('%s and %s on a run that is %s give the result of one order', async (one, other, standing) => {
  const come = (meeting: Meeting) => outcome(standing, one, other, meeting)
  const orders = [inOrder, reversed(inOrder)]
  const serial: string[] = []
  /** The other orders are tried only if needed: mostly the first command has won. */
  async function expectSerial(meeting: Meeting): Promise<void> {
    const came = await come(meeting)
    while (!serial.includes(came) && serial.length < orders.length)
      serial.push(await come(orders[serial.length] ?? inOrder))
    expect(serial).toContain(came)
  }
  await expectSerial(held)
  if (full) await expectSerial(reversed(held))
  for (let round = 0; round < size(0, 50); round++) await expectSerial(fastPath)
})
