import { v7 } from 'uuid'
import { describe, expect, test } from 'vitest'
import { cancelJob } from '../../../src/store/jobs/cancel-or-delete.ts'
import { promoteDue } from '../../../src/store/leasing/promote-runs.ts'
import { finishBatch, type Report } from '../../../src/store/runs/finish-runs.ts'
import { finishLate } from '../../../src/store/runs/late-reports.ts'
import { expireBatch, reviewRuns } from '../../../src/store/runs/reap-runs.ts'
import { revokeWorker } from '../../../src/store/workers/workers.ts'
import { Reaper } from '../../../src/testing/nodes/reaper.ts'
import { twoNodes } from '../../../src/testing/nodes/two-nodes.ts'
import { lapsedRun, register } from '../../../src/testing/store/lapsed.ts'
import { failed, finished, type Holding, leasesFor, only, Scene } from '../../../src/testing/store/scene.ts'
import { sql } from '../../../src/testing/store/store.ts'

/** A late report races with another command on the next run. The job has one holder and one outcome. */

const nodes = twoNodes()
const newScene = () => new Scene(nodes.a())
const late = (scene: Scene, lease: Holding, report: Report = finished()) =>
  finishLate({ ...scene.endItem(lease, report), token: v7() })
const recorded = { kind: 'recorded', state: 'SUCCEEDED' }

async function states(scene: Scene, { jobId }: { jobId: string }): Promise<unknown[]> {
  const runs = await scene.runs(jobId)
  expect(runs.filter((run) => run.latest)).toHaveLength(1)
  expect(await scene.events(jobId)).toHaveLength(Number(runs.at(-1)?.last_event_n))
  return runs.map((run) => run.state)
}

describe("a late result races with another worker's lease of the next run", () => {
  async function given() {
    const scene = newScene()
    const lease = await lapsedRun(scene)
    await scene.age(400_000)
    return { scene, lease, other: leasesFor([scene.leaseItem({ workerId: 'other', startId: 'other' })]) }
  }

  test('if the result is first, the other worker gets no lease', async () => {
    const { scene, lease, other } = await given()
    expect(await nodes.meet(late(scene, lease), other)).toMatchObject([recorded, [[]]])
    expect(await states(scene, lease)).toEqual(['TIMED_OUT', 'SUCCEEDED'])
  })

  test('if the lease is first, the result is refused and the other worker continues', async () => {
    const { scene, lease, other } = await given()
    const [[leases], outcome] = await nodes.meet(other, late(scene, lease))
    expect(outcome).toEqual({ kind: 'refused', reason: 'LEASE_LOST' })
    expect(await states(scene, lease)).toEqual(['TIMED_OUT', 'RUNNING'])
    expect(await scene.finish(only(leases ?? []), { workerId: 'other' })).toMatchObject(recorded)
  })
})

describe('a late result races with a cancel', () => {
  test('if the result is first, the cancel is refused', async () => {
    const scene = newScene()
    const lease = await lapsedRun(scene)
    expect(await nodes.meet(late(scene, lease), cancelJob(lease.jobId))).toMatchObject([
      recorded,
      { kind: 'refused', reason: 'ALREADY_ENDED', state: 'SUCCEEDED' },
    ])
    expect(await states(scene, lease)).toEqual(['TIMED_OUT', 'SUCCEEDED'])
  })

  test('if the cancel is first, the result is refused', async () => {
    const scene = newScene()
    const lease = await lapsedRun(scene)
    expect(await nodes.meet(cancelJob(lease.jobId), late(scene, lease))).toEqual([
      { kind: 'canceled', queue: scene.queue, jobKind: 'work' },
      { kind: 'refused', reason: 'ALREADY_ENDED' },
    ])
    expect(await states(scene, lease)).toEqual(['TIMED_OUT', 'CANCELED'])
  })
})

describe('two late reports race', () => {
  test('the same report, sent twice, is recorded once', async () => {
    const scene = newScene()
    const lease = await lapsedRun(scene)
    const same = await nodes.meet(late(scene, lease), late(scene, lease))
    expect(same).toMatchObject([recorded, { kind: 'repeated', state: 'SUCCEEDED' }])
    expect(await states(scene, lease)).toEqual(['TIMED_OUT', 'SUCCEEDED'])
  })

  test('a failure after a result is refused', async () => {
    const scene = newScene()
    const lease = await lapsedRun(scene)
    expect(await nodes.meet(late(scene, lease), late(scene, lease, failed()))).toMatchObject([
      recorded,
      { kind: 'refused', reason: 'OUTCOME_ALREADY_RECORDED' },
    ])
    expect(await states(scene, lease)).toEqual(['TIMED_OUT', 'SUCCEEDED'])
  })
})

describe('a late result races with the promotion of the next run', () => {
  const promote = promoteDue(100, [])
  async function due() {
    const scene = newScene()
    const lease = await lapsedRun(scene)
    await sql(nodes.a(), `UPDATE ichido.runs SET run_at = 1 WHERE job_id = $1 AND state = 'PENDING'`, lease.jobId)
    return { scene, lease }
  }

  test('the result is recorded in either order', async () => {
    const first = await due()
    expect(await nodes.meet(late(first.scene, first.lease), promote)).toMatchObject([recorded, { promoted: [] }])
    expect(await states(first.scene, first.lease)).toEqual(['TIMED_OUT', 'SUCCEEDED'])
    const second = await due()
    expect(await nodes.meet(promote, late(second.scene, second.lease))).toMatchObject([
      { promoted: [{ queue: second.scene.queue }] },
      recorded,
    ])
    expect(await states(second.scene, second.lease)).toEqual(['TIMED_OUT', 'SUCCEEDED'])
  })
})

test('a report that arrives while the leader ends its run adopts the next run', async () => {
  const scene = newScene()
  await register(scene)
  const lease = await scene.running({ policy: { continuation_seconds: 0 } })
  await scene.age(120_000)
  const { term } = await Reaper.of(nodes.a())
  const times = { nowMs: Date.now(), evenMs: Number.MAX_SAFE_INTEGER, reassignAfterMs: 10_000 }
  const { waiting } = await nodes.a().write(reviewRuns(term, { ...times, batchMax: 100, waitingMax: 100 }))
  const seen = waiting.filter(({ jobId }) => jobId === lease.jobId)
  const expire = expireBatch(
    term,
    seen.map((run) => ({ ...run, nextRunId: v7(), random: 0 })),
  )
  const [ended, [inTime]] = await nodes.meet(expire, finishBatch([scene.endItem(lease, finished())]))
  expect(ended).toMatchObject([{ state: 'TIMED_OUT' }])
  expect(inTime).toEqual({ kind: 'refused', reason: 'ALREADY_ENDED' })
  expect(await nodes.b().write(late(scene, lease))).toMatchObject(recorded)
  expect(await states(scene, lease)).toEqual(['TIMED_OUT', 'SUCCEEDED'])
})

test('a late result races with the revocation of its worker: the first commit decides', async () => {
  const revoke = ({ workerId }: Scene) => revokeWorker(workerId, 'ann', v7())
  const first = newScene()
  const lease = await lapsedRun(first)
  expect((await nodes.meet(late(first, lease), revoke(first)))[0]).toMatchObject(recorded)
  const second = newScene()
  const other = await lapsedRun(second)
  expect((await nodes.meet(revoke(second), late(second, other)))[1]).toEqual({ kind: 'refused', reason: 'LEASE_LOST' })
  expect(await states(second, other)).toEqual(['TIMED_OUT', 'PENDING'])
})
