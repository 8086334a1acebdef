import { describe, expect, test } from 'vitest'
import { size } from '../../../../scripts/testing/size.ts'
import { toMicros } from '../../../src/core/limits/quota.ts'
import { cancelJob } from '../../../src/store/jobs/cancel-or-delete.ts'
import { findResult } from '../../../src/store/jobs/read-jobs.ts'
import { heartbeatBatch } from '../../../src/store/leasing/heartbeat-runs.ts'
import { findQuota } from '../../../src/store/limits/quotas.ts'
import type { Command } from '../../../src/store/port.ts'
import { finishBatch } from '../../../src/store/runs/finish-runs.ts'
import { startBatch } from '../../../src/store/runs/start-runs.ts'
import { twoNodes } from '../../../src/testing/nodes/two-nodes.ts'
import { failed, finished, leasesFor, only, Scene } from '../../../src/testing/store/scene.ts'
import { sql } from '../../../src/testing/store/store.ts'

/** Two nodes on PostgreSQL run two commands on one run. Exactly one wins, or the result is that of one of the two orders. */

const nodes = twoNodes()
const newScene = () => new Scene(nodes.a())

describe('two reports on one run', () => {
  test('the first commit is recorded, and the second report is refused', async () => {
    const scene = newScene()
    const lease = await scene.running()
    const [a, b] = ['1', '2'].map((result) => finishBatch([scene.endItem(lease, finished({ result }))]))
    if (a === undefined || b === undefined) throw new Error('Two commands')
    expect(await nodes.meet(a, b)).toMatchObject([
      [{ kind: 'recorded', state: 'SUCCEEDED' }],
      [{ kind: 'refused', reason: 'OUTCOME_ALREADY_RECORDED' }],
    ])
    expect(await nodes.a().read(findResult(lease.jobId))).toMatchObject({ result: '1' })
  })

  test('the same report, sent twice, is recorded once', async () => {
    const scene = newScene()
    const lease = await scene.running()
    const report = finishBatch([scene.endItem(lease, failed())])
    expect(await nodes.meet(report, report)).toMatchObject([[{ kind: 'recorded' }], [{ kind: 'repeated' }]])
    expect(await scene.runs(lease.jobId)).toHaveLength(2)
  })
})

describe('a cancel races with a report', () => {
  test('a cancel after a finish is refused', async () => {
    const scene = newScene()
    const lease = await scene.running()
    expect(await nodes.meet(finishBatch([scene.endItem(lease, finished())]), cancelJob(lease.jobId))).toMatchObject([
      [{ kind: 'recorded', state: 'SUCCEEDED' }],
      { kind: 'refused', reason: 'ALREADY_ENDED', state: 'SUCCEEDED' },
    ])
  })

  test.each(['finish', 'fail'] as const)('a %s after a cancel request ends the run CANCELED', async (verb) => {
    const scene = newScene()
    const lease = await scene.running()
    const report = finishBatch([scene.endItem(lease, verb === 'finish' ? finished() : failed())])
    expect(await nodes.meet(cancelJob(lease.jobId), report)).toMatchObject([
      { kind: 'requested' },
      [{ state: 'CANCELED' }],
    ])
    expect(await scene.runs(lease.jobId)).toHaveLength(1)
  })

  test('if a failure creates the next run first, the cancel cancels that run', async () => {
    const scene = newScene()
    const lease = await scene.running()
    const report = finishBatch([scene.endItem(lease, failed())])
    expect(await nodes.meet(report, cancelJob(lease.jobId))).toMatchObject([
      [{ kind: 'recorded', state: 'FAILED', next: { runId: expect.any(String) } }],
      { kind: 'canceled' },
    ])
    expect(await scene.state(lease.jobId)).toBe('CANCELED')
  })
})

describe('a heartbeat races with a finish', () => {
  test('a heartbeat after a finish is refused', async () => {
    const scene = newScene()
    const lease = await scene.running()
    const [report, beat] = [
      finishBatch([scene.endItem(lease, finished())]),
      heartbeatBatch([scene.heartbeatItem(lease)]),
    ]
    expect(await nodes.meet(report, beat)).toMatchObject([
      [{ kind: 'recorded' }],
      [{ kind: 'refused', reason: 'ALREADY_ENDED' }],
    ])
  })

  test('a finish after a heartbeat is recorded', async () => {
    const scene = newScene()
    const lease = await scene.running()
    const [report, beat] = [
      finishBatch([scene.endItem(lease, finished())]),
      heartbeatBatch([scene.heartbeatItem(lease)]),
    ]
    expect(await nodes.meet(beat, report)).toMatchObject([[{ kind: 'extended' }], [{ kind: 'recorded' }]])
  })
})

