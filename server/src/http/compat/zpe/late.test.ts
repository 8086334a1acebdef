import type { ErrorBody, JobDetail } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { LOCAL_ADMIN } from '../../../services/access/access.ts'
import { type Answer, type TestApp, testApp } from '../../../testing/http/app.ts'
import { ageJob, FAILURE, JOB, RESULT, submitZpe, type ZpeLease, ZpeWorker } from '../../../testing/http/zpe.ts'
import { Reaper } from '../../../testing/nodes/reaper.ts'
import { ENGINES } from '../../../testing/services/services.ts'

const HOUR_MS = 3_600_000
const UTC = /\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z/

describe.each(ENGINES)('reports of S1 workers after their lease, on %s', (engine) => {
  let http: TestApp
  let worker: ZpeWorker
  let other: ZpeWorker
  let reaper: Reaper
  beforeAll(async () => {
    http = await testApp(engine)
    worker = await ZpeWorker.register(http)
    other = await ZpeWorker.register(http)
    reaper = await Reaper.of(store())
  })
  afterAll(() => http.close())

  const store = () => http.services.deps.store
  const detail = async (jobId: string) => (await http.call('GET', `/v1/jobs/${jobId}`)).body as JobDetail
  const status = async (jobId: string) => (await http.call('GET', `/calc/zpe/jobs/${jobId}`)).body
  const states = async (jobId: string) => (await detail(jobId)).runs.map(({ state }) => state)
  const errorOf = ({ body }: Answer) => (body as ErrorBody).error

  /** The lease has ended, and the leader has not looked yet. */
  async function overdue(): Promise<ZpeLease> {
    const jobId = await submitZpe(http)
    const lease = await worker.leased()
    await ageJob(store(), jobId, HOUR_MS + 1_000)
    return lease
  }

  /** The leader has ended the run, and the job waits for its next attempt. */
  async function lapsed(): Promise<ZpeLease> {
    const lease = await overdue()
    await reaper.reapAll()
    expect(await states(lease.job_id)).toEqual(['TIMED_OUT', 'PENDING'])
    return lease
  }

  test('a result counts before the leader marks the run, and while it is confirming', async () => {
    const unnoticed = await overdue()
    expect(await worker.result(unnoticed.job_id)).toMatchObject({ status: 200 })
    // A job of the native API has the native continuation time.
    const native = await http.call('POST', '/v1/jobs', { body: { kind: 'zpe', queue: 'zpe', payload: JOB } })
    const { job_id } = native.body as { job_id: string }
    await worker.leased()
    await ageJob(store(), job_id, HOUR_MS + 1_000)
    await reaper.tick()
    expect((await detail(job_id)).runs).toMatchObject([{ continuation_state: 'CONFIRMING' }])
    expect(await worker.result(job_id)).toMatchObject({ status: 200, body: { idempotent: false } })
    expect(await states(job_id)).toEqual(['SUCCEEDED'])
  })

  test('a result counts while the job waits for its next attempt, and may be repeated', async () => {
    const { job_id, lease_id } = await lapsed()
    const said = expect.stringMatching(/^No result came before the lease ended at .*; .*raise lease_ttl_seconds of/)
    expect(await status(job_id)).toMatchObject({ status: 'queued', detail: said })
    const body = { ...RESULT, lease_id }
    expect(await worker.result(job_id, body)).toMatchObject({ status: 200, body: { ok: true, idempotent: false } })
    for (const same of [body, RESULT]) {
      expect((await worker.result(job_id, same)).body).toEqual({ ok: true, idempotent: true })
    }
    const another = await worker.result(job_id, { ...body, result: { zpe_ev: 1 } })
    expect(errorOf(another).code).toBe('OUTCOME_ALREADY_RECORDED')
    expect(await states(job_id)).toEqual(['TIMED_OUT', 'SUCCEEDED'])
    expect(await status(job_id)).toMatchObject({ status: 'finished', detail: null })
    expect((await http.call('GET', `/calc/zpe/jobs/${job_id}/result`)).body).toEqual({ result: RESULT.result })
    expect((await other.lease()).status, 'nobody is handed the job again').toBe(204)
  })

  test('a late failure counts as one try', async () => {
    const { job_id, lease_id } = await lapsed()
    const answer = { ok: true, requeued: true, retry_count: 1 }
    for (let i = 0; i < 2; i++) expect((await worker.failed(job_id, { ...FAILURE, lease_id })).body).toEqual(answer)
    expect(await states(job_id)).toEqual(['TIMED_OUT', 'FAILED', 'PENDING'])
    expect(await status(job_id)).toMatchObject({ detail: 'QE_RUNTIME_ERROR: pw.x exited with code 1' })
    await http.call('POST', `/v1/jobs/${job_id}/cancel`)
  })

  test('after reassignment the report is refused, and the message says so', async () => {
    const { job_id, lease_id } = await lapsed()
    await ageJob(store(), job_id, 400_000)
    expect((await other.leased()).job_id).toBe(job_id)
    for (const said of [{ lease_id }, {}]) {
      const answer = await worker.result(job_id, { ...RESULT, ...said })
      expect(answer.status).toBe(409)
      expect(errorOf(answer)).toMatchObject({ code: 'LEASE_LOST', details: { state: 'RUNNING' } })
      expect(errorOf(answer).message.replace(UTC, 'T')).toBe(
        'The lease ended at T, and since then the job was handed to another worker, as attempt 2. ' +
          'If calculations take longer, raise lease_ttl_seconds of its queue or definition.',
      )
    }
    expect((await worker.failed(job_id, { ...FAILURE, lease_id })).status).toBe(409)
    expect(await states(job_id)).toEqual(['TIMED_OUT', 'RUNNING'])
    expect(await other.result(job_id)).toMatchObject({ body: { ok: true, idempotent: false } })
    const after = errorOf(await worker.result(job_id, { ...RESULT, lease_id }))
    expect(after.message).toMatch(/since then the job has ended SUCCEEDED, with attempt 2\./)
  })

  test('a worker that got the job again must report with its new lease', async () => {
    const { job_id, lease_id } = await lapsed()
    await ageJob(store(), job_id, 400_000)
    await worker.leased()
    const answer = await worker.result(job_id, { ...RESULT, lease_id })
    expect(errorOf(answer).message).toMatch(/the job was handed to this worker again, as attempt 2\./)
    expect(await worker.result(job_id)).toMatchObject({ status: 200 })
  })

  test('the refusal says if the job was canceled or is a dead letter', async () => {
    const canceled = await lapsed()
    await http.call('POST', `/v1/jobs/${canceled.job_id}/cancel`)
    expect(errorOf(await worker.result(canceled.job_id))).toMatchObject({
      code: 'ALREADY_ENDED',
      message: expect.stringContaining('since then the job was canceled'),
    })
    await http.services.definitions.create(LOCAL_ADMIN, 'zpe', { kind: 'zpe', max_attempts: 1 })
    const dead = await overdue()
    await reaper.reapAll()
    await http.services.definitions.remove(LOCAL_ADMIN, 'zpe')
    expect(errorOf(await worker.result(dead.job_id))).toMatchObject({
      code: 'ALREADY_ENDED',
      message: expect.stringContaining('since then the job has become a dead letter'),
    })
    expect(await status(dead.job_id)).toMatchObject({ status: 'failed', detail: expect.stringContaining('raise') })
  })

  test('a run beyond its timeout_seconds is refused, and the answer names that setting', async () => {
    const policy = { timeout_seconds: 10, lease_ttl_seconds: 7200 }
    await http.services.definitions.create(LOCAL_ADMIN, 'zpe', { kind: 'zpe', ...policy })
    const jobId = await submitZpe(http)
    const { lease_id } = await worker.leased()
    await http.services.definitions.remove(LOCAL_ADMIN, 'zpe')
    await ageJob(store(), jobId, 60_000)
    await reaper.reapAll()
    for (const said of [{ lease_id }, {}]) {
      expect(errorOf(await worker.result(jobId, { ...RESULT, ...said }))).toMatchObject({
        code: 'LEASE_LOST',
        message: expect.stringMatching(/^The run took longer than its timeout_seconds, .* raise timeout_seconds/),
      })
    }
    expect(await states(jobId)).toEqual(['TIMED_OUT', 'PENDING'])
    await http.call('POST', `/v1/jobs/${jobId}/cancel`)
  })

  test('a worker of the native API keeps the continuation rule', async () => {
    const { job_id, lease_id } = await lapsed()
    const answer = await http.call('POST', `/v1/leases/${lease_id}/result`, { body: {}, token: worker.token })
    expect(errorOf(answer).code).toBe('ALREADY_ENDED')
    expect(await states(job_id)).toEqual(['TIMED_OUT', 'PENDING'])
    await http.call('POST', `/v1/jobs/${job_id}/cancel`)
  })
})
