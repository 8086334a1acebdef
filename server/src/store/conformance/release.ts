import { v7 } from 'uuid'
import { describe, expect, test } from 'vitest'
import { failed, Scene } from '../../testing/store/scene.ts'
import { sql } from '../../testing/store/store.ts'
import { releaseBatch } from '../leasing/release-runs.ts'
import { storeLogs } from '../logs/run-logs.ts'
import { finishBatch } from '../runs/finish-runs.ts'
import type { Given } from './given.ts'
import { refused } from './runs.ts'

export function releaseConformance({ store }: Given): void {
  describe('release', () => {
    test('of an assigned run makes it ready again, in its old place', async () => {
      const scene = new Scene(store())
      const jobId = await scene.submitted({ fairTag: 1 })
      await scene.submitted({ fairTag: 2 })
      const lease = await scene.leased()
      expect(await scene.release(lease)).toEqual({
        kind: 'released',
        jobId,
        state: 'ORPHANED',
        queue: scene.queue,
        releasedIn: scene.queue,
        jobKind: 'work',
      })
      const before = await scene.run(lease.runId)
      expect(await scene.release(lease)).toEqual({ kind: 'repeated', jobId, state: 'ORPHANED', queue: null })
      expect(await scene.run(lease.runId)).toEqual(before)
      expect(await scene.start(lease)).toEqual(refused('LEASE_LOST'))
      expect(await scene.leased({ workerId: 'next' })).toMatchObject({ jobId, attempt: 2, retryCount: 0 })
      expect(await scene.release(lease)).toEqual(refused('LEASE_LOST'))
      expect(await scene.events(jobId)).toMatchObject([
        {},
        { state: 'ASSIGNED' },
        { state: 'ORPHANED', attempt: 1 },
        { state: 'ASSIGNED', attempt: 2 },
      ])
    })

    test('of a running run ends it, and its next run is due now and costs no retry', async () => {
      const scene = new Scene(store())
      const jobId = await scene.submitted({ policy: { max_attempts: 1 }, fairTag: 1 })
      await scene.submitted({ fairTag: 2 })
      const lease = await scene.leased({ startId: 's' })
      expect(await scene.release(lease)).toEqual({
        kind: 'released',
        jobId,
        state: 'FAILED',
        queue: scene.queue,
        releasedIn: scene.queue,
        jobKind: 'work',
      })
      expect(await scene.release(lease)).toMatchObject({ kind: 'repeated', state: 'FAILED' })
      expect(await scene.finish(lease)).toEqual(refused('OUTCOME_ALREADY_RECORDED'))
      const [first, second] = await scene.runs(jobId)
      expect(first).toMatchObject({ state: 'FAILED', error: expect.stringContaining('"RELEASED"') })
      expect(second).toMatchObject({ state: 'PENDING', retry_count: 0, fair_tag: first?.fair_tag })
      expect(await scene.leased()).toMatchObject({ jobId, attempt: 2, retryCount: 0 })
      expect(await sql(store(), 'SELECT * FROM ichido.dead_letters WHERE job_id = $1', jobId)).toEqual([])
    })

    test('of a run with a cancel request ends it CANCELED', async () => {
      const scene = new Scene(store())
      const lease = await scene.running()
      await scene.cancel(lease.jobId)
      expect(await scene.release(lease)).toMatchObject({ kind: 'released', state: 'CANCELED', queue: null })
      expect(await scene.runs(lease.jobId)).toHaveLength(1)
    })

    test('of several runs in a batch refuses only the worker without a lease', async () => {
      const scene = new Scene(store())
      const running = await scene.running()
      await scene.submitted()
      const assigned = await scene.leased()
      const unknown = v7()
      const items = [
        scene.releaseItem(running, { workerId: 'stranger' }),
        scene.releaseItem(assigned),
        scene.releaseItem(running),
        scene.releaseItem(running),
        scene.releaseItem(running, { jobId: unknown, leaseId: `${unknown}.x` }),
      ]
      expect(await store().write(releaseBatch(items))).toMatchObject([
        refused('LEASE_LOST'),
        { kind: 'released', state: 'ORPHANED' },
        { kind: 'released', state: 'FAILED' },
        { kind: 'repeated', state: 'FAILED' },
        refused('NOT_FOUND'),
      ])
    })
  })

  test('CONTINUATION_LOST ends a run that is CONFIRMING', async () => {
    const scene = new Scene(store())
    const lease = await scene.running()
    await sql(
      store(),
      `UPDATE ichido.runs SET continuation_state = 'CONFIRMING', continuation_check_deadline_at = now_ms() + 60000,
        lease_expires_at = now_ms() - 1 WHERE id = $1`,
      lease.runId,
    )
    const report = failed({ code: 'CONTINUATION_LOST', message: 'No answer in time' })
    expect(await store().write(finishBatch([scene.endItem(lease, report)]))).toMatchObject([
      { kind: 'recorded', state: 'FAILED', retryCount: 1, next: { due: false } },
    ])
    expect(await scene.run(lease.runId)).toMatchObject({ state: 'FAILED', continuation_state: 'NONE' })
  })

  test('a retry without a delay wakes its queue, and keeps its place', async () => {
    const scene = new Scene(store())
    const backoff = { baseSeconds: 0, capSeconds: 0, jitter: 0 }
    const lease = await scene.running({ policy: { backoff } })
    expect(await scene.fail(lease)).toMatchObject({ next: { due: true, queue: scene.queue }, retryCount: 1 })
    const [first, second] = await scene.runs(lease.jobId)
    expect(second?.fair_tag).toBe(first?.fair_tag)
    expect(await scene.leased()).toMatchObject({ jobId: lease.jobId })
  })

  describe('the log of a run', () => {
    const chunk = (n: number, text: string) => ({ n, stream: 'stdout' as const, text })

    test('gets each chunk of its holder once, and is cut at its limit', async () => {
      const scene = new Scene(store())
      const lease = await scene.running()
      const { jobId, runId, leaseId } = lease
      const append = (chunks: ReturnType<typeof chunk>[], changes: object = {}) =>
        store().write(storeLogs({ jobId, leaseId, workerId: scene.workerId, chunks, bytesMax: 10, ...changes }))
      expect(await append([chunk(0, 'abc'), chunk(0, 'abc')])).toMatchObject({ kind: 'stored', accepted: 1 })
      expect(await append([chunk(2, 'é'), chunk(1, '\u0000'), chunk(0, 'abc')])).toMatchObject({
        kind: 'stored',
        jobId: lease.jobId,
        accepted: 2,
      })
      expect(await append([chunk(3, 'ééé')])).toMatchObject({ kind: 'stored', accepted: 1 })
      expect(await append([chunk(4, 'more')])).toMatchObject({ kind: 'stored', accepted: 0 })
      const rows = await sql(
        store(),
        'SELECT chunk, end_bytes FROM ichido.run_logs WHERE run_id = $1 ORDER BY n',
        runId,
      )
      expect(rows).toEqual([
        { chunk: 'abc', end_bytes: 3 },
        { chunk: '\ufffd', end_bytes: 6 },
        { chunk: 'é', end_bytes: 8 },
        { chunk: 'é\n[The log is longer than 10 bytes; the rest is cut off.]\n', end_bytes: 10 },
      ])
      expect(await append([chunk(9, 'x')], { workerId: 'another' })).toEqual(refused('LEASE_LOST'))
      await scene.finish(lease)
      expect(await append([chunk(9, 'x')])).toEqual(refused('ALREADY_ENDED'))
    })
  })
}
