import { v7 } from 'uuid'
import { describe, expect, test } from 'vitest'
import { overhear } from '../../testing/http/overhear.ts'
import { integer } from '../../testing/store/rows.ts'
import { failed, finished, only, Scene } from '../../testing/store/scene.ts'
import { sql } from '../../testing/store/store.ts'
import { findResult } from '../jobs/read-jobs.ts'
import { heartbeatBatch } from '../leasing/heartbeat-runs.ts'
import { finishBatch } from '../runs/finish-runs.ts'
import { startBatch } from '../runs/start-runs.ts'
import type { Given } from './given.ts'

export function runConformance({ store }: Given): void {
  describe('start', () => {
    test('makes an assigned run RUNNING under the current leader, and repeats its answer', async () => {
      const scene = new Scene(store())
      const jobId = await scene.submitted()
      const lease = await scene.leased()
      const started = { jobId, version: 3, leaderEpoch: 1, attempt: 1 }
      const first = await scene.start(lease)
      const before = await scene.run(lease.runId)
      const waitedMs = integer(before, 'started_at') - integer(before, 'run_at')
      expect(first).toEqual({ kind: 'started', ...started, waitedMs, queue: scene.queue, jobKind: 'work' })
      expect(await scene.start(lease)).toEqual({ kind: 'repeated', ...started })
      expect(await scene.start(lease, { startId: 'another process' })).toEqual(refused('NOT_ASSIGNED'))
      expect(await scene.run(lease.runId)).toEqual(before)
      expect(await scene.events(jobId)).toHaveLength(3)
    })

    test('changes nothing for a wrong worker, lease, version or run', async () => {
      const scene = new Scene(store())
      await scene.submitted()
      const lease = await scene.leased()
      const before = await scene.run(lease.runId)
      expect(await scene.start(lease, { workerId: 'another' })).toEqual(refused('LEASE_LOST'))
      expect(await scene.start(lease, { leaseId: `${lease.jobId}.x` })).toEqual(refused('LEASE_LOST'))
      expect(await scene.start(lease, { version: lease.version - 1 })).toEqual(refused('VERSION_MISMATCH'))
      expect(await scene.start(lease, { jobId: v7() })).toEqual(refused('NOT_FOUND'))
      expect(await scene.run(lease.runId)).toEqual(before)
      expect(await scene.start(lease, { version: null })).toMatchObject({ kind: 'started' })
    })

    test('of the holder counts behind one of another worker in the same batch', async () => {
      const scene = new Scene(store())
      await scene.submitted()
      const lease = await scene.leased()
      const items = [
        scene.startItem(lease, { workerId: 'stranger' }),
        scene.startItem(lease, { version: 1, startId: 'an older process' }),
        scene.startItem(lease),
        scene.startItem(lease),
        scene.startItem(lease, { startId: 'another process' }),
      ]
      expect(await store().write(startBatch(items))).toMatchObject([
        refused('LEASE_LOST'),
        refused('NOT_ASSIGNED'),
        { kind: 'started', version: 3 },
        { kind: 'repeated', version: 3 },
        refused('NOT_ASSIGNED'),
      ])
    })
  })

  describe('heartbeat', () => {
    test('extends the lease of its holder, and keeps state and version', async () => {
      const scene = new Scene(store())
      const jobId = await scene.submitted()
      const lease = await scene.leased({ leaseTtlMs: 60_000 })
      await sql(
        store(),
        'UPDATE ichido.runs SET lease_expires_at = lease_expires_at - 59000 WHERE id = $1',
        lease.runId,
      )
      const before = await scene.run(lease.runId)
      const outcome = await scene.heartbeat(lease)
      const after = await scene.run(lease.runId)
      const leaseExpiresAtMs = integer(after, 'lease_expires_at')
      expect(outcome).toEqual({ kind: 'extended', leaseExpiresAtMs, leaseTtlMs: 60_000, cancelRequested: false })
      expect(integer(after, 'lease_expires_at')).toBeGreaterThanOrEqual(lease.leaseExpiresAtMs)
      expect(after).toEqual({ ...before, lease_expires_at: after.lease_expires_at })
      expect(await scene.start(lease), 'the version still holds').toMatchObject({ kind: 'started' })
      expect(await scene.events(jobId)).toHaveLength(3)
    })

    test('uses the lease time of the job', async () => {
      const scene = new Scene(store())
      const lease = await scene.running({ policy: { lease_ttl_seconds: 3_600 } })
      expect(await scene.heartbeat(lease)).toMatchObject({ kind: 'extended' })
      expect(integer(await scene.run(lease.runId), 'lease_expires_at')).toBeGreaterThanOrEqual(lease.leaseExpiresAtMs)
    })

    test('ends the state CONFIRMING', async () => {
      const scene = new Scene(store())
      const lease = await scene.running()
      const confirming = `UPDATE ichido.runs SET continuation_state = 'CONFIRMING', continuation_check_deadline_at = 1 WHERE id = $1`
      await sql(store(), confirming, lease.runId)
      await scene.heartbeat(lease)
      expect(await scene.run(lease.runId)).toMatchObject({
        continuation_state: 'NONE',
        continuation_check_deadline_at: null,
      })
    })

    test('tells the worker of a cancel request', async () => {
      const scene = new Scene(store())
      const lease = await scene.running()
      await scene.cancel(lease.jobId)
      expect(await scene.heartbeat(lease)).toMatchObject({ kind: 'extended', cancelRequested: true })
    })

    test('answers each worker of a batch', async () => {
      const scene = new Scene(store())
      const [a, b, c] = [await scene.running(), await scene.running(), await scene.running()]
      await scene.finish(c)
      const items = [
        scene.heartbeatItem(a),
        scene.heartbeatItem(a, { workerId: 'stranger' }),
        scene.heartbeatItem(b, { leaseId: `${b.jobId}.x` }),
        scene.heartbeatItem(b),
        scene.heartbeatItem(c),
        scene.heartbeatItem({ ...a, jobId: v7(), leaseId: 'none' }),
        scene.heartbeatItem(a),
      ]
      expect(await store().write(heartbeatBatch(items))).toMatchObject([
        { kind: 'extended' },
        refused('LEASE_LOST'),
        refused('LEASE_LOST'),
        { kind: 'extended' },
        refused('ALREADY_ENDED'),
        refused('NOT_FOUND'),
        { kind: 'extended' },
      ])
    })
  })

  describe('finish', () => {
    test('ends the run and keeps its result', async () => {
      const scene = new Scene(store())
      const lease = await scene.running()
      const report = finished({ summaryText: 's', freqsCsv: '1,2', meta: '{"at":1}', costMicros: 7 })
      const outcome = only(
        await store().write(finishBatch([scene.endItem(lease, report, { version: 2, leaderEpoch: 1 })])),
      )
      const nothing = { next: null, dead: false, retryCount: 0 }
      expect(outcome).toMatchObject({ kind: 'recorded', jobId: lease.jobId, state: 'SUCCEEDED', ...nothing })
      expect(await store().read(findResult(lease.jobId))).toMatchObject({
        state: 'SUCCEEDED',
        run_id: lease.runId,
        result: '{"ok":true}',
        summary_text: 's',
        freqs_csv: '1,2',
        meta: '{"at":1}',
        cost_micros: 7,
      })
      expect(await scene.run(lease.runId)).toMatchObject({
        state: 'SUCCEEDED',
        version: 3,
        latest: latest(true),
        error: null,
      })
      expect(await scene.events(lease.jobId)).toEqual([
        { state: 'PENDING' },
        { state: 'RUNNING', attempt: 1 },
        { state: 'SUCCEEDED', attempt: 1 },
      ])
    })

    test.each(['finish', 'fail'] as const)(
      '%s changes nothing for a wrong worker, lease, version, epoch or run',
      async (verb) => {
        const scene = new Scene(store())
        const lease = await scene.running()
        const before = await scene.run(lease.runId)
        expect(await scene[verb](lease, { workerId: 'another' })).toEqual(refused('LEASE_LOST'))
        expect(await scene[verb](lease, { leaseId: `${lease.jobId}.x` })).toEqual(refused('LEASE_LOST'))
        expect(await scene[verb](lease, { version: 1 })).toEqual(refused('VERSION_MISMATCH'))
        expect(await scene[verb](lease, { leaderEpoch: 2 })).toEqual(refused('EPOCH_MISMATCH'))
        expect(await scene[verb](lease, { jobId: v7() })).toEqual(refused('NOT_FOUND'))
        expect(await scene.run(lease.runId)).toEqual(before)
        expect(await scene[verb](lease, { version: 2, leaderEpoch: 1 })).toMatchObject({ kind: 'recorded' })
      },
    )

    test('compares the epoch of the start, not the current epoch', async () => {
      const scene = new Scene(store())
      const lease = await scene.running()
      await sql(store(), 'UPDATE ichido.runs SET leader_epoch = 4 WHERE id = $1', lease.runId)
      expect(await scene.finish(lease, { leaderEpoch: 1 })).toEqual(refused('EPOCH_MISMATCH'))
      expect(await scene.finish(lease, { leaderEpoch: 4 })).toMatchObject({ kind: 'recorded' })
    })

    test('repeats its answer to the same report, and refuses another report', async () => {
      const scene = new Scene(store())
      const lease = await scene.running()
      const item = scene.endItem(lease, finished({ meta: '{"at":1}' }))
      await store().write(finishBatch([item]))
      const before = await scene.run(lease.runId)
      const again = { ...item, report: finished({ meta: '{"at":2}' }), version: 2 }
      expect(await store().write(finishBatch([again]))).toEqual([
        { kind: 'repeated', jobId: lease.jobId, state: 'SUCCEEDED', next: null, dead: false, retryCount: 0 },
      ])
      expect(await scene.finish(lease, { outcomeHash: 'other' })).toEqual(refused('OUTCOME_ALREADY_RECORDED'))
      expect(await scene.fail(lease)).toEqual(refused('OUTCOME_ALREADY_RECORDED'))
      expect(await scene.finish(lease, { workerId: 'another' })).toEqual(refused('LEASE_LOST'))
      expect(await scene.run(lease.runId)).toEqual(before)
      expect(await store().read(findResult(lease.jobId))).toMatchObject({ meta: '{"at":1}' })
    })

    test('of the holder counts behind one of another worker in the same batch', async () => {
      const scene = new Scene(store())
      const lease = await scene.running()
      const items = [
        scene.endItem(lease, finished(), { workerId: 'stranger' }),
        scene.endItem(lease, failed(), { version: 1 }),
        scene.endItem(lease, finished()),
        scene.endItem(lease, finished()),
        scene.endItem(lease, failed()),
      ]
      expect(await store().write(finishBatch(items))).toMatchObject([
        refused('LEASE_LOST'),
        refused('OUTCOME_ALREADY_RECORDED'),
        { kind: 'recorded', state: 'SUCCEEDED' },
        { kind: 'repeated', state: 'SUCCEEDED' },
        refused('OUTCOME_ALREADY_RECORDED'),
      ])
    })

    test('of a large batch on one run takes few statements, and records the holder’s', async () => {
      const scene = new Scene(store())
      const lease = await scene.running()
      const strangers = (jobId: string) =>
        Array.from({ length: 100 }, (_, i) =>
          scene.endItem({ ...lease, jobId, leaseId: `${jobId}.${i}` }, finished(), { workerId: 'stranger' }),
        )
      const outdated = Array.from({ length: 100 }, (_, i) => scene.endItem(lease, finished(), { version: 100 + i }))
      const own = [scene.endItem(lease, finished()), scene.endItem(lease, finished()), scene.endItem(lease, failed())]
      const [around, unknown] = [strangers(lease.jobId), strangers(v7())]
      const statements: string[] = []
      const batch = finishBatch([...around, ...unknown, ...outdated, ...own, ...around.map((item) => ({ ...item }))])
      const outcomes = await store().write(overhear(batch, ({ statement }) => void statements.push(statement.name)))
      expect(statements.filter((name) => name === 'finish_runs')).toHaveLength(2)
      expect(statements.length).toBeLessThan(10)
      expect(outcomes.slice(0, 100)).toEqual(around.map(() => refused('LEASE_LOST')))
      expect(outcomes.slice(100, 200)).toEqual(unknown.map(() => refused('NOT_FOUND')))
      expect(outcomes.slice(200, 300)).toMatchObject(outdated.map(() => ({ kind: 'repeated' })))
      expect(outcomes.slice(300, 303)).toMatchObject([
        { kind: 'recorded', state: 'SUCCEEDED' },
        { kind: 'repeated' },
        refused('OUTCOME_ALREADY_RECORDED'),
      ])
      expect(outcomes.slice(303)).toEqual(around.map(() => refused('LEASE_LOST')))
    })

    test('before start is refused', async () => {
      const scene = new Scene(store())
      await scene.submitted()
      const lease = await scene.leased()
      expect(await scene.finish(lease)).toEqual(refused('NOT_STARTED'))
    })

    test('after a cancel request ends the run CANCELED, without result or retry', async () => {
      const scene = new Scene(store())
      for (const verb of ['finish', 'fail'] as const) {
        const lease = await scene.running()
        expect(await scene.cancel(lease.jobId)).toEqual({ kind: 'requested', workerId: scene.workerId })
        expect(await scene[verb](lease)).toMatchObject({ kind: 'recorded', state: 'CANCELED', next: null, dead: false })
        expect(await scene[verb](lease)).toMatchObject({ kind: 'repeated', state: 'CANCELED' })
        expect(await store().read(findResult(lease.jobId))).toMatchObject({ state: 'CANCELED', run_id: null })
        expect(await scene.runs(lease.jobId)).toHaveLength(1)
      }
    })
  })

  const latest = (value: boolean) => (store().engine === 'sqlite' ? Number(value) : value)
}

export const refused = (reason: string) => ({ kind: 'refused', reason })
