import { v7 } from 'uuid'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type FreshDatabase, freshDatabase } from '../../../scripts/testing/services.ts'
import { size } from '../../../scripts/testing/size.ts'
import { toMicros } from '../core/quota.ts'
import { Gate } from '../testing/gate.ts'
import { failed, finished, KEY_TTL_MS, only, renderForTest, Scene } from '../testing/scene.ts'
import { openNode, sql } from '../testing/store.ts'
import { cancelJob } from './commands/cancel-job.ts'
import { endBatch } from './commands/end-runs.ts'
import { heartbeatBatch } from './commands/heartbeat-runs.ts'
import { extendKeyTo, findKeys, removeExpiredKeys } from './commands/keys.ts'
import { leaseBatch } from './commands/lease-runs.ts'
import { findQuota } from './commands/quotas.ts'
import { findResult } from './commands/read-jobs.ts'
import { reapRuns } from './commands/reap-runs.ts'
import { consumeSlot, releaseSlot } from './commands/reservations.ts'
import { startBatch } from './commands/start-runs.ts'
import { submitJobs } from './commands/submit-jobs.ts'
import type { PostgresStore } from './engines/postgres.ts'
import type { Command } from './port.ts'

/** Two commands on one run, from two nodes on PostgreSQL: exactly one wins, or the result is that of some order. */

let database: FreshDatabase
let [nodeA, nodeB]: PostgresStore[] = []

beforeAll(async () => {
  database = await freshDatabase()
  nodeA = await openNode(database.url)
  nodeB = await openNode(database.url)
})

afterAll(async () => {
  await nodeA?.close()
  await nodeB?.close()
  await database.drop()
})

const newScene = () => new Scene(one(nodeA))

function one(node: PostgresStore | undefined): PostgresStore {
  if (node === undefined) throw new Error('The node is open while tests run')
  return node
}

/** The first command has done everything but commit when the second one comes; the second waits, or goes around it. */
async function meet<A, B>(first: Command<A>, second: Command<B>): Promise<[A, B]> {
  const gate = await Gate.shut(database.url)
  const a = one(nodeA).write(gate.hold(first))
  await gate.reached()
  const b = one(nodeB).write(second)
  await Promise.race([gate.someoneWaits(), b])
  await gate.open()
  return Promise.all([a, b])
}

describe('two reports on one run', () => {
  test('the first that commits is recorded, the other is told so', async () => {
    const scene = newScene()
    const lease = await scene.running()
    const [a, b] = ['1', '2'].map((result) => endBatch([scene.endItem(lease, finished({ result }))]))
    if (a === undefined || b === undefined) throw new Error('Two commands')
    expect(await meet(a, b)).toMatchObject([
      [{ kind: 'recorded', state: 'SUCCEEDED' }],
      [{ kind: 'refused', reason: 'OUTCOME_ALREADY_RECORDED' }],
    ])
    expect(await one(nodeA).read(findResult(lease.jobId))).toMatchObject({ result: '1' })
  })

  test('the same one twice is recorded once', async () => {
    const scene = newScene()
    const lease = await scene.running()
    const report = endBatch([scene.endItem(lease, failed())])
    expect(await meet(report, report)).toMatchObject([[{ kind: 'recorded' }], [{ kind: 'repeated' }]])
    expect(await scene.runs(lease.jobId)).toHaveLength(2)
  })
})

