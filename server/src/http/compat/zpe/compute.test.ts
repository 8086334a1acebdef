import { randomUUID } from 'node:crypto'
import type { JobDetail } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { DEFAULT_LEASE_TTL_MS } from '../../../core/run/job.ts'
import { DEFAULT_LIMITS } from '../../../services/deps.ts'
import { type TestApp, testApp } from '../../../testing/http/app.ts'
import { ageJob, FAILURE, JOB, RESULT, submitZpe, type ZpeLease, ZpeWorker } from '../../../testing/http/zpe.ts'
import { Reaper } from '../../../testing/nodes/reaper.ts'
import { ENGINES } from '../../../testing/services/services.ts'
import { sql } from '../../../testing/store/store.ts'

const LEASE_LOST = { status: 409, body: { error: { code: 'LEASE_LOST' } } }

describe.each(ENGINES)('the workers of S1, on %s', (engine) => {
  let http: TestApp
  let worker: ZpeWorker
  beforeAll(async () => {
    http = await testApp(engine, { deps: { limits: { ...DEFAULT_LIMITS, resultBytesMax: 100_000 } } })
    worker = await ZpeWorker.register(http)
  })
  afterAll(() => http.close())

  const store = () => http.services.deps.store
  const detail = async (jobId: string) => (await http.call('GET', `/v1/jobs/${jobId}`)).body as JobDetail

  /** A new job that this worker holds. */
  async function given(holder: ZpeWorker = worker): Promise<ZpeLease> {
    const jobId = await submitZpe(http)
    const lease = await holder.leased()
    expect(lease.job_id).toBe(jobId)
    return lease
  }

  describe('lease', () => {
    test('accepts a body or none, and answers 204 without work', async () => {
      const form = 'application/x-www-form-urlencoded'
      const calls = [
        {},
        { body: '' },
        { body: {} },
        { body: { worker_id: worker.id, max_jobs: 1 } },
        { body: '', headers: { 'content-type': form } },
        { body: 'a=b', headers: { 'content-type': form } },
        { body: '{}', headers: { 'content-type': 'text/plain' } },
      ]
      for (const call of calls) {
        expect(await worker.lease(call)).toMatchObject({ status: 204, text: '' })
        const jobId = await submitZpe(http)
        expect(await worker.lease(call)).toMatchObject({ status: 200, body: { job_id: jobId } })
        await worker.result(jobId)
      }
      expect(await worker.lease({ body: '{"a":' })).toMatchObject({ status: 400 })
    })

    test('has the fields of S1, starts the run, and gives it once', async () => {
      const jobId = await submitZpe(http)
      const lease = await worker.leased()
      expect(lease).toEqual({ job_id: jobId, payload: JOB, lease_id: expect.any(String), lease_ttl_seconds: 3600 })
      expect((await worker.lease()).status).toBe(204)
      expect((await detail(jobId)).runs).toMatchObject([
        { state: 'RUNNING', assigned_worker_id: worker.id, attempt: 1 },
      ])
      await worker.result(jobId)
    })

    test('lets a job of three native lease times end on attempt 1', async () => {
      const { job_id, lease_id } = await given()
      const reaper = await Reaper.of(store())
      for (let i = 0; i < 3; i++) {
        await ageJob(store(), job_id, DEFAULT_LEASE_TTL_MS)
        reaper.pass(DEFAULT_LEASE_TTL_MS)
        await reaper.reap()
      }
      expect((await worker.lease()).status).toBe(204)
      expect(await worker.result(job_id, { ...RESULT, lease_id })).toMatchObject({ status: 200 })
      expect(await detail(job_id)).toMatchObject({ state: 'SUCCEEDED', attempt: 1, retry_count: 0 })
    })

    test('lasts as long as the queue sets, if the definition does not', async () => {
      await http.call('PUT', '/v1/queues/zpe', { body: { lease_ttl_seconds: 7200 } })
      const lease = await given()
      expect(lease.lease_ttl_seconds).toBe(7200)
      await worker.result(lease.job_id)
      await http.call('PUT', '/v1/queues/zpe', { body: { lease_ttl_seconds: null } })
    })
  })

  describe('result', () => {
    test('is idempotent regardless of meta, and a different one is refused', async () => {
      const { job_id, lease_id } = await given()
      const body = { lease_id, ...RESULT }
      expect(await worker.result(job_id, body)).toMatchObject({ status: 200, body: { ok: true, idempotent: false } })
      const later = { ...body, meta: { ...RESULT.meta, timestamp: '2026-11-16T01:00:00Z' } }
      for (const same of [body, later, { ...RESULT, meta: null }]) {
        expect((await worker.result(job_id, same)).body).toEqual({ ok: true, idempotent: true })
      }
      for (const change of [{ result: { zpe_ev: 1 } }, { summary_text: 'x' }, { freqs_csv: 'x' }]) {
        const answer = await worker.result(job_id, { ...body, ...change })
        expect(answer).toMatchObject({ status: 409, body: { error: { code: 'OUTCOME_ALREADY_RECORDED' } } })
      }
      expect((await worker.failed(job_id, { ...FAILURE, lease_id })).status).toBe(409)
      expect((await http.call('GET', `/v1/jobs/${job_id}/result`)).body).toMatchObject(RESULT)
    })

    test('accepts the lease in the body, in a header, or not at all', async () => {
      const first = await given()
      expect(await worker.result(first.job_id, { ...RESULT, lease_id: first.lease_id })).toMatchObject({ status: 200 })
      const second = await given()
      const headers = { 'X-Lease-Id': second.lease_id }
      expect(await worker.result(second.job_id, RESULT, headers)).toMatchObject({ status: 200 })
      const third = await given()
      expect(await worker.result(third.job_id, { ...RESULT, lease_id: null })).toMatchObject({ status: 200 })
      const fourth = await given()
      expect(await worker.failed(fourth.job_id, FAILURE, { 'X-Lease-Id': fourth.lease_id })).toMatchObject({
        status: 200,
      })
    })

    test('with a lease of another worker or job changes nothing', async () => {
      const other = await ZpeWorker.register(http)
      const mine = await given()
      const its = await given(other)
      const refused = [
        worker.result(its.job_id),
        worker.result(its.job_id, { ...RESULT, lease_id: its.lease_id }),
        worker.result(its.job_id, { ...RESULT, lease_id: mine.lease_id }),
        worker.result(mine.job_id, { ...RESULT, lease_id: its.lease_id }),
        worker.result(mine.job_id, { ...RESULT, lease_id: 'lease-1' }),
        worker.result(mine.job_id, RESULT, { 'X-Lease-Id': its.lease_id }),
        worker.failed(its.job_id),
        worker.failed(mine.job_id, { ...FAILURE, lease_id: its.lease_id }),
      ]
      for (const answer of await Promise.all(refused)) expect(answer).toMatchObject(LEASE_LOST)
      expect(await detail(mine.job_id)).toMatchObject({ state: 'RUNNING' })
      expect(await detail(its.job_id)).toMatchObject({ state: 'RUNNING' })
      await worker.result(mine.job_id)
      await other.result(its.job_id)
    })

    test('is refused for an unleased job, an unknown job and another kind', async () => {
      const waiting = await submitZpe(http)
      expect(await worker.result(waiting)).toMatchObject(LEASE_LOST)
      await http.call('POST', `/v1/jobs/${waiting}/cancel`)
      const native = (await http.call('POST', '/v1/jobs', { body: { kind: 'work' } })).body as { job_id: string }
      for (const id of [randomUUID(), 'job-1', native.job_id]) {
        expect(await worker.result(id)).toMatchObject({ status: 404, body: { error: { code: 'NOT_FOUND' } } })
        expect(await worker.failed(id)).toMatchObject({ status: 404 })
      }
    })

    test('is refused with the wrong field, and can be sent again', async () => {
      const { job_id } = await given()
      const { summary_text, ...without } = RESULT
      expect((await worker.result(job_id, without)).body).toEqual({
        error: {
          code: 'INVALID_PAYLOAD',
          message: 'Missing required field: summary_text',
          details: { field: 'summary_text' },
          request_id: expect.any(String),
        },
      })
      for (const [body, message] of [
        [{ ...RESULT, result: undefined }, 'Missing required field: result'],
        [{ ...RESULT, freqs_csv: undefined }, 'Missing required field: freqs_csv'],
        [{ ...RESULT, result: 'x' }, 'result must be a JSON object'],
        [{ ...RESULT, freqs_csv: [1] }, 'freqs_csv must be a string'],
        [{ ...RESULT, lease_id: 7 }, 'lease_id must be a string'],
      ] as const) {
        const answer = await worker.result(job_id, body)
        expect(answer).toMatchObject({ status: 400, body: { error: { code: 'INVALID_PAYLOAD', message } } })
      }
      const raw = (body: string | Buffer, headers = {}) => worker.call(`${job_id}/result`, { body, headers })
      expect(await raw(JSON.stringify(RESULT).replace('0.2672', 'NaN'))).toMatchObject({
        status: 400,
        body: { error: { message: 'result.zpe_ev is NaN, which JSON does not have; send null' } },
      })
      expect((await raw('{"result":')).status).toBe(400)
      expect((await raw(JSON.stringify(RESULT), { 'content-type': 'text/plain' })).status).toBe(415)
      expect((await worker.result(job_id, { ...RESULT, summary_text: 'x'.repeat(100_001) })).status).toBe(413)
      expect((await detail(job_id)).state).toBe('RUNNING')
      expect(await worker.result(job_id, { ...RESULT, summary_text })).toMatchObject({ status: 200 })
    })

    test('of a job with a cancel request is accepted, and the job ends canceled', async () => {
      const { job_id } = await given()
      await http.call('POST', `/v1/jobs/${job_id}/cancel`)
      expect(await worker.result(job_id)).toMatchObject({ status: 200, body: { ok: true } })
      expect((await detail(job_id)).state).toBe('CANCELED')
    })
  })

  describe('failed', () => {
    test('is retried after the backoff, and becomes a dead letter in the end', async () => {
      const jobId = await submitZpe(http)
      for (let retry = 1; retry <= 4; retry++) {
        const lease = await worker.leased()
        const body = { ...FAILURE, lease_id: lease.lease_id, traceback: 'Traceback …' }
        const answer = { ok: true, requeued: retry < 4, retry_count: retry }
        expect((await worker.failed(jobId, body)).body).toEqual(answer)
        expect((await worker.failed(jobId, body)).body).toEqual(answer)
        expect((await worker.failed(jobId, { ...body, error_message: 'other' })).status).toBe(409)
        expect((await worker.result(jobId, { ...RESULT, lease_id: lease.lease_id })).status).toBe(409)
        expect((await worker.lease()).status).toBe(204)
        const { runs } = await detail(jobId)
        if (retry < 4) {
          const delayMs = Date.parse(runs.at(-1)?.run_at ?? '') - Date.parse(runs.at(-1)?.created_at ?? '')
          const capMs = Math.min(300, 10 * 2 ** (retry - 1)) * 1000
          expect(delayMs).toBeGreaterThan(capMs * 0.8)
          expect(delayMs).toBeLessThanOrEqual(capMs)
        }
        await ageJob(store(), jobId, 400_000)
      }
      expect(await detail(jobId)).toMatchObject({ state: 'FAILED', retry_count: 3, attempt: 4 })
      const dead = await sql(
        store(),
        'SELECT error_code, retry_count FROM ichido.dead_letters WHERE job_id = $1',
        jobId,
      )
      expect(dead).toEqual([{ error_code: 'QE_RUNTIME_ERROR', retry_count: 4 }])
    })

    test('repeated without a lease_id is the same failure, even after reassignment', async () => {
      const { job_id } = await given()
      await worker.failed(job_id)
      await ageJob(store(), job_id, 400_000)
      const other = await ZpeWorker.register(http)
      expect((await other.leased()).job_id).toBe(job_id)
      expect((await worker.failed(job_id)).body).toEqual({ ok: true, requeued: true, retry_count: 1 })
      expect((await worker.result(job_id)).status).toBe(409)
      expect((await detail(job_id)).runs).toMatchObject([{ state: 'FAILED' }, { state: 'RUNNING' }])
      await other.result(job_id)
    })

    test('keeps the beginning of a long traceback', async () => {
      const { job_id } = await given()
      const body = { ...FAILURE, traceback: 't'.repeat(60_000) }
      expect((await worker.failed(job_id, body)).body).toEqual({ ok: true, requeued: true, retry_count: 1 })
      expect((await worker.failed(job_id, body)).body).toEqual({ ok: true, requeued: true, retry_count: 1 })
      const [run] = (await detail(job_id)).runs
      expect(run?.error).toMatchObject({ code: FAILURE.error_code, traceback: `${'t'.repeat(49_999)}…` })
    })

    test('that is not retryable makes a dead letter at once', async () => {
      const { job_id } = await given()
      expect((await worker.failed(job_id, { ...FAILURE, retryable: false })).body).toEqual({
        ok: true,
        requeued: false,
        retry_count: 1,
      })
      expect(await detail(job_id)).toMatchObject({ state: 'FAILED', attempt: 1 })
      const again = await given()
      expect(await worker.failed(again.job_id, { ...FAILURE, retryable: 'no' })).toMatchObject({
        status: 400,
        body: { error: { details: { field: 'retryable' } } },
      })
      expect((await worker.failed(again.job_id, { ...FAILURE, retryable: null })).body).toMatchObject({
        requeued: true,
      })
    })

    test('with a fatal code of its queue makes a dead letter at once', async () => {
      const { job_id } = await given()
      await http.call('PUT', '/v1/queues/zpe', { body: { fatal_error_codes: ['QE_INPUT_ERROR'] } })
      expect((await worker.failed(job_id)).body).toMatchObject({ requeued: true })
      const fatal = await given()
      const body = { ...FAILURE, error_code: 'QE_INPUT_ERROR', lease_id: fatal.lease_id }
      const answer = { ok: true, requeued: false, retry_count: 1 }
      for (let i = 0; i < 2; i++) expect((await worker.failed(fatal.job_id, body)).body).toEqual(answer)
      await http.call('PUT', '/v1/queues/zpe', { body: { fatal_error_codes: null } })
    })

    test('is refused with the missing field', async () => {
      const { job_id } = await given()
      expect(await worker.failed(job_id, { error_message: 'x' })).toMatchObject({
        status: 400,
        body: { error: { code: 'INVALID_PAYLOAD', message: 'Missing required field: error_code' } },
      })
      expect(await worker.failed(job_id, { ...FAILURE, traceback: null, other: 1 })).toMatchObject({ status: 200 })
    })
  })
})
