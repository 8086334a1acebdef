import { describe, expect, test } from 'vitest'
import { type Decision, decide, isFinal, RUN_STATES, type RunState } from '../../core/run/run-state.ts'
import { lapsedRun } from '../../testing/store/lapsed.ts'
import { integer } from '../../testing/store/rows.ts'
import { failed, finished, type Holding, only, Scene } from '../../testing/store/scene.ts'
import { sql } from '../../testing/store/store.ts'
import type { Leased } from '../leasing/lease-runs.ts'
import type { FinishItem, FinishOutcome, Report } from '../runs/finish-runs.ts'
import { beforeOf, finishLate, readAfter } from '../runs/late-reports.ts'
import { toFacts, tokenOf } from '../runs/run-facts.ts'
import { one, type Row } from '../statement.ts'
import type { Given } from './given.ts'

/** Who has the job's next run, or had it. */
const HOLDERS = ['nobody', 'another worker', 'the late worker'] as const
type Holder = (typeof HOLDERS)[number]

const WRONG = ['nothing', 'worker', 'lease', 'run before', 'content'] as const
type Wrong = (typeof WRONG)[number]

/** A worker without heartbeats reports on a run that the leader has given up: it adopts the job's next run, or is refused. */
export function lateReportConformance({ store }: Given): void {
  const end = (scene: Scene, lease: Holding, report: Report = finished(), changes: Partial<FinishItem> = {}) =>
    store().write(finishLate({ ...scene.endItem(lease, report, changes), token: 'adopted' }))

  describe('decide() and the engine agree on adopting', () => {
    test.each(RUN_STATES)('a next run that is %s', async (state) => {
      let late: Late | null = null
      for (const holder of HOLDERS) {
        for (const wrong of WRONG) {
          late ??= await given()
          if ((await compare(late, state, holder, wrong)) === 'move') late = null
        }
      }
    })
  })

  interface Late {
    scene: Scene
    lease: Leased
  }

  async function given(): Promise<Late> {
    const scene = new Scene(store())
    return { scene, lease: await lapsedRun(scene) }
  }

  async function compare(late: Late, state: RunState, holder: Holder, wrong: Wrong): Promise<Decision['kind']> {
    const { scene, lease } = late
    await bringTo(late, state, holder, wrong)
    const before = await scene.runs(lease.jobId)
    const command = {
      workerId: wrong === 'worker' ? 'stranger' : scene.workerId,
      leaseId: wrong === 'lease' ? `${lease.jobId}.another` : lease.leaseId,
      outcomeHash: wrong === 'content' ? 'another' : 'right',
    }
    const row = await store().read({
      name: 'read',
      work: () => one(readAfter, { job_id: lease.jobId, token: tokenOf(lease.leaseId) }),
    })
    if (row === undefined) throw new Error('There is a next run')
    const decision = decide({ ...toFacts(row), before: beforeOf(row) }, { verb: 'adopt', ...command }, Date.now())
    const which = `held by ${holder}, wrong: ${wrong}`

    expect(said(await end(scene, lease, finished(), command)), which).toEqual(
      decision.kind === 'refuse' ? decision.reason : decision.kind,
    )

    const after = await scene.runs(lease.jobId)
    if (decision.kind === 'move') {
      expect(after[0], which).toEqual(before[0])
      expect(after.map((run) => run.state)).toEqual(['TIMED_OUT', 'SUCCEEDED'])
      expect(integer(only(after.slice(1)), 'version'), which).toBe(row.version + 2)
    } else expect(after, which).toEqual(before)
    return decision.kind
  }

  async function bringTo({ scene, lease }: Late, state: RunState, holder: Holder, wrong: Wrong): Promise<void> {
    const workerId = { nobody: null, 'another worker': 'another', 'the late worker': scene.workerId }[holder]
    const startId = holder === 'the late worker' ? lease.leaseId : null
    const outcomeHash = isFinal(state) && holder !== 'nobody' ? 'right' : null
    const next =
      'state = $2, assigned_worker_id = $3, start_id = $4, outcome_hash = $5 WHERE job_id = $1 AND run_no = 2'
    await sql(store(), `UPDATE ichido.runs SET ${next}`, lease.jobId, state, workerId, startId, outcomeHash)
    const first = wrong === 'run before' ? 'FAILED' : 'TIMED_OUT'
    await sql(store(), 'UPDATE ichido.runs SET state = $2 WHERE id = $1', lease.runId, first)
  }

  describe('a late report', () => {
    test('of a result ends the next run, at no retry, and leaves the run that timed out', async () => {
      const scene = new Scene(store())
      const lease = await lapsedRun(scene)
      expect(await end(scene, lease)).toMatchObject({ kind: 'recorded', state: 'SUCCEEDED', retryCount: 0 })
      const [lapsed, adopted, ...others] = await scene.runs(lease.jobId)
      expect(others).toEqual([])
      expect(lapsed).toMatchObject({ state: 'TIMED_OUT', lease_id: lease.leaseId, outcome_hash: null })
      expect(adopted).toMatchObject({ state: 'SUCCEEDED', attempt: 2, retry_count: 0, start_id: lease.leaseId })
      expect(adopted?.assigned_worker_id).toBe(scene.workerId)
      expect(await scene.events(lease.jobId)).toEqual([
        { state: 'PENDING' },
        { state: 'RUNNING', attempt: 1 },
        { state: 'TIMED_OUT', attempt: 1 },
        { state: 'PENDING', attempt: 1 },
        { state: 'RUNNING', attempt: 2 },
        { state: 'SUCCEEDED', attempt: 2 },
      ])
      expect(await end(scene, lease)).toMatchObject({ kind: 'repeated', state: 'SUCCEEDED' })
      expect(await end(scene, lease, finished({ result: '2' }))).toMatchObject({ reason: 'OUTCOME_ALREADY_RECORDED' })
    })

    test('of a failure counts as one attempt, and its repeat gets the same answer', async () => {
      const scene = new Scene(store())
      const lease = await lapsedRun(scene, { max_attempts: 2 })
      const first = await end(scene, lease, failed())
      expect(first).toMatchObject({ kind: 'recorded', state: 'FAILED', retryCount: 1, dead: false })
      expect(await end(scene, lease, failed())).toMatchObject({ kind: 'repeated', retryCount: 1, dead: false })
      expect((await scene.runs(lease.jobId)).map((run) => run.state)).toEqual(['TIMED_OUT', 'FAILED', 'PENDING'])
    })

    test('of a failure does not use the new retries of a redriven job', async () => {
      const scene = new Scene(store())
      const lease = await lapsedRun(scene)
      const set = 'UPDATE ichido.runs SET retry_count = $2 WHERE job_id = $1 AND run_no = $3'
      await sql(store(), set, lease.jobId, 3, 1)
      await sql(store(), set, lease.jobId, 0, 2)
      expect(await end(scene, lease, failed())).toMatchObject({ retryCount: 1, dead: false })
    })

    test('of a dead letter or by a revoked worker changes nothing', async () => {
      const scene = new Scene(store())
      const dead = await lapsedRun(scene, { max_attempts: 1 })
      expect(await end(scene, dead)).toEqual({ kind: 'refused', reason: 'ALREADY_ENDED' })
      const other = new Scene(store())
      const lease = await lapsedRun(other)
      await sql(store(), 'UPDATE ichido.workers SET revoked_at = 1 WHERE worker_id = $1', other.workerId)
      expect(await end(other, lease)).toEqual({ kind: 'refused', reason: 'LEASE_LOST' })
      expect((await other.runs(lease.jobId)).map((run: Row) => run.state)).toEqual(['TIMED_OUT', 'PENDING'])
    })
  })
}

function said(outcome: FinishOutcome): string {
  if (outcome.kind === 'refused') return outcome.reason
  return outcome.kind === 'recorded' ? 'move' : 'repeat'
}