describe('cancel against a report', () => {
  test('a finish that was first stands', async () => {
    const scene = newScene()
    const lease = await scene.running()
    expect(await meet(endBatch([scene.endItem(lease, finished())]), cancelJob(lease.jobId))).toMatchObject([
      [{ kind: 'recorded', state: 'SUCCEEDED' }],
      { kind: 'refused', reason: 'ALREADY_ENDED', state: 'SUCCEEDED' },
    ])
  })

  test.each(['finish', 'fail'] as const)(
    'a %s that comes after the wish to cancel ends the run CANCELED',
    async (verb) => {
      const scene = newScene()
      const lease = await scene.running()
      const report = endBatch([scene.endItem(lease, verb === 'finish' ? finished() : failed())])
      expect(await meet(cancelJob(lease.jobId), report)).toMatchObject([{ kind: 'requested' }, [{ state: 'CANCELED' }]])
      expect(await scene.runs(lease.jobId)).toHaveLength(1)
    },
  )

  test('a failure that makes the next run at the same time: the next run is canceled', async () => {
    const scene = newScene()
    const lease = await scene.running()
    const report = endBatch([scene.endItem(lease, failed())])
    expect(await meet(report, cancelJob(lease.jobId))).toMatchObject([
      [{ kind: 'recorded', state: 'FAILED', next: { runId: expect.any(String) } }],
      { kind: 'canceled' },
    ])
    expect(await scene.state(lease.jobId)).toBe('CANCELED')
  })
})

describe('heartbeat against finish', () => {
  test('a finish that was first ends the lease', async () => {
    const scene = newScene()
    const lease = await scene.running()
    const [report, beat] = [endBatch([scene.endItem(lease, finished())]), heartbeatBatch([scene.heartbeatItem(lease)])]
    expect(await meet(report, beat)).toMatchObject([
      [{ kind: 'recorded' }],
      [{ kind: 'refused', reason: 'ALREADY_ENDED' }],
    ])
  })

  test('a finish after a heartbeat is recorded', async () => {
    const scene = newScene()
    const lease = await scene.running()
    const [report, beat] = [endBatch([scene.endItem(lease, finished())]), heartbeatBatch([scene.heartbeatItem(lease)])]
    expect(await meet(beat, report)).toMatchObject([[{ kind: 'extended' }], [{ kind: 'recorded' }]])
  })
})

describe('two leases', () => {
  test('one run goes to one of two nodes', async () => {
    const scene = newScene()
    await scene.submitted()
    const lease = (workerId: string) => leaseBatch([scene.leaseItem({ workerId })])
    const [a, b] = await meet(lease('a'), lease('b'))
    expect([only(a).length, only(b).length]).toEqual([1, 0])
  })

  test('one poll that is asked on two nodes gets one answer', async () => {
    const scene = newScene()
    for (let i = 0; i < 4; i++) await scene.submitted()
    const item = scene.leaseItem({ max: 2 })
    const [a, b] = await meet(leaseBatch([item]), leaseBatch([{ ...item, token: 'another' }]))
    expect(only(a)).toHaveLength(2)
    expect(b).toEqual(a)
  })

  test('a run that is being canceled is not leased, and one that is being leased can be canceled', async () => {
    const scene = newScene()
    const first = await scene.submitted()
    expect(await meet(cancelJob(first), leaseBatch([scene.leaseItem()]))).toEqual([{ kind: 'canceled' }, [[]]])
    const second = await scene.submitted()
    expect(await meet(leaseBatch([scene.leaseItem()]), cancelJob(second))).toMatchObject([
      [[{ jobId: second }]],
      { kind: 'canceled' },
    ])
  })
})

describe('start', () => {
  test('against cancel: whoever comes second meets what the first left', async () => {
    const scene = newScene()
    await scene.submitted()
    const a = await scene.leased()
    expect(await meet(startBatch([scene.startItem(a)]), cancelJob(a.jobId))).toMatchObject([
      [{ kind: 'started' }],
      { kind: 'requested' },
    ])
    await scene.submitted()
    const b = await scene.leased()
    expect(await meet(cancelJob(b.jobId), startBatch([scene.startItem(b)]))).toMatchObject([
      { kind: 'canceled' },
      [{ kind: 'refused', reason: 'ALREADY_ENDED' }],
    ])
  })

  test('by two processes of one worker: one of them runs', async () => {
    const scene = newScene()
    await scene.submitted()
    const lease = await scene.leased()
    const start = (startId: string) => startBatch([scene.startItem(lease, { startId })])
    expect(await meet(start('a'), start('b'))).toMatchObject([
      [{ kind: 'started' }],
      [{ kind: 'refused', reason: 'NOT_ASSIGNED' }],
    ])
  })
})

