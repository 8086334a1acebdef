import { v7 } from 'uuid'
import { describe, expect, test } from 'vitest'
import { size } from '../../../../scripts/testing/size.ts'
import { cancelJob } from '../../../src/store/jobs/cancel-or-delete.ts'
import { putQueue } from '../../../src/store/leasing/queues.ts'
import { releaseBatch } from '../../../src/store/leasing/release-runs.ts'
import { storeLogs } from '../../../src/store/logs/run-logs.ts'
import { finishBatch } from '../../../src/store/runs/finish-runs.ts'
import { startBatch } from '../../../src/store/runs/start-runs.ts'
import { twoNodes } from '../../../src/testing/nodes/two-nodes.ts'
import { finished, leasesFor, only, Scene } from '../../../src/testing/store/scene.ts'

/** Two nodes on PostgreSQL release runs and lease from limited queues at the same time. */

const nodes = twoNodes()
const newScene = () => new Scene(nodes.a())

describe('a release races with another command', () => {
  test('release and result: the first commit decides', async () => {
    const scene = newScene()
    const a = await scene.running()
    const result = finishBatch([scene.endItem(a, finished())])
    expect(await nodes.meet(releaseBatch([scene.releaseItem(a)]), result)).toMatchObject([
      [{ kind: 'released', state: 'FAILED' }],
      [{ kind: 'refused', reason: 'OUTCOME_ALREADY_RECORDED' }],
    ])
    expect(await scene.runs(a.jobId)).toHaveLength(2)
    await scene.finish(await scene.leased({ startId: 's' }))
    const b = await scene.running()
    expect(
      await nodes.meet(finishBatch([scene.endItem(b, finished())]), releaseBatch([scene.releaseItem(b)])),
    ).toMatchObject([[{ kind: 'recorded' }], [{ kind: 'refused', reason: 'ALREADY_ENDED' }]])
    expect(await scene.runs(b.jobId)).toHaveLength(1)
  })

  test('two simultaneous releases create one next run', async () => {
    const scene = newScene()
    const lease = await scene.running()
    const release = () => releaseBatch([scene.releaseItem(lease)])
    expect(await nodes.meet(release(), release())).toMatchObject([[{ kind: 'released' }], [{ kind: 'repeated' }]])
    expect(await scene.runs(lease.jobId)).toHaveLength(2)
  })

  test('release and cancel: the job is canceled, and no run is left to lease', async () => {
    const scene = newScene()
    for (const canceledFirst of [true, false]) {
      const lease = await scene.running()
      const [cancel, release] = [cancelJob(lease.jobId), releaseBatch([scene.releaseItem(lease)])]
      await (canceledFirst ? nodes.meet(cancel, release) : nodes.meet(release, cancel))
      expect(await scene.state(lease.jobId)).toBe('CANCELED')
      expect(await scene.lease()).toEqual([])
    }
  })

  test('a released run does not start', async () => {
    const scene = newScene()
    await scene.submitted()
    const lease = await scene.leased()
    expect(
      await nodes.meet(releaseBatch([scene.releaseItem(lease)]), startBatch([scene.startItem(lease)])),
    ).toMatchObject([[{ state: 'ORPHANED' }], [{ kind: 'refused', reason: 'LEASE_LOST' }]])
  })

  test('release and lease of the same queue: the run has one holder', async () => {
    const scene = newScene()
    await scene.submitted()
    const lease = await scene.leased()
    const [, taken] = await nodes.meet(
      releaseBatch([scene.releaseItem(lease)]),
      leasesFor([scene.leaseItem({ workerId: 'next' })]),
    )
    expect(only(taken), 'not committed yet').toEqual([])
    expect(await scene.leased({ workerId: 'next' })).toMatchObject({ runId: lease.runId, attempt: 2 })
  })
})

test('the same log chunk from two nodes is stored once', async () => {
  const scene = newScene()
  const { jobId, leaseId } = await scene.running()
  const chunks = [{ n: 0, stream: 'stdout' as const, text: 'once' }]
  const store = storeLogs({ jobId, leaseId, workerId: scene.workerId, chunks, bytesMax: 100 })
  expect(await nodes.meet(store, store)).toMatchObject([
    { kind: 'stored', accepted: 1 },
    { kind: 'stored', accepted: 0 },
  ])
})

describe('hazard 2: a queue with a limit', () => {
  const limited = async (maxConcurrent: number) => {
    const scene = newScene()
    await nodes.a().write(putQueue(scene.queue, { maxConcurrent }, { id: v7(), actor: 'ann' }))
    return scene
  }

  test('the second of two nodes waits for the first and counts the leases of the first', async () => {
    const scene = await limited(3)
    await scene.submitAll(Array.from({ length: 9 }, () => scene.item()))
    const lease = (workerId: string) => leasesFor([scene.leaseItem({ workerId, max: 2 })])
    const [a, b] = await nodes.meet(lease('a'), lease('b'))
    expect([only(a).length, only(b).length]).toEqual([2, 1])
  })

  test('random interleaving: the limit is always reached and never exceeded', async () => {
    for (let round = 0; round < size(15, 400); round++) {
      const scene = await limited(5)
      await scene.submitAll(Array.from({ length: 20 }, () => scene.item()))
      const lease = (_: unknown, i: number) =>
        (i % 2 === 0 ? nodes.a() : nodes.b()).write(leasesFor([scene.leaseItem({ workerId: `w${i}`, max: 2 })]))
      const leases = (await Promise.all(Array.from({ length: 8 }, lease))).flat(2)
      expect(leases).toHaveLength(5)
    }
  })
})
