import { v7 } from 'uuid'
import { beforeEach, describe, expect, test } from 'vitest'
import { size } from '../../../../scripts/testing/size.ts'
import { cancelJob } from '../../store/jobs/cancel-or-delete.ts'
import { heartbeatBatch } from '../../store/leasing/heartbeat-runs.ts'
import type { Leased } from '../../store/leasing/lease-runs.ts'
import type { Command } from '../../store/port.ts'
import { finishBatch } from '../../store/runs/finish-runs.ts'
import { type Ended, expireBatch, type Review, reviewRuns } from '../../store/runs/reap-runs.ts'
import { startBatch } from '../../store/runs/start-runs.ts'
import type { Term } from '../../store/system/term.ts'
import { seize } from '../../testing/nodes/reaper.ts'
import { twoNodes } from '../../testing/nodes/two-nodes.ts'
import { finished, only, Scene } from '../../testing/store/scene.ts'
import { sql } from '../../testing/store/store.ts'

/**
 * The reaper and a worker race for one run, on two nodes with PostgreSQL: one of them is first, and the other notices.
 */

const nodes = twoNodes()

let scene: Scene
let term: Term
beforeEach(async () => {
  scene = new Scene(nodes.a())
  term = await seize(nodes.a())
  await sql(nodes.a(), "UPDATE ichido.runs SET state = 'CANCELED' WHERE state IN ('ASSIGNED', 'RUNNING', 'ORPHANED')")
})

function review(): Command<Review> {
  const sizes = { batchMax: 100, waitingMax: 100, reassignAfterMs: 10_000 }
  return reviewRuns(term, { nowMs: Date.now(), evenMs: Number.MAX_SAFE_INTEGER, ...sizes })
}

/** A run whose lease has expired, and the end that the leader plans for it. */
async function confirming(): Promise<{ lease: Leased; expire: Command<Ended[]> }> {
  const lease = await scene.running()
  await scene.age(61_000)
  const { waiting } = await nodes.a().write(review())
  return { lease, expire: expireBatch(term, [{ ...only(waiting), nextRunId: v7(), random: 0 }]) }
}

const beat = (lease: Leased) => heartbeatBatch([scene.heartbeatItem(lease)])
const finish = (lease: Leased) => finishBatch([scene.endItem(lease, finished())])

describe('a heartbeat', () => {
  test('that is under way when the leader looks keeps the run', async () => {
    const lease = await scene.running()
    await scene.age(61_000)
    const [[heard], reviewed] = await nodes.meet(beat(lease), review())
    expect(heard).toMatchObject({ kind: 'extended' })
    expect(reviewed).toMatchObject({ waiting: [] })
    expect(await nodes.a().write(review())).toMatchObject({ waiting: [] })
    expect(await scene.run(lease.runId)).toMatchObject({ state: 'RUNNING', continuation_state: 'NONE' })
  })

  test('that comes while the leader writes CONFIRMING removes it', async () => {
    const lease = await scene.running()
    await scene.age(61_000)
    const [, [heard]] = await nodes.meet(review(), beat(lease))
    expect(heard).toMatchObject({ kind: 'extended' })
    expect(await scene.run(lease.runId)).toMatchObject({
      state: 'RUNNING',
      continuation_state: 'NONE',
      continuation_check_deadline_at: null,
    })
  })

  test('that is under way when the leader would end the run keeps it', async () => {
    const { lease, expire } = await confirming()
    expect(await nodes.meet(beat(lease), expire)).toMatchObject([[{ kind: 'extended' }], []])
    expect(await nodes.a().write(expire)).toEqual([])
    expect(await scene.state(lease.jobId)).toBe('RUNNING')
  })

  test('that comes while the leader ends the run is refused', async () => {
    const { lease, expire } = await confirming()
    expect(await nodes.meet(expire, beat(lease))).toMatchObject([
      [{ jobId: lease.jobId, state: 'TIMED_OUT' }],
      [{ kind: 'refused', reason: 'ALREADY_ENDED' }],
    ])
  })

  test('and another expiry cancel the end that the leader planned before', async () => {
    const { lease, expire } = await confirming()
    await scene.heartbeat(lease)
    await scene.age(61_000)
    expect(await nodes.a().write(review())).toMatchObject({ waiting: [{ jobId: lease.jobId }] })
    expect(await nodes.a().write(expire)).toEqual([])
    expect(await scene.state(lease.jobId)).toBe('RUNNING')
  })
})