test('two cancels: one cancels, one repeats, and the estimate is given back once', async () => {
  const scene = newScene()
  await scene.submitted({ estimatedCostMicros: toMicros(3) })
  const jobId = await scene.submitted({ estimatedCostMicros: toMicros(2) })
  expect(await meet(cancelJob(jobId), cancelJob(jobId))).toEqual([{ kind: 'canceled' }, { kind: 'repeated' }])
  expect((await one(nodeA).read(findQuota(scene.userId))).spentMicros).toBe(toMicros(3))
})

describe('the reaper', () => {
  const reap = () => reapRuns({ continuationMs: 0, spares: [{ nextRunId: v7(), random: 0 }] })

  test('leaves a run alone whose heartbeat is on its way', async () => {
    const scene = newScene()
    const lease = await scene.running()
    await scene.age(100_000)
    await meet(heartbeatBatch([scene.heartbeatItem(lease)]), reap())
    expect(await scene.state(lease.jobId)).toBe('RUNNING')
    await one(nodeA).write(reap())
    expect(await scene.state(lease.jobId)).toBe('RUNNING')
    await scene.finish(lease)
  })

  test('that was first is met by the worker, who has lost its lease', async () => {
    const scene = newScene()
    await scene.submitted()
    const lease = await scene.leased()
    await scene.age(100_000)
    expect(await meet(reap(), startBatch([scene.startItem(lease)]))).toMatchObject([
      { queues: [scene.queue] },
      [{ kind: 'refused', reason: 'LEASE_LOST' }],
    ])
    await scene.cancel(lease.jobId)
  })

  test('and a finish at the same time: one outcome', async () => {
    const scene = newScene()
    const lease = await scene.running()
    await scene.age(100_000)
    expect(await meet(reap(), endBatch([scene.endItem(lease, finished())]))).toMatchObject([
      { ended: [{ jobId: lease.jobId, state: 'TIMED_OUT' }] },
      [{ kind: 'refused', reason: 'ALREADY_ENDED' }],
    ])
    await scene.cancel(lease.jobId)
  })
})

describe('one reservation', () => {
  async function reserved() {
    const scene = newScene()
    const reservationId = v7()
    await scene.reserve(60_000, reservationId)
    return { scene, reservationId }
  }

  test('is consumed or released, never both', async () => {
    const { scene, reservationId } = await reserved()
    const jobId = await scene.submitted()
    const consume = consumeSlot(reservationId, scene.userId, jobId)
    const release = releaseSlot(reservationId, scene.userId)
    expect(await meet(consume, release)).toMatchObject([{ kind: 'done' }, { code: 'RESERVATION_NOT_ACTIVE' }])
    const other = await reserved()
    const theirs = await other.scene.submitted()
    expect(
      await meet(
        releaseSlot(other.reservationId, other.scene.userId),
        consumeSlot(other.reservationId, other.scene.userId, theirs),
      ),
    ).toMatchObject([{ kind: 'done' }, { code: 'RESERVATION_NOT_ACTIVE' }])
  })

  test('serves one job: the one that names it, or the submit that brings it', async () => {
    const { scene, reservationId } = await reserved()
    const jobId = await scene.submitted()
    const submit = submitJobs([scene.item({ reservationId })], renderForTest)
    expect(await meet(consumeSlot(reservationId, scene.userId, jobId), submit)).toMatchObject([
      { kind: 'done' },
      [{ kind: 'refused', refusal: { code: 'RESERVATION_NOT_ACTIVE' } }],
    ])
    const other = await reserved()
    const theirs = await other.scene.submitted()
    const bring = submitJobs([other.scene.item({ reservationId: other.reservationId })], renderForTest)
    expect(await meet(bring, consumeSlot(other.reservationId, other.scene.userId, theirs))).toMatchObject([
      [{ kind: 'created' }],
      { kind: 'refused', code: 'RESERVATION_NOT_ACTIVE' },
    ])
  })
})

