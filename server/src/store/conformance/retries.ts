import { describe, expect, test } from 'vitest'
import { Reaper } from '../../testing/nodes/reaper.ts'
import { integer } from '../../testing/store/rows.ts'
import { failed, only, Scene } from '../../testing/store/scene.ts'
import { sql } from '../../testing/store/store.ts'
import { finishBatch } from '../runs/finish-runs.ts'
import type { Row } from '../statement.ts'
import type { Given } from './given.ts'
import { refused } from './runs.ts'

export function retryConformance({ store }: Given): void {
  describe('fail', () => {
    test('with retries left makes the next run, due after the backoff', async () => {
      const scene = new Scene(store())
      const jobId = await scene.submitted({ priority: 3 })
      const lease = await scene.leased({ startId: 's' })
      const outcome = await scene.fail(lease)
      const [first, second] = await scene.runs(jobId)
      expect(outcome).toMatchObject({
        kind: 'recorded',
        jobId,
        state: 'FAILED',
        next: { runId: second?.id, runAtMs: second?.run_at, queue: scene.queue, due: false },
        dead: false,
        retryCount: 1,
      })
      expect(first).toMatchObject({ state: 'FAILED', error: '{"code":"BROKEN","message":"It broke"}' })
      expect([Boolean(first?.latest), Boolean(second?.latest)]).toEqual([false, true])
      expect(second).toMatchObject({ state: 'PENDING', run_no: 2, attempt: 1, retry_count: 1, version: 1, priority: 3 })
      expect(second).toMatchObject({ assigned_worker_id: null, lease_id: null, started_at: null, outcome_hash: null })
      expect(delaySeconds(second)).toBe(10)
      expect(await scene.lease()).toEqual([])

      await scene.age(10_001)
      const again = await scene.leased()
      expect(again).toMatchObject({ jobId, attempt: 2, retryCount: 1 })
      expect(await scene.fail(lease)).toMatchObject({ kind: 'repeated', state: 'FAILED' })
      await scene.start(again)
      await scene.finish(again)
      expect(await scene.events(jobId)).toEqual([
        { state: 'PENDING' },
        { state: 'RUNNING', attempt: 1 },
        { state: 'FAILED', attempt: 1 },
        { state: 'PENDING', attempt: 1 },
        { state: 'ASSIGNED', attempt: 2 },
        { state: 'RUNNING', attempt: 2 },
        { state: 'SUCCEEDED', attempt: 2 },
      ])
    })

    test('waits longer each time, and makes a dead letter after max_attempts', async () => {
      const scene = new Scene(store())
      const jobId = await scene.submitted()
      const delays = []
      for (let attempt = 1; attempt <= 4; attempt++) {
        const lease = await scene.leased({ startId: 's' })
        expect(lease).toMatchObject({ attempt, retryCount: attempt - 1 })
        const outcome = await scene.fail(lease)
        expect(outcome).toMatchObject({ state: 'FAILED', dead: attempt === 4 })
        if (attempt < 4) delays.push(delaySeconds((await scene.runs(jobId)).at(-1)))
        await scene.age(400_000)
      }
      expect(delays).toEqual([10, 20, 40])
      expect(await scene.lease()).toEqual([])
      expect(await deadLetter(jobId)).toMatchObject({ error_code: 'BROKEN', error_message: 'It broke', retry_count: 4 })
      expect(await scene.state(jobId)).toBe('FAILED')
    })

    test('follows the policy of the job', async () => {
      const scene = new Scene(store())
      const policy = { max_attempts: 2, backoff: { baseSeconds: 0, capSeconds: 0, jitter: 0 } }
      await scene.submitted({ policy })
      expect(await scene.fail(await scene.leased({ startId: 's' }))).toMatchObject({ dead: false })
      expect(await scene.fail(await scene.leased({ startId: 's' })), 'due at once').toMatchObject({ dead: true })
    })

    test('that is not retryable makes a dead letter', async () => {
      const scene = new Scene(store())
      const lease = await scene.running()
      const report = failed({ code: 'FATAL', message: 'No use', traceback: 'at …' }, false)
      const outcome = only(await store().write(finishBatch([scene.endItem(lease, report)])))
      expect(outcome).toMatchObject({ kind: 'recorded', state: 'FAILED', next: null, dead: true })
      expect(await deadLetter(lease.jobId)).toMatchObject({ error_code: 'FATAL', retry_count: 1, run_id: lease.runId })
    })

    test('is recorded whatever the text of its error', async () => {
      const scene = new Scene(store())
      const lease = await scene.running()
      const report = failed({ code: 'A\u0000B', message: 'NUL \u0000 and half \ud800 a pair' }, false)
      expect(await store().write(finishBatch([scene.endItem(lease, report)]))).toMatchObject([{ kind: 'recorded' }])
      expect(await deadLetter(lease.jobId)).toMatchObject({
        error_code: 'A\ufffdB',
        error_message: 'NUL \ufffd and half \ufffd a pair',
      })
    })

    test('of several runs in a batch has an outcome for each run', async () => {
      const scene = new Scene(store())
      const retried = await scene.running()
      const dead = await scene.running({ policy: { max_attempts: 1 } })
      const canceled = await scene.running()
      await scene.cancel(canceled.jobId)
      const outcomes = await store().write(
        finishBatch([canceled, dead, retried].map((lease) => scene.endItem(lease, failed()))),
      )
      expect(outcomes).toMatchObject([
        { state: 'CANCELED', next: null, dead: false },
        { state: 'FAILED', next: null, dead: true },
        { state: 'FAILED', next: { runId: expect.any(String) }, dead: false },
      ])
    })
  })

  describe('the reaper', () => {
    test('orphans an assigned run after its lease expired, for the next worker', async () => {
      const scene = new Scene(store())
      const reaper = await Reaper.of(store())
      const jobId = await scene.submitted()
      const lost = await scene.leased()
      await scene.age(59_000)
      await reaper.reap()
      expect(await scene.state(jobId)).toBe('ASSIGNED')
      await scene.age(2_000)
      await reaper.reap()
      expect(await scene.state(jobId)).toBe('ORPHANED')
      expect(await scene.heartbeat(lost)).toEqual(refused('LEASE_LOST'))
      expect(await scene.start(lost)).toEqual(refused('LEASE_LOST'))
      expect(await scene.leased()).toMatchObject({ jobId, attempt: 2 })
      expect(await scene.events(jobId)).toMatchObject([
        {},
        { state: 'ASSIGNED' },
        { state: 'ORPHANED' },
        { attempt: 2 },
      ])
    })

    test('ends a running run only after lease and continuation, and makes its next run', async () => {
      const scene = new Scene(store())
      const reaper = await Reaper.of(store())
      const lease = await scene.running()
      await scene.age(59_000)
      await reaper.reap()
      expect(await scene.run(lease.runId)).toMatchObject({ state: 'RUNNING', continuation_state: 'NONE' })
      await scene.age(2_000)
      await reaper.reap()
      expect(await scene.run(lease.runId)).toMatchObject({ state: 'RUNNING', continuation_state: 'CONFIRMING' })
      reaper.pass(59_000)
      await reaper.reap()
      expect(await scene.run(lease.runId)).toMatchObject({ state: 'RUNNING' })
      reaper.pass(1_000)
      await reaper.reap()
      const [lost, next] = await scene.runs(lease.jobId)
      expect(lost).toMatchObject({ state: 'TIMED_OUT', outcome_hash: null, continuation_state: 'NONE' })
      expect(next).toMatchObject({ state: 'PENDING', attempt: 1, retry_count: 1 })
      expect(await scene.finish(lease)).toEqual(refused('ALREADY_ENDED'))
    })

    test('uses the continuation time of the job', async () => {
      const scene = new Scene(store())
      const reaper = await Reaper.of(store())
      const lease = await scene.running({ policy: { continuation_seconds: 600, max_attempts: 1 } })
      await scene.age(61_000)
      await reaper.reapAll(599_000)
      expect(await scene.run(lease.runId)).toMatchObject({ state: 'RUNNING' })
      reaper.pass(1_000)
      await reaper.reap()
      expect(await scene.run(lease.runId)).toMatchObject({ state: 'TIMED_OUT' })
      expect(await deadLetter(lease.jobId)).toMatchObject({ error_code: 'WORKER_LOST' })
    })

    test('ends a run with a cancel request as CANCELED', async () => {
      const scene = new Scene(store())
      const reaper = await Reaper.of(store())
      const lease = await scene.running()
      await scene.cancel(lease.jobId)
      await reaper.reapAll(60_000)
      expect(await scene.state(lease.jobId)).toBe('CANCELED')
      expect(await scene.runs(lease.jobId)).toHaveLength(1)
    })
  })

  async function deadLetter(jobId: string) {
    return only(await sql(store(), 'SELECT * FROM ichido.dead_letters WHERE job_id = $1', jobId))
  }
}

/** The clock may go on between the two. */
function delaySeconds(run: Row | undefined): number {
  return Math.round((integer(run, 'run_at') - integer(run, 'created_at')) / 1000)
}