describe('a result', () => {
  test('that is under way when the leader would end the run counts', async () => {
    const { lease, expire } = await confirming()
    expect(await nodes.meet(finish(lease), expire)).toMatchObject([[{ kind: 'recorded', state: 'SUCCEEDED' }], []])
    expect(await nodes.a().write(expire)).toEqual([])
    expect(await scene.runs(lease.jobId)).toMatchObject([{ state: 'SUCCEEDED' }])
  })

  test('that comes while the leader ends the run is refused', async () => {
    const { lease, expire } = await confirming()
    expect(await nodes.meet(expire, finish(lease))).toMatchObject([
      [{ state: 'TIMED_OUT' }],
      [{ kind: 'refused', reason: 'ALREADY_ENDED' }],
    ])
    expect(await scene.runs(lease.jobId)).toMatchObject([{ state: 'TIMED_OUT' }, { state: 'PENDING' }])
  })
})

describe('a cancel request', () => {
  test('that comes while the leader ends the run cancels the next run', async () => {
    const { lease, expire } = await confirming()
    expect(await nodes.meet(expire, cancelJob(lease.jobId))).toMatchObject([
      [{ state: 'TIMED_OUT' }],
      { kind: 'canceled' },
    ])
    expect(await scene.runs(lease.jobId)).toMatchObject([{ state: 'TIMED_OUT' }, { state: 'CANCELED' }])
  })

  test('that is first turns the end into CANCELED', async () => {
    const { lease, expire } = await confirming()
    await nodes.meet(cancelJob(lease.jobId), expire)
    await nodes.a().write(expire)
    expect(await scene.runs(lease.jobId)).toMatchObject([{ state: 'CANCELED' }])
  })
})

describe('a start', () => {
  test('that comes while the leader takes the run back is refused', async () => {
    await scene.submitted()
    const lease = await scene.leased()
    await scene.age(61_000)
    expect(await nodes.meet(review(), startBatch([scene.startItem(lease)]))).toMatchObject([
      { queues: [scene.queue] },
      [{ kind: 'refused', reason: 'LEASE_LOST' }],
    ])
  })

  test('that is under way when the leader looks gives the run to the worker', async () => {
    await scene.submitted()
    const lease = await scene.leased()
    await scene.age(61_000)
    expect(await nodes.meet(startBatch([scene.startItem(lease)]), review())).toMatchObject([
      [{ kind: 'started' }],
      { queues: [] },
    ])
  })
})

test('two leaders at once, one of them former: each run ends once', async () => {
  const old = term
  const { lease, expire } = await confirming()
  term = await seize(nodes.b())
  const { waiting } = await nodes.b().write(review())
  const next = expireBatch(term, [{ ...only(waiting), nextRunId: v7(), random: 0 }])
  expect(term.epoch).toBe(old.epoch + 1)
  expect(await Promise.all([nodes.a().write(expire), nodes.b().write(next)])).toMatchObject([
    [],
    [{ jobId: lease.jobId, state: 'TIMED_OUT' }],
  ])
  expect(await scene.runs(lease.jobId)).toHaveLength(2)
})

test('many races: a worker with a heartbeat keeps its run, others lose it', async () => {
  for (let round = 0; round < size(20, 1_000); round++) {
    scene = new Scene(nodes.a())
    const { lease, expire } = await confirming()
    const worker = round % 2 === 0 ? beat(lease) : finish(lease)
    const [[answer], ended] = await Promise.all([nodes.b().write<{ kind: string }[]>(worker), nodes.a().write(expire)])
    expect(ended).toHaveLength(answer?.kind === 'refused' ? 1 : 0)
    expect(await scene.runs(lease.jobId)).toHaveLength(1 + ended.length)
    await scene.cancel(lease.jobId)
    await scene.finish(lease)
  }
})
