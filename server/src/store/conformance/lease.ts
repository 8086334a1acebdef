import { v7 } from 'uuid'
import { describe, expect, test } from 'vitest'
import { integer, text } from '../../testing/store/rows.ts'
import { leasesFor, Scene } from '../../testing/store/scene.ts'
import { sql } from '../../testing/store/store.ts'
import { PAYLOADS_BYTES_MAX } from '../leasing/lease-runs.sql.ts'
import { leaseBatch } from '../leasing/lease-runs.ts'
import { placeName } from '../leasing/leased.ts'
import { promoteDue } from '../leasing/promote-runs.ts'
import { putQueue } from '../leasing/queues.ts'
import type { Given } from './given.ts'

export function leaseConformance({ store }: Given): void {
  describe('lease', () => {
    test('leases a run with everything that its worker needs, and stores the lease', async () => {
      const scene = new Scene(store())
      const policy = { lease_ttl_seconds: 5, timeout_seconds: 9 }
      const jobId = await scene.submitted({ policy, traceparent: 't' })
      const lease = await scene.leased({ pollId: 'p' })
      const run = await scene.run(lease.runId)
      expect(lease).toEqual({
        runId: text(run, 'id'),
        workerId: scene.workerId,
        jobId,
        attempt: 1,
        retryCount: 0,
        version: 2,
        leaseId: expect.stringMatching(new RegExp(`^${lease.jobId}\\.[\\w-]{22}$`)),
        leaseExpiresAtMs: integer(run, 'lease_expires_at'),
        leaderEpoch: null,
        queue: scene.queue,
        kind: 'work',
        userId: scene.userId,
        priority: 0,
        fairTag: integer(run, 'fair_tag'),
        payload: '{"n":1}',
        policy,
        leaseTtlMs: 5_000,
        continuationMs: 60_000,
        traceparent: 't',
        artifacts: '[]',
        lastProgress: null,
        waitedMs: null,
      })
      expect(Math.round((lease.leaseExpiresAtMs - integer(run, 'assigned_at')) / 1000)).toBe(5)
      expect(run).toMatchObject({
        state: 'ASSIGNED',
        assigned_worker_id: scene.workerId,
        lease_id: lease.leaseId,
        poll_id: 'p',
        start_id: null,
        started_at: null,
      })
      expect(await scene.events(jobId)).toEqual([{ state: 'PENDING' }, { state: 'ASSIGNED', attempt: 1 }])
    })

    test('leases at least one run, and no more payloads than the maximum', async () => {
      const scene = new Scene(store())
      const payload = (bytes: number) => JSON.stringify('x'.repeat(bytes - 2))
      const sizes = [PAYLOADS_BYTES_MAX + 1, PAYLOADS_BYTES_MAX - 10, 10, 1, 1]
      await scene.submitAll(sizes.map((bytes) => scene.item({ payload: payload(Math.max(2, bytes)) })))
      const leased = async () => {
        const [leases = []] = await store().write(leasesFor([scene.leaseItem({ max: 10 })]))
        return leases.map(({ payload }) => payload.length)
      }
      expect(await leased()).toEqual([PAYLOADS_BYTES_MAX + 1])
      expect(await leased()).toEqual([PAYLOADS_BYTES_MAX - 10, 10])
      expect(await leased()).toEqual([2, 2])
    })

    test('leases no more payloads than the maximum to all polls of a batch', async () => {
      const scene = new Scene(store())
      const queues = ['a', 'b', 'c', 'd'].map((name) => `${scene.queue}-${name}`)
      const payload = JSON.stringify('x'.repeat(1_000_000))
      for (const queue of queues) {
        await scene.submitAll(Array.from({ length: 6 }, () => scene.item({ queue, payload })))
      }
      const counts = async (...maxes: number[]) => {
        const polls = maxes.map((max, i) => scene.leaseItem({ workerId: `w${i}`, queues, max }))
        return (await store().write(leasesFor(polls))).map(({ length }) => length)
      }
      expect(await counts(20)).toEqual([16])
      expect(await counts(20)).toEqual([8])
      await scene.submitAll(Array.from({ length: 20 }, () => scene.item({ queue: queues[0] ?? '', payload })))
      await scene.submitAll(Array.from({ length: 20 }, () => scene.item({ queue: queues[1] ?? '', payload })))
      expect(await counts(10, 10, 10)).toEqual([10, 6, 0])
      expect(await counts(2, 1, 9, 9), 'in the order of their queues').toEqual([2, 1, 9, 4])
    })

    test('can start its run', async () => {
      const scene = new Scene(store())
      const lease = await scene.running()
      expect(lease).toMatchObject({ version: 2, leaderEpoch: 1 })
      expect(await scene.run(lease.runId)).toMatchObject({ state: 'RUNNING', start_id: 'start', leader_epoch: 1 })
    })

    test('takes the highest priority first, then the oldest run', async () => {
      const scene = new Scene(store())
      const jobs = []
      for (const priority of [0, 5, -5, 5, 0]) jobs.push(await scene.submitted({ priority }))
      for (const i of [1, 3, 0, 4, 2]) expect((await scene.leased()).jobId).toBe(jobs[i])
      expect(await scene.lease()).toEqual([])
    })

    test('leases several runs in one order over all kinds of the poll', async () => {
      const scene = new Scene(store())
      const jobs: string[] = []
      for (const [kind, priority] of [
        ['a', 0],
        ['b', 9],
        ['c', 10],
        ['a', 9],
        ['b', 0],
      ] as const) {
        jobs.push(await scene.submitted({ kind, priority }))
      }
      const leases = await scene.lease({ kinds: ['b', 'a', 'absent'], max: 3 })
      expect(leases.map(({ jobId }) => jobs.indexOf(jobId))).toEqual([1, 3, 0])
      const rest = await scene.lease({ kinds: ['a', 'b'], max: 9 })
      expect(rest.map(({ jobId }) => jobs.indexOf(jobId))).toEqual([4])
      expect(await scene.lease({ kinds: [], max: 9 }), 'none named: any kind').toMatchObject([{ jobId: jobs[2] }])
      expect(await scene.lease({ kinds: [] })).toEqual([])
    })

    test('serves every kind in turn when a queue has more kinds than it scans together', async () => {
      const scene = new Scene(store())
      const kind = (i: number) => `tenant-${1_000 + i}`
      await scene.submitAll(Array.from({ length: 900 }, (_, i) => scene.item({ kind: kind(i) })))
      const turns = new Map<string, string>()
      // Also in a busy queue, whose scans go on from a place behind which there is work.
      const from = new Map([[placeName(scene.queue, []), { priority: 0, fairTag: 0 }]])
      const lease = async () => {
        const { leases, rotation } = await store().write(leaseBatch([scene.leaseItem({ kinds: [] })], from, turns))
        for (const [queue, last] of rotation) {
          if (last === null) turns.delete(queue)
          else turns.set(queue, last)
        }
        return leases[0]?.map((leased) => leased.kind)
      }
      expect(await lease()).toEqual([kind(0)])
      const urgent = [899, 799, 399, 398].map(kind)
      await scene.submitAll(urgent.map((kind, i) => scene.item({ kind, priority: 9 - i })))
      expect(await lease(), '400 to 799').toEqual([kind(799)])
      expect(await lease(), '800 to 899, and 1 to 300').toEqual([kind(899)])
      expect(await lease(), '301 to 700').toEqual([kind(399)])
      const limit = (maxConcurrent: number | null) =>
        store().write(putQueue(scene.queue, { maxConcurrent }, { id: v7(), actor: 'ann' }))
      await limit(4)
      expect(await lease(), 'no turn, for it is full').toEqual([])
      await limit(null)
      expect(await lease(), '701 to 899, and 1 to 201').toEqual([kind(1)])
      expect(await lease(), '202 to 601').toEqual([kind(398)])
      const cancel = `UPDATE ichido.runs SET state = 'CANCELED' WHERE queue = $1 AND kind > $2`
      await sql(store(), cancel, scene.queue, kind(300))
      expect(await lease(), 'all that are left').toEqual([kind(2)])
      expect(turns.size, 'nothing to go on from').toBe(0)
    })

    test('gives each run to one of the concurrent polls', async () => {
      const scene = new Scene(store())
      await scene.submitAll(Array.from({ length: 40 }, () => scene.item()))
      const batches = await Promise.all(
        Array.from({ length: 10 }, (_, i) =>
          store().write(leasesFor([1, 2, 3].map(() => scene.leaseItem({ workerId: `w${i}`, max: 2 })))),
        ),
      )
      const runs = batches.flat(2).map(({ runId }) => runId)
      expect(new Set(runs).size).toBe(runs.length)
      expect(runs).toHaveLength(40)
    })

    test('a lease that starts its run says how long the run waited, but not to a repeat', async () => {
      const scene = new Scene(store())
      await scene.submitted()
      await scene.age(90_000)
      const poll = scene.leaseItem({ pollId: 'p', named: true, startId: 's' })
      const [first] = await store().write(leasesFor([poll]))
      const run = await scene.run(first?.[0]?.runId ?? '')
      expect(first).toMatchObject([{ waitedMs: integer(run, 'started_at') - integer(run, 'run_at') }])
      expect(first?.[0]?.waitedMs).toBeGreaterThanOrEqual(90_000)
      expect(await store().write(leasesFor([poll]))).toMatchObject([[{ runId: run.id, waitedMs: null }]])
    })

    test('repeats its answer to a repeated poll', async () => {
      const scene = new Scene(store())
      for (let i = 0; i < 3; i++) await scene.submitted()
      const item = scene.leaseItem({ max: 2 })
      const [first] = await store().write(leasesFor([item]))
      const [again] = await store().write(leasesFor([{ ...item, token: 'another' }]))
      expect(again).toEqual(first)
      const [inOneBatch, twice] = await store().write(
        leasesFor([scene.leaseItem({ pollId: 'p' }), scene.leaseItem({ pollId: 'p' })]),
      )
      expect(inOneBatch).toHaveLength(1)
      expect(twice).toEqual(inOneBatch)
      const [other] = await store().write(leasesFor([{ ...item, workerId: 'another' }]))
      expect(other, 'a poll belongs to its worker').toEqual([])
    })

    test('does not lease a run before it is due', async () => {
      const scene = new Scene(store())
      await scene.submitted({ delayMs: 60_000 })
      const { nextInMs } = await store().write(promoteDue(100, []))
      expect(nextInMs).toBeLessThanOrEqual(60_000)
      expect(await scene.lease()).toEqual([])
      await scene.age(60_001)
      expect(await scene.lease()).toHaveLength(1)
    })

    test('leases an orphan as a new attempt under a new lease', async () => {
      const scene = new Scene(store())
      await scene.submitted()
      const lost = await scene.leased()
      await sql(store(), `UPDATE ichido.runs SET state = 'ORPHANED', version = version + 1 WHERE id = $1`, lost.runId)
      const taken = await scene.leased({ workerId: 'another' })
      expect(taken).toMatchObject({ runId: lost.runId, attempt: 2, retryCount: 0, version: 4 })
      expect(taken.leaseId).not.toBe(lost.leaseId)
      expect(await scene.start(lost)).toEqual({ kind: 'refused', reason: 'LEASE_LOST' })
    })
  })

  describe('promote', () => {
    test('moves up to the maximum, and returns the places of the runs', async () => {
      const scene = new Scene(store())
      await scene.submitAll([1, 2, 3].map(() => scene.item({ delayMs: 5_000 })))
      await sql(store(), 'UPDATE ichido.runs SET run_at = 1 WHERE user_id = $1', scene.userId)
      const place = { queue: scene.queue, userId: scene.userId, priority: 0 }
      expect(await store().write(promoteDue(2, []))).toMatchObject({
        promoted: [
          { ...place, fairTag: 1 },
          { ...place, fairTag: 2 },
        ],
        nextInMs: expect.any(Number),
      })
      expect(await store().write(promoteDue(2, []))).toMatchObject({ promoted: [{ ...place, fairTag: 3 }] })
      expect(await store().write(promoteDue(2, []))).toMatchObject({ promoted: [] })
      expect(await scene.lease({ max: 5 })).toHaveLength(3)
    })
  })
}