describe('two leases race', () => {
  test('a run goes to only one of two nodes', async () => {
    const scene = newScene()
    await scene.submitted()
    const lease = (workerId: string) => leasesFor([scene.leaseItem({ workerId })])
    const [a, b] = await nodes.meet(lease('a'), lease('b'))
    expect([only(a).length, only(b).length]).toEqual([1, 0])
  })

  test('the same poll on two nodes gets the same answer', async () => {
    const scene = newScene()
    for (let i = 0; i < 4; i++) await scene.submitted()
    const item = scene.leaseItem({ max: 2 })
    const [a, b] = await nodes.meet(leasesFor([item]), leasesFor([{ ...item, token: 'another' }]))
    expect(only(a)).toHaveLength(2)
    expect(b).toEqual(a)
  })

  test('a run that is being canceled is not leased, and a leased run can be canceled', async () => {
    const scene = newScene()
    const first = await scene.submitted()
    expect(await nodes.meet(cancelJob(first), leasesFor([scene.leaseItem()]))).toEqual([
      { kind: 'canceled', queue: scene.queue, jobKind: 'work' },
      [[]],
    ])
    const second = await scene.submitted()
    expect(await nodes.meet(leasesFor([scene.leaseItem()]), cancelJob(second))).toMatchObject([
      [[{ jobId: second }]],
      { kind: 'canceled' },
    ])
  })
})

describe('two commands race with a start', () => {
  test('start and cancel: the second command sees the effect of the first', async () => {
    const scene = newScene()
    await scene.submitted()
    const a = await scene.leased()
    expect(await nodes.meet(startBatch([scene.startItem(a)]), cancelJob(a.jobId))).toMatchObject([
      [{ kind: 'started' }],
      { kind: 'requested' },
    ])
    await scene.submitted()
    const b = await scene.leased()
    expect(await nodes.meet(cancelJob(b.jobId), startBatch([scene.startItem(b)]))).toMatchObject([
      { kind: 'canceled' },
      [{ kind: 'refused', reason: 'ALREADY_ENDED' }],
    ])
  })

  test('if two processes of one worker start the same run, only one succeeds', async () => {
    const scene = newScene()
    await scene.submitted()
    const lease = await scene.leased()
    const start = (startId: string) => startBatch([scene.startItem(lease, { startId })])
    expect(await nodes.meet(start('a'), start('b'))).toMatchObject([
      [{ kind: 'started' }],
      [{ kind: 'refused', reason: 'NOT_ASSIGNED' }],
    ])
  })
})

test('the second of two cancels is a duplicate, and the estimate is returned once', async () => {
  const scene = newScene()
  await scene.submitted({ estimatedCostMicros: toMicros(3) })
  const jobId = await scene.submitted({ estimatedCostMicros: toMicros(2) })
  expect(await nodes.meet(cancelJob(jobId), cancelJob(jobId))).toEqual([
    { kind: 'canceled', queue: scene.queue, jobKind: 'work' },
    { kind: 'repeated' },
  ])
  expect((await nodes.a().read(findQuota(scene.userId))).spentMicros).toBe(toMicros(3))
})

test('random interleaving: every run has one outcome, one holder and gapless events', async () => {
  const rounds = size(20, 1_000)
  for (let round = 0; round < rounds; round++) {
    const scene = newScene()
    await scene.submitted()
    const lease = await scene.leased()
    const commands: Command<unknown>[] = [
      startBatch([scene.startItem(lease)]),
      cancelJob(lease.jobId),
      heartbeatBatch([scene.heartbeatItem(lease)]),
      finishBatch([scene.endItem(lease, finished({ result: '1' }))]),
      finishBatch([scene.endItem(lease, failed())]),
      cancelJob(lease.jobId),
    ]
    if (round % 2 === 0) await scene.start(lease)
    await Promise.all(
      commands.sort(() => Math.random() - 0.5).map((c, i) => (i % 2 === 0 ? nodes.a() : nodes.b()).write(c)),
    )
    const events = await scene.events(lease.jobId)
    const runs = await scene.runs(lease.jobId)
    expect(runs.filter((run) => run.latest)).toHaveLength(1)
    expect(events).toHaveLength(Number(runs.at(-1)?.last_event_n))
    const results = await sql(nodes.a(), 'SELECT * FROM ichido.results WHERE job_id = $1', lease.jobId)
    expect(results).toHaveLength(runs.some((run) => run.state === 'SUCCEEDED') ? 1 : 0)
  }
})
