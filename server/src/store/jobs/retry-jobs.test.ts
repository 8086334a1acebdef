import { v7 } from 'uuid'
import { describe, expect, test } from 'vitest'
import { letters, makeOneDead, retry } from '../../testing/store/dead-letters.ts'
import { removeKeys } from '../../testing/store/retention.ts'
import { finished, KEY_TTL_MS, only, Scene } from '../../testing/store/scene.ts'
import { eachEngine, sql } from '../../testing/store/store.ts'
import { setQuota } from '../limits/quotas.ts'
import type { Command } from '../port.ts'
import { finishBatch } from '../runs/finish-runs.ts'
import { findKeys } from '../submission/keys.ts'
import { retryJob } from './retry-jobs.ts'

eachEngine(({ store }) => {
  const newScene = () => new Scene(store())
  const write = <T>(command: Command<T>) => store().write(command)

  describe('a retry', () => {
    test('gives a dead letter a next run that is due now, with a fresh retry budget', async () => {
      const scene = newScene()
      const jobId = await makeOneDead(scene, { policy: { max_attempts: 2 } })
      expect(await letters(scene)).toHaveLength(1)
      expect(await write(retry(jobId))).toMatchObject({
        kind: 'retried',
        queue: scene.queue,
        parkedMs: expect.any(Number),
      })
      expect(await letters(scene)).toEqual([])
      const [first, next] = await scene.runs(jobId)
      expect(first).toMatchObject({ state: 'FAILED', retry_count: 0 })
      expect(Boolean(first?.latest)).toBe(false)
      expect(next).toMatchObject({ state: 'PENDING', retry_count: 0, attempt: 1, run_no: 2 })
      await scene.age(0)
      const again = await scene.leased({ startId: 'start' })
      expect(again).toMatchObject({ jobId, attempt: 2 })
      // Two may fail: the budget is that of a new job.
      expect(await scene.fail(again)).toMatchObject({ dead: false, next: { runAtMs: expect.any(Number) } })
      expect(await scene.events(jobId)).toMatchObject(
        ['PENDING', 'RUNNING', 'FAILED', 'PENDING', 'RUNNING', 'FAILED', 'PENDING'].map((state) => ({ state })),
      )
    })

    test('is in the audit with its actor', async () => {
      const scene = newScene()
      const jobId = await makeOneDead(scene)
      await write(retry(jobId))
      const rows = await sql(store(), 'SELECT * FROM ichido.audit WHERE subject = $1', jobId)
      expect(rows).toMatchObject([{ actor: 'tester', action: 'job.retry' }])
      expect(JSON.parse(String(only(rows).before))).toMatchObject({ state: 'FAILED' })
    })

    test('is refused unless the job has ended without success', async () => {
      const scene = newScene()
      const waiting = await scene.submitted()
      expect(await write(retry(waiting))).toMatchObject({ reason: 'NOT_ENDED', state: 'PENDING', canceling: false })
      const lease = await scene.leased({ startId: 'start' })
      expect(await write(retry(waiting))).toMatchObject({ reason: 'NOT_ENDED', state: 'RUNNING', canceling: false })
      expect(await scene.cancel(waiting)).toEqual({ kind: 'requested', workerId: scene.workerId })
      expect(await write(retry(waiting))).toMatchObject({ reason: 'NOT_ENDED', state: 'RUNNING', canceling: true })
      await scene.finish(lease)
      expect(await scene.state(waiting)).toBe('CANCELED')
      expect(await write(retry(waiting))).toMatchObject({ kind: 'retried', parkedMs: null })
      await scene.age(0)
      const done = await scene.leased({ startId: 'start' })
      await write(finishBatch([scene.endItem(done, finished())]))
      expect(await write(retry(waiting))).toMatchObject({ reason: 'ALREADY_ENDED', state: 'SUCCEEDED' })
      expect(await write(retry(v7()))).toMatchObject({ reason: 'NOT_FOUND' })
    })

    test('that runs again after an uncertain commit is in the audit once', async () => {
      const scene = newScene()
      const jobId = await makeOneDead(scene)
      const command = retryJob({ jobId, nextRunId: v7() }, 'tester', v7(), [])
      await write(command)
      const again = { name: command.name, work: () => command.work(true) }
      expect(await write(again)).toMatchObject({ kind: 'retried' })
      expect(await scene.runs(jobId)).toHaveLength(2)
      expect(await sql(store(), 'SELECT * FROM ichido.audit WHERE subject = $1', jobId)).toHaveLength(1)
    })

    test('takes a slot of the quota like a submit', async () => {
      const scene = newScene()
      const dead = [await makeOneDead(scene), await makeOneDead(scene)]
      await write(setQuota(scene.userId, { maxConcurrent: 1, costLimitMicros: null, period: 'day' }))
      expect(await write(retry(dead[0] ?? ''))).toMatchObject({ kind: 'retried' })
      expect(await write(retry(dead[1] ?? ''))).toMatchObject({
        kind: 'refused',
        reason: 'QUOTA_EXCEEDED',
        message: 'Quota exceeded: Maximum 1 concurrent jobs allowed',
      })
      expect(await scene.submit()).toMatchObject({ kind: 'refused' })
      expect(await letters(scene)).toMatchObject([{ job_id: dead[1] }])
    })

    test('charges only an estimate that was given back', async () => {
      const scene = newScene()
      await write(setQuota(scene.userId, { maxConcurrent: null, costLimitMicros: 10, period: 'day' }))
      const spent = async () => {
        const counter = `SELECT spent_micros FROM ichido.cost_counters WHERE user_id = $1 AND period = 'day'`
        return Number(only(await sql(store(), counter, scene.userId)).spent_micros)
      }
      const failed = await makeOneDead(scene, { estimatedCostMicros: 6 })
      expect(await spent()).toBe(6)
      await write(retry(failed))
      expect(await spent()).toBe(6)
      const canceled = await scene.submitted({ estimatedCostMicros: 4 })
      await scene.cancel(canceled)
      expect(await spent()).toBe(6)
      await write(retry(canceled))
      expect(await spent()).toBe(10)
      await scene.cancel(canceled)
      expect(await spent(), 'it has still not started').toBe(6)
      await write(retry(canceled))
      expect(await spent()).toBe(10)
      const dear = await scene.submit({ estimatedCostMicros: 1 })
      expect(dear).toMatchObject({ refusal: { code: 'COST_LIMIT_EXCEEDED' } })
    })
  })

  test('a job that was canceled before its upload waits for the upload again', async () => {
    const scene = newScene()
    const list = [{ artifactId: v7(), name: 'input', sha256: null, sizeBytes: null }]
    const jobId = await scene.submitted({ artifacts: { uploadTtlMs: 60_000, list } })
    await scene.cancel(jobId)
    await write(retry(jobId))
    await scene.age(0)
    expect(await scene.lease()).toEqual([])
    const next = only((await scene.runs(jobId)).slice(1))
    expect(next.fair_tag).toBeNull()
    expect(await sql(store(), 'SELECT job_id FROM ichido.upload_waits WHERE job_id = $1', jobId)).toEqual([
      { job_id: jobId },
    ])
  })

  describe('the key of a job that is retried', () => {
    const stored = (scene: Scene) => store().read(findKeys('k', scene.userId))

    test('that still names the job is renewed', async () => {
      const scene = newScene()
      const jobId = await makeOneDead(scene, { key: 'k' })
      await scene.age(KEY_TTL_MS + 1)
      await write(retry(jobId))
      expect(only(await stored(scene)).expiresAtMs).toBeGreaterThan(Date.now() + KEY_TTL_MS)
      await write(removeKeys(1_000))
      expect(await scene.submit({ key: 'k' })).toMatchObject({ kind: 'replayed', jobId })
    })

    test('that was removed is restored with its first answer', async () => {
      const scene = newScene()
      const jobId = await makeOneDead(scene, { key: 'k' })
      const [before] = await stored(scene)
      await scene.age(KEY_TTL_MS + 1)
      await write(removeKeys(1_000))
      expect(await stored(scene)).toEqual([])
      await write(retry(jobId))
      expect(await stored(scene)).toMatchObject([{ jobId, requestHash: before?.requestHash, active: true }])
      expect(await scene.submit({ key: 'k' })).toMatchObject({ kind: 'replayed', jobId })
      expect(await sql(store(), 'SELECT * FROM ichido.expired_keys WHERE job_id = $1', jobId)).toEqual([])
    })

    test('that names another job by now refuses the retry', async () => {
      const scene = newScene()
      const jobId = await makeOneDead(scene, { key: 'k' })
      await scene.age(KEY_TTL_MS + 1)
      const other = await scene.submitted({ key: 'k' })
      expect(await write(retry(jobId))).toMatchObject({ reason: 'KEY_TAKEN', key: 'k', byJobId: other })
      expect(await letters(scene)).toHaveLength(1)
      // Also when that job has ended, until its key's time is up; then it is the first one's again.
      await scene.cancel(other)
      expect(await write(retry(jobId))).toMatchObject({ reason: 'KEY_TAKEN', byJobId: other })
      await scene.age(KEY_TTL_MS + 1)
      expect(await write(retry(jobId))).toMatchObject({ kind: 'retried' })
      expect(await stored(scene)).toMatchObject([{ jobId }])
      expect(await write(retry(other))).toMatchObject({ reason: 'KEY_TAKEN', byJobId: jobId })
    })

    test('is not remembered for a job that succeeded', async () => {
      const scene = newScene()
      const lease = await scene.running({ key: 'k' })
      await scene.finish(lease)
      await scene.age(KEY_TTL_MS + 1)
      await write(removeKeys(1_000))
      expect(await sql(store(), 'SELECT * FROM ichido.expired_keys WHERE job_id = $1', lease.jobId)).toEqual([])
    })
  })
})