describe('an expired key of a job that has ended', () => {
  async function expired() {
    const scene = newScene()
    const jobId = await scene.submitted({ key: 'k' })
    await scene.cancel(jobId)
    await scene.age(KEY_TTL_MS + 1)
    const key = only(await one(nodeA).read(findKeys('k', scene.userId)))
    return { scene, key, extend: extendKeyTo(key, KEY_TTL_MS), expire: removeExpiredKeys(1_000) }
  }
  const keyOf = (scene: Scene) => one(nodeA).read(findKeys('k', scene.userId))

  test('is extended before it is removed: it stays', async () => {
    const { scene, extend, expire } = await expired()
    expect(await meet(extend, expire)).toEqual([expect.any(Number), 0])
    expect(await keyOf(scene)).toHaveLength(1)
  })

  test('is removed before it is extended: it is gone, and the caller hears so', async () => {
    const { scene, extend, expire } = await expired()
    expect(await meet(expire, extend)).toEqual([1, null])
    expect(await keyOf(scene)).toEqual([])
  })

  test('is extended before it is used again: it stands for its first job', async () => {
    const { scene, key, extend } = await expired()
    const submit = submitJobs([scene.item({ key: 'k' })], renderForTest)
    expect(await meet(extend, submit)).toMatchObject([expect.any(Number), [{ kind: 'replayed', jobId: key.jobId }]])
  })

  test('is used again before it is extended: the new one is extended', async () => {
    const { scene, extend } = await expired()
    const item = scene.item({ key: { key: 'k', ttlMs: 1 } })
    const [, expiresAtMs] = await meet(submitJobs([item], renderForTest), extend)
    expect(await keyOf(scene)).toMatchObject([{ jobId: item.jobId, expiresAtMs }])
  })

  test('is used again while it is being removed', async () => {
    const { scene, expire } = await expired()
    const item = scene.item({ key: 'k' })
    expect(await meet(expire, submitJobs([item], renderForTest))).toMatchObject([1, [{ kind: 'created' }]])
    expect(await keyOf(scene)).toMatchObject([{ jobId: item.jobId }])
  })
})

test('unforced, in numbers: every run has one outcome, one holder and one line of events', async () => {
  const rounds = size(40, 1_000)
  for (let round = 0; round < rounds; round++) {
    const scene = newScene()
    await scene.submitted()
    const lease = await scene.leased()
    const commands: Command<unknown>[] = [
      startBatch([scene.startItem(lease)]),
      cancelJob(lease.jobId),
      heartbeatBatch([scene.heartbeatItem(lease)]),
      endBatch([scene.endItem(lease, finished({ result: '1' }))]),
      endBatch([scene.endItem(lease, failed())]),
      cancelJob(lease.jobId),
    ]
    if (round % 2 === 0) await scene.start(lease)
    await Promise.all(commands.sort(() => Math.random() - 0.5).map((c, i) => one(i % 2 === 0 ? nodeA : nodeB).write(c)))
    const events = await scene.events(lease.jobId)
    const runs = await scene.runs(lease.jobId)
    expect(runs.filter((run) => run.latest)).toHaveLength(1)
    expect(events).toHaveLength(Number(runs.at(-1)?.last_event_n))
    const results = await sql(one(nodeA), 'SELECT * FROM ichido.results WHERE job_id = $1', lease.jobId)
    expect(results).toHaveLength(runs.some((run) => run.state === 'SUCCEEDED') ? 1 : 0)
  }
})
