import { describe, expect, test } from 'vitest'
import { size } from '../../../../scripts/testing/size.ts'
import { toMicros } from '../../../src/core/limits/quota.ts'
import { cancelJob } from '../../../src/store/jobs/cancel-job.ts'
import { findResult } from '../../../src/store/jobs/read-jobs.ts'
import { heartbeatBatch } from '../../../src/store/leasing/heartbeat-runs.ts'
import { findQuota } from '../../../src/store/limits/quotas.ts'
import type { Command } from '../../../src/store/port.ts'
import { finishBatch } from '../../../src/store/runs/finish-runs.ts'
import { startBatch } from '../../../src/store/runs/start-runs.ts'
import { twoNodes } from '../../../src/testing/nodes/two-nodes.ts'
import { failed, finished, leasesFor, only, Scene } from '../../../src/testing/store/scene.ts'
import { sql } from '../../../src/testing/store/store.ts'

/** Two commands on one run, from two nodes on PostgreSQL: exactly one wins, or the result is that of some order. */

const nodes = twoNodes()
const newScene = () => new Scene(nodes.a())

describe('two reports on one run', () => {
  test('the first that commits is recorded, the other is told so', async () => {
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

  test('the same one twice is recorded once', async () => {
    const scene = newScene()
    const lease = await scene.running()
    const report = finishBatch([scene.endItem(lease, failed())])
    expect(await nodes.meet(report, report)).toMatchObject([[{ kind: 'recorded' }], [{ kind: 'repeated' }]])
    expect(await scene.runs(lease.jobId)).toHaveLength(2)
  })
})

describe('cancel against a report', () => {
  test('a finish that was first stands', async () => {
    const scene = newScene()
    const lease = await scene.running()
    expect(await nodes.meet(finishBatch([scene.endItem(lease, finished())]), cancelJob(lease.jobId))).toMatchObject([
      [{ kind: 'recorded', state: 'SUCCEEDED' }],
      { kind: 'refused', reason: 'ALREADY_ENDED', state: 'SUCCEEDED' },
    ])
  })

  test.each(['finish', 'fail'] as const)(
    'a %s that comes after the wish to cancel ends the run CANCELED',
    async (verb) => {
      const scene = newScene()
      const lease = await scene.running()
      const report = finishBatch([scene.endItem(lease, verb === 'finish' ? finished() : failed())])
      expect(await nodes.meet(cancelJob(lease.jobId), report)).toMatchObject([
        { kind: 'requested' },
        [{ state: 'CANCELED' }],
      ])
      expect(await scene.runs(lease.jobId)).toHaveLength(1)
    },
  )

  test('a failure that makes the next run at the same time: the next run is canceled', async () => {
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

describe('heartbeat against finish', () => {
  test('a finish that was first ends the lease', async () => {
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

describe('two leases', () => {
  test('one run goes to one of two nodes', async () => {
    const scene = newScene()
    await scene.submitted()
    const lease = (workerId: string) => leasesFor([scene.leaseItem({ workerId })])
    const [a, b] = await nodes.meet(lease('a'), lease('b'))
    expect([only(a).length, only(b).length]).toEqual([1, 0])
  })

  test('one poll that is asked on two nodes gets one answer', async () => {
    const scene = newScene()
    for (let i = 0; i < 4; i++) await scene.submitted()
    const item = scene.leaseItem({ max: 2 })
    const [a, b] = await nodes.meet(leasesFor([item]), leasesFor([{ ...item, token: 'another' }]))
    expect(only(a)).toHaveLength(2)
    expect(b).toEqual(a)
  })

  test('a run that is being canceled is not leased, and one that is being leased can be canceled', async () => {
    const scene = newScene()
    const first = await scene.submitted()
    expect(await nodes.meet(cancelJob(first), leasesFor([scene.leaseItem()]))).toEqual([{ kind: 'canceled' }, [[]]])
    const second = await scene.submitted()
    expect(await nodes.meet(leasesFor([scene.leaseItem()]), cancelJob(second))).toMatchObject([
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

  test('by two processes of one worker: one of them runs', async () => {
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

test('two cancels: one cancels, one repeats, and the estimate is given back once', async () => {
  const scene = newScene()
  await scene.submitted({ estimatedCostMicros: toMicros(3) })
  const jobId = await scene.submitted({ estimatedCostMicros: toMicros(2) })
  expect(await nodes.meet(cancelJob(jobId), cancelJob(jobId))).toEqual([{ kind: 'canceled' }, { kind: 'repeated' }])
  expect((await nodes.a().read(findQuota(scene.userId))).spentMicros).toBe(toMicros(3))
})

test('unforced, in numbers: every run has one outcome, one holder and one line of events', async () => {
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
