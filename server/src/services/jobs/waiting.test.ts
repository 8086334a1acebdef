import { v7 } from 'uuid'
import { describe, expect, test } from 'vitest'
import { LOCAL_WORKER_PREFIX } from '../../core/run/job.ts'
import { EVERY_DEAD_LETTER } from '../../store/dead-letters/dead-letters.ts'
import { EVERY_JOB } from '../../store/jobs/list-jobs.ts'
import { setQuota } from '../../store/limits/quotas.ts'
import { callerOf, eachServices } from '../../testing/services/each-services.ts'
import { lead, redriver } from '../../testing/store/dead-letters.ts'
import { Scene } from '../../testing/store/scene.ts'
import { sql, unique } from '../../testing/store/store.ts'

const NO_SLOT = { maxConcurrent: 0, costLimitMicros: null, period: 'day' } as const

eachServices(({ services, submit }) => {
  const caller = callerOf('submitter')
  const admin = callerOf('admin')
  const why = async (jobId: string) => (await services().jobs.get(caller, jobId)).waiting_for
  const reason = async (jobId: string) => (await why(jobId))?.reason ?? null

  /** A poll without a wait. */
  const poll = (queue: string, kinds: string[] = [], workerId = `${LOCAL_WORKER_PREFIX}w`) =>
    services().runs.lease(workerId, { queues: [queue], kinds, max: 1, waitMs: 0, startId: 's' })

  describe('a job waits for', () => {
    test('a worker, until one polls its queue and kind', async () => {
      const queue = unique('q')
      const jobId = await submit(caller, { queue })
      expect(await why(jobId)).toMatchObject({
        reason: 'no_worker',
        command: `ichido workers enroll NAME --queue ${queue}`,
      })
      await poll(queue, ['other'])
      expect(await reason(jobId)).toBe('no_worker')
      await submit(caller, { queue, priority: 1 })
      expect(await poll(queue, ['work'])).toHaveLength(1)
      expect(await why(jobId)).toMatchObject({ reason: 'workers_busy', running: 1 })
      expect(await poll(queue)).toHaveLength(1)
      expect(await reason(jobId)).toBeNull()
    })

    test('a busy worker of another node, known by its leases', async () => {
      const queue = unique('q')
      const held = await submit(caller, { queue })
      const jobId = await submit(caller, { queue })
      const hold = `UPDATE ichido.runs SET state = 'RUNNING', assigned_worker_id = 'local-elsewhere', lease_id = 'l'
        WHERE job_id = $1`
      await sql(services().deps.store, hold, held)
      expect(await reason(jobId)).toBe('workers_busy')
    })

    test('a registered worker of the queue that was seen lately', async () => {
      const [mine, other] = [unique('q'), unique('q')]
      const [jobId, elsewhere] = [await submit(caller, { queue: mine }), await submit(caller, { queue: other })]
      const { enroll_token } = await services().workers.enroll(admin, { queues: [mine] })
      const worker = await services().workers.register({ enrollToken: enroll_token })
      expect([await reason(jobId), await reason(elsewhere)]).toEqual(['workers_busy', 'no_worker'])
      const seen = 'UPDATE ichido.workers SET last_seen_at = last_seen_at - $2 WHERE worker_id = $1'
      await sql(services().deps.store, seen, worker?.worker_id ?? '', 120_000)
      expect(await reason(jobId)).toBe('no_worker')
      await sql(services().deps.store, seen, worker?.worker_id ?? '', -120_000)
      expect(await reason(jobId)).toBe('workers_busy')
      await services().workers.revoke(admin, worker?.worker_id ?? '')
      expect(await reason(jobId)).toBe('no_worker')
    })

    test('a worker, after the only one was revoked', async () => {
      const queue = unique('q')
      for (let i = 0; i < 2; i++) await submit(caller, { queue })
      const { enroll_token } = await services().workers.enroll(admin, { queues: [queue] })
      const { worker_id = '' } = (await services().workers.register({ enrollToken: enroll_token })) ?? {}
      const [held] = await poll(queue, [], worker_id)
      const { data } = await services().jobs.list(caller, { ...EVERY_JOB, queue }, 9, null)
      const waiting = data.find(({ job_id }) => job_id !== held?.job_id)?.job_id ?? ''
      expect(await reason(waiting)).toBe('workers_busy')
      await services().workers.revoke(admin, worker_id)
      expect(await why(waiting)).toMatchObject({
        reason: 'no_worker',
        command: `ichido workers enroll NAME --queue ${queue}`,
      })
    })

    test('its run_at', async () => {
      const jobId = await submit(caller, { queue: unique('q'), delay_seconds: 3600 })
      const { run_at, waiting_for } = await services().jobs.get(caller, jobId)
      expect(waiting_for).toEqual({ reason: 'run_at', message: `Not due before ${run_at}`, run_at })
    })

    test('a paused queue', async () => {
      const queue = unique('q')
      const jobId = await submit(caller, { queue })
      await services().queues.put(admin, queue, { paused: true })
      expect(await why(jobId)).toMatchObject({ reason: 'paused', queue, since: expect.any(String) })
      await services().queues.put(admin, queue, { paused: false })
      expect(await reason(jobId)).toBe('no_worker')
    })

    test('a full queue', async () => {
      const queue = unique('q')
      await services().queues.put(admin, queue, { maxConcurrent: 1 })
      await submit(caller, { queue, priority: 1 })
      const jobId = await submit(caller, { queue })
      await poll(queue)
      expect(await why(jobId)).toMatchObject({ reason: 'limit', max_concurrent: 1, running: 1 })
    })

    test('its artifacts', async () => {
      const scene = new Scene(services().deps.store)
      const list = ['model.bin', 'data.csv'].map((name) => ({ artifactId: v7(), name, sha256: null, sizeBytes: null }))
      const jobId = await scene.submitted({ userId: caller.userId, artifacts: { uploadTtlMs: 60_000, list } })
      expect(await why(jobId)).toEqual({
        reason: 'artifacts',
        message: 'Waits for its artifacts: data.csv, model.bin',
        artifacts: ['data.csv', 'model.bin'],
      })
    })

    test('a slot of the quota, as a dead letter in a redrive', async () => {
      const { store } = services().deps
      const queue = unique('q')
      const jobId = await submit(caller, { queue })
      const [lease] = await poll(queue)
      const error = { code: 'BROKEN', message: 'It broke' }
      await services().runs.finish(`${LOCAL_WORKER_PREFIX}w`, lease?.lease_id ?? '', {
        verb: 'fail',
        error,
        retryable: false,
      })
      expect(await reason(jobId)).toBeNull()
      await services().deps.store.write(setQuota(caller.userId, NO_SLOT))
      const begun = await services().redrives.begin(caller, { jobIds: [jobId], filter: EVERY_DEAD_LETTER }, null)
      const tick = redriver(store, await lead(store))
      await tick()
      expect(await why(jobId)).toMatchObject({ reason: 'quota', redrive_id: begun.redrive_id })
      await services().redrives.abort(caller, begun.redrive_id)
      expect(await reason(jobId)).toBeNull()
    })
  })
})
