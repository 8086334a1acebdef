import { describe, expect, test } from 'vitest'
import type { ForeignEvent } from '../../../src/core/events/event.ts'
import { ingestEvents } from '../../../src/store/events/ingest-events.ts'
import { publishBatch } from '../../../src/store/events/publish.ts'
import type { Leased } from '../../../src/store/leasing/lease-runs.ts'
import { finishBatch } from '../../../src/store/runs/finish-runs.ts'
import { twoNodes } from '../../../src/testing/nodes/two-nodes.ts'
import { failed, Scene } from '../../../src/testing/store/scene.ts'
import { eachEngine } from '../../../src/testing/store/store.ts'

/** Publishers without a lease, and other writers, store events of the same job. */

const foreign = (jobId: string, seq: number, data: unknown = { seq }): ForeignEvent => {
  return { jobId, stage: 'progress', seq, data: JSON.stringify(data) }
}

const published = (scene: Scene, { jobId, leaseId }: Leased, seq: number) =>
  publishBatch(
    [{ jobId, leaseId, workerId: scene.workerId, events: [{ stage: 'progress', seq, data: '{"by":"worker"}' }] }],
    true,
  )

describe('from two nodes on PostgreSQL', () => {
  const nodes = twoNodes()

  test('the same event is stored once', async () => {
    const scene = new Scene(nodes.a())
    const jobId = await scene.submitted()
    const bring = () => ingestEvents([foreign(jobId, 1)])
    expect(await nodes.meet(bring(), bring())).toMatchObject([
      [{ kind: 'stored', event: { n: 2 }, last: true }],
      [{ kind: 'repeated', event: { n: 2 }, last: true }],
    ])
    expect(await scene.events(jobId)).toEqual([{ state: 'PENDING' }, { seq: 1 }])
  })

  test('two different events have one cursor each', async () => {
    const scene = new Scene(nodes.a())
    const jobId = await scene.submitted()
    await nodes.meet(ingestEvents([foreign(jobId, 1)]), ingestEvents([foreign(jobId, 2)]))
    expect(await scene.events(jobId)).toEqual([{ state: 'PENDING' }, { seq: 1 }, { seq: 2 }])
  })

  test('an event that the worker also publishes is stored once', async () => {
    const scene = new Scene(nodes.a())
    const lease = await scene.running()
    const [, ingested] = await nodes.meet(published(scene, lease, 1), ingestEvents([foreign(lease.jobId, 1)]))
    expect(ingested).toMatchObject([{ kind: 'repeated', event: { n: 3 } }])
    const [, late] = await nodes.meet(ingestEvents([foreign(lease.jobId, 2)]), published(scene, lease, 2))
    expect(late).toMatchObject([{ kind: 'stored', events: [null] }])
    expect(await scene.events(lease.jobId)).toHaveLength(4)
  })

  test('an event that races with the next run comes after it, without a gap', async () => {
    const scene = new Scene(nodes.a())
    const lease = await scene.running()
    const fail = finishBatch([scene.endItem(lease, failed())])
    const [, ingested] = await nodes.meet(fail, ingestEvents([foreign(lease.jobId, 1)]))
    expect(ingested).toMatchObject([{ kind: 'stored', last: true }])
    const events = await scene.events(lease.jobId)
    expect(events.at(-1)).toEqual({ seq: 1 })
    const runs = await scene.runs(lease.jobId)
    expect(runs.map((run) => run.last_event_n)).toEqual([events.length - 2, events.length])
  })

  test('concurrent batches for many jobs neither deadlock nor lose an event', async () => {
    const scene = new Scene(nodes.a())
    const jobIds = await Promise.all(Array.from({ length: 10 }, () => scene.submitted()))
    const seqs = Array.from({ length: 8 }, (_, seq) => seq)
    await Promise.all(
      seqs.flatMap((seq) => {
        const events = jobIds.map((jobId) => foreign(jobId, seq))
        return [nodes.a().write(ingestEvents(events)), nodes.b().write(ingestEvents(events.toReversed()))]
      }),
    )
    for (const jobId of jobIds) expect(await scene.events(jobId)).toHaveLength(1 + seqs.length)
  })
})

eachEngine(({ store }) => {
  test('duplicates, unknown jobs and wrong seqs do not affect the other events', async () => {
    const scene = new Scene(store())
    const jobId = await scene.submitted({ policy: { stages: 'eco2' } })
    const vision = (seq: number, data: unknown): ForeignEvent => ({ ...foreign(jobId, seq, data), stage: 'vision' })
    const unknown = '01a1e12b-0000-7000-8000-000000000000'
    const items = [vision(11, 'b'), foreign(unknown, 1), vision(20, 'no'), vision(11, 'again'), vision(10, 'a')]
    const outcomes = await store().write(ingestEvents(items))
    expect(outcomes).toMatchObject([
      { kind: 'stored', event: { n: 2, data: '"b"' }, last: false },
      { kind: 'unknown' },
      { kind: 'refused' },
      { kind: 'repeated', event: { n: 2 }, last: false },
      { kind: 'stored', event: { n: 3, data: '"a"' }, last: true },
    ])
    expect(await scene.events(jobId)).toEqual([{ state: 'PENDING' }, 'b', 'a'])
  })

  test('an event is deduplicated across attempts and after the end of its job', async () => {
    const scene = new Scene(store())
    const lease = await scene.running({
      policy: { max_attempts: 2, backoff: { baseSeconds: 0, capSeconds: 0, jitter: 0 } },
    })
    const bring = async () => (await store().write(ingestEvents([foreign(lease.jobId, 1)])))[0]
    expect(await bring()).toMatchObject({ kind: 'stored', event: { n: 3, seq: 1 } })
    await scene.fail(lease)
    const second = await scene.leased({ startId: 'start' })
    expect(await bring()).toMatchObject({ kind: 'repeated', event: { n: 3 }, last: false })
    await scene.finish(second)
    expect(await bring()).toMatchObject({ kind: 'repeated' })
    expect(await store().write(ingestEvents([foreign(lease.jobId, 2)]))).toMatchObject([{ kind: 'stored', last: true }])
    expect((await scene.events(lease.jobId)).at(-1)).toEqual({ seq: 2 })
  })
})
