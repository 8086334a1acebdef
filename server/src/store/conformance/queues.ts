import { v7 } from 'uuid'
import { describe, expect, test } from 'vitest'
import { Reaper } from '../../testing/nodes/reaper.ts'
import { integer } from '../../testing/store/rows.ts'
import { leasesFor, Scene } from '../../testing/store/scene.ts'
import { sql, unique } from '../../testing/store/store.ts'
import { findLastTags, raiseQueueTimes } from '../leasing/fair-tags.ts'
import { findQueue, findQueues, putQueue, type QueueSettings } from '../leasing/queues.ts'
import type { Given } from './given.ts'

export function queueConformance({ store }: Given): void {
  const put = (queue: string, changes: Partial<QueueSettings>) =>
    store().write(putQueue(queue, changes, { id: v7(), actor: 'ann' }))

  describe('a queue', () => {
    test('that is paused leases nothing until it is resumed', async () => {
      const scene = new Scene(store())
      await scene.submitted()
      const held = await scene.leased()
      await scene.submitted()
      await put(scene.queue, { paused: true })
      const { settings } = await store().read(findQueue(scene.queue))
      expect(await scene.lease()).toEqual([])
      expect(await scene.start(held), 'what is held goes on').toMatchObject({ kind: 'started' })
      await put(scene.queue, { paused: true, maxConcurrent: 5 })
      const again = await store().read(findQueue(scene.queue))
      expect(again.settings?.paused_at, 'a pause keeps its beginning').toBe(settings?.paused_at)
      await put(scene.queue, { paused: false })
      expect(await scene.lease()).toHaveLength(1)
    })

    test('with a limit never has more held runs than that', async () => {
      const scene = new Scene(store())
      await put(scene.queue, { maxConcurrent: 3 })
      await scene.submitAll(Array.from({ length: 8 }, () => scene.item()))
      const first = await scene.leased({ startId: 's' })
      const rest = await store().write(
        leasesFor(['a', 'b', 'c'].map((workerId) => scene.leaseItem({ workerId, max: 5 }))),
      )
      expect(rest.map((leases) => leases.length)).toEqual([2, 0, 0])
      expect(await scene.lease({ kinds: [], max: 5 })).toEqual([])
      await scene.finish(first)
      expect(await scene.lease({ max: 5 })).toHaveLength(1)
      await put(scene.queue, { maxConcurrent: 1 })
      expect(await scene.lease(), 'the limit is passed already').toEqual([])
      await put(scene.queue, { maxConcurrent: null })
      expect(await scene.lease({ max: 9 })).toHaveLength(4)
    })

    test('keeps its own limit in a poll of several queues', async () => {
      const [scene, other] = [new Scene(store()), new Scene(store())]
      await put(scene.queue, { maxConcurrent: 1 })
      for (const each of [scene, other]) await each.submitAll([1, 2, 3].map(() => each.item()))
      const leases = await scene.lease({ queues: [scene.queue, other.queue], max: 9 })
      expect(leases.map(({ queue }) => queue)).toEqual([scene.queue, other.queue, other.queue, other.queue])
    })

    test('sets the times of jobs without their own', async () => {
      const scene = new Scene(store())
      await put(scene.queue, { leaseTtlSeconds: 600, continuationSeconds: 7 })
      await scene.submitted()
      await scene.submitted({ policy: { lease_ttl_seconds: 5 } })
      const [plain, own] = await scene.lease({ max: 2, startId: 's' })
      if (plain === undefined || own === undefined) throw new Error('There were two to lease')
      expect(plain).toMatchObject({ leaseTtlMs: 600_000, continuationMs: 7_000 })
      const lastsMs = async (runId: string) => {
        const run = await scene.run(runId)
        return integer(run, 'lease_expires_at') - integer(run, 'assigned_at')
      }
      expect(Math.round((await lastsMs(plain.runId)) / 1000)).toBe(600)
      expect(Math.round((await lastsMs(own.runId)) / 1000)).toBe(5)
      expect(await scene.heartbeat(plain)).toMatchObject({ leaseTtlMs: 600_000 })
      expect(await scene.heartbeat(own)).toMatchObject({ leaseTtlMs: 5_000 })
      expect(Math.round((await lastsMs(plain.runId)) / 1000)).toBe(600)
    })

    test('has counts of its work, and its changes are in the audit', async () => {
      const scene = new Scene(store())
      expect((await store().read(findQueue(scene.queue))).counts).toMatchObject({ ready: 0, oldest_ms: null })
      await put(scene.queue, { resultTtlSeconds: 60 })
      await put(scene.queue, { resultTtlSeconds: 60 })
      await scene.submitAll([scene.item(), scene.item(), scene.item({ delayMs: 60_000 })])
      await scene.leased()
      await scene.age(5_000)
      const { counts } = await store().read(findQueue(scene.queue))
      expect(counts).toMatchObject({ ready: 1, delayed: 1, running: 1 })
      expect(integer(counts, 'oldest_ms')).toBeGreaterThanOrEqual(5_000)
      const listed = (await store().read(findQueues(100_000, null))).rows.find(({ name }) => name === scene.queue)
      expect(listed).toMatchObject({ ready: 1, delayed: 1, running: 1, result_ttl_seconds: 60, paused_at: null })
      const audit = await sql(store(), 'SELECT actor, action FROM ichido.audit WHERE subject = $1', scene.queue)
      expect(audit, 'what changes nothing is not news').toEqual([{ actor: 'ann', action: 'queue.put' }])
    })

    test('a later setting does not change the times of a run that a worker holds', async () => {
      const scene = new Scene(store())
      await put(scene.queue, { leaseTtlSeconds: 600, continuationSeconds: 300 })
      await scene.submitted()
      const lease = await scene.leased({ startId: 's' })
      await put(scene.queue, { leaseTtlSeconds: 1, continuationSeconds: 1 })
      expect(await scene.heartbeat(lease)).toMatchObject({ kind: 'extended', leaseTtlMs: 600_000 })
      expect(await scene.run(lease.runId)).toMatchObject({ lease_ttl_ms: 600_000, continuation_ms: 300_000 })
      await sql(store(), 'UPDATE ichido.runs SET lease_expires_at = 0 WHERE id = $1', lease.runId)
      await (await Reaper.of(store())).tick()
      const run = await scene.run(lease.runId)
      expect(run).toMatchObject({ state: 'RUNNING', continuation_state: 'CONFIRMING' })
      expect(integer(run, 'continuation_check_deadline_at') - Date.now()).toBeGreaterThan(200_000)
    })

    test('has the lowest tag as its time, and after a lease the last leased tag', async () => {
      const scene = new Scene(store())
      const [place, other] = [{ queue: scene.queue, userId: scene.userId, priority: 0 }, unique('user')]
      const find = (userId: string) => store().read(findLastTags([{ ...place, userId }]))
      expect(await find(scene.userId)).toEqual([{ ...place, timeTag: 0, lastTag: 0 }])
      await scene.submitAll([
        scene.item({ kind: 'a', fairTag: 20 }),
        scene.item({ kind: 'a', fairTag: 10 }),
        scene.item({ kind: 'b', fairTag: 30, priority: 9 }),
        scene.item({ kind: 'b', fairTag: 25, delayMs: 60_000 }),
      ])
      expect(await find(scene.userId)).toEqual([{ ...place, timeTag: 10, lastTag: 20 }])
      expect(await find(other)).toEqual([{ ...place, userId: other, timeTag: 10, lastTag: 0 }])
      const time = { queue: scene.queue, priority: 0 }
      expect(await store().write(raiseQueueTimes([{ ...time, tag: 12 }]))).toEqual([{ ...time, tag: 12 }])
      expect(await store().write(raiseQueueTimes([{ ...time, tag: 11 }])), 'it never goes back').toEqual([
        { ...time, tag: 12 },
      ])
      expect(await find(other)).toEqual([{ ...place, userId: other, timeTag: 12, lastTag: 0 }])
    })
  })
}
