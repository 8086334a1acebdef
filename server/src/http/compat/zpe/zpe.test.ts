import { randomUUID } from 'node:crypto'
import type { JobDetail } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { LOCAL_ADMIN } from '../../../services/access/access.ts'
import { type TestApp, testApp } from '../../../testing/http/app.ts'
import { ageJob, FAILURE, JOB, RESULT, submitZpe, ZpeWorker } from '../../../testing/http/zpe.ts'
import { ENGINES } from '../../../testing/services/services.ts'

const UTC = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/

describe.each(ENGINES)('the front end of S1, on %s', (engine) => {
  let http: TestApp
  let worker: ZpeWorker
  beforeAll(async () => {
    http = await testApp(engine)
    worker = await ZpeWorker.register(http)
  })
  afterAll(() => http.close())

  const get = (jobId: string, rest = '') => http.call('GET', `/calc/zpe/jobs/${jobId}${rest}`)
  const status = async (jobId: string) => (await get(jobId)).body
  const detail = async (jobId: string) => (await http.call('GET', `/v1/jobs/${jobId}`)).body as JobDetail

  test('a calculation is queued, started and finished, and its result and files can be read', async () => {
    const submitted = await http.call('POST', '/calc/zpe/jobs', { body: JOB })
    const { job_id: jobId } = submitted.body as { job_id: string }
    expect(submitted).toMatchObject({ status: 200, body: { job_id: expect.stringMatching(/^[0-9a-f-]{36}$/) } })
    expect(Object.keys(submitted.body as object)).toEqual(['job_id'])
    expect(await status(jobId)).toEqual({ status: 'queued', detail: null, updated_at: expect.stringMatching(UTC) })
    for (const rest of ['/result', '/files?kind=summary', '/files?kind=freqs']) {
      expect(await get(jobId, rest)).toMatchObject({ status: 409, body: { error: { code: 'RESULT_NOT_READY' } } })
    }

    const lease = await worker.leased()
    expect(lease.job_id).toBe(jobId)
    expect(await status(jobId)).toEqual({ status: 'started', detail: null, updated_at: expect.stringMatching(UTC) })
    expect(await get(jobId, '/result')).toMatchObject({ status: 409 })

    await worker.result(jobId)
    expect(await status(jobId)).toEqual({ status: 'finished', detail: null, updated_at: expect.stringMatching(UTC) })
    const result = await get(jobId, '/result')
    expect(result.body).toEqual({ result: RESULT.result })
    const summary = await get(jobId, '/files?kind=summary')
    expect(summary).toMatchObject({ status: 200, text: RESULT.summary_text })
    expect(summary.headers['content-type']).toBe('text/plain; charset=utf-8')
    const freqs = await get(jobId, '/files?kind=freqs')
    expect(freqs).toMatchObject({ status: 200, text: RESULT.freqs_csv })
    expect(freqs.headers['content-type']).toBe('text/csv; charset=utf-8')
    const names = [summary, freqs].map(({ headers }) => headers['content-disposition'])
    expect(names[0]).toContain(`attachment; filename="zpe-${jobId}-summary.txt"`)
    expect(names[1]).toContain(`attachment; filename="zpe-${jobId}-freqs.csv"`)
    const native = (await http.call('GET', `/v1/jobs/${jobId}/result`)).body
    expect(native).toMatchObject({ state: 'SUCCEEDED', ...RESULT })
  })

  test('the worker gets the whole payload, also unknown fields', async () => {
    const body = { ...JOB, calc_mode: 'continue', use_environ: null, structure: { id: 7, tags: ['a', null] } }
    const jobId = await submitZpe(http, body)
    expect(await worker.leased()).toMatchObject({ job_id: jobId, payload: body })
    await worker.result(jobId)
    expect((await detail(jobId)).payload).toEqual(body)
  })

  test('a key makes one job, and is refused with another calculation', async () => {
    const headers = { 'idempotency-key': randomUUID() }
    const submit = (body: object) => http.call('POST', '/calc/zpe/jobs', { body, headers })
    const [first, again] = [await submit(JOB), await submit(Object.fromEntries(Object.entries(JOB).toReversed()))]
    expect(again.body).toEqual(first.body)
    expect([first, again].map((answer) => answer.headers['idempotent-replayed'])).toEqual([undefined, 'true'])
    const other = await submit({ ...JOB, mobile_indices: [1] })
    expect(other).toMatchObject({ status: 409, body: { error: { code: 'IDEMPOTENCY_KEY_REUSED' } } })
    const native = await http.call('POST', '/v1/jobs', { body: { kind: 'work' }, headers })
    expect(native.status).toBe(201)
    const { job_id: jobId } = await worker.leased()
    expect(first.body).toEqual({ job_id: jobId })
    await worker.result(jobId)
    expect((await worker.lease()).status).toBe(204)
  })

  test('a message that begins with its code does not repeat it', async () => {
    const jobId = await submitZpe(http)
    await worker.leased()
    await worker.failed(jobId, { error_code: 'ENOENT', error_message: 'ENOENT: no such file' })
    expect(await status(jobId)).toMatchObject({ detail: 'ENOENT: no such file' })
    await http.call('POST', `/v1/jobs/${jobId}/cancel`)
  })

  test('a failure is shown while the job waits for a retry, and at the end', async () => {
    const jobId = await submitZpe(http)
    const said = 'QE_RUNTIME_ERROR: pw.x exited with code 1'
    for (let retry = 1; retry <= 4; retry++) {
      await worker.leased()
      await worker.failed(jobId)
      expect(await status(jobId)).toMatchObject({ status: retry < 4 ? 'queued' : 'failed', detail: said })
      await ageJob(http.services.deps.store, jobId, 400_000)
    }
    expect(await get(jobId, '/result')).toMatchObject({
      status: 409,
      body: { error: { code: 'JOB_FAILED', details: { error: { code: FAILURE.error_code } } } },
    })
    expect((await get(jobId, '/files?kind=freqs')).status).toBe(409)

    expect((await http.call('POST', `/v1/jobs/${jobId}/retry`)).status).toBe(200)
    expect(await status(jobId)).toMatchObject({ status: 'queued', detail: said })
    expect((await worker.leased()).job_id).toBe(jobId)
    await worker.result(jobId)
    expect((await get(jobId, '/result')).body).toEqual({ result: RESULT.result })
  })

  test('a canceled calculation is failed', async () => {
    const jobId = await submitZpe(http)
    await http.call('POST', `/v1/jobs/${jobId}/cancel`)
    expect(await status(jobId)).toMatchObject({ status: 'failed', detail: 'The job was canceled' })
    expect((await worker.lease()).status).toBe(204)
  })

  test('a lease lasts an hour, or as long as the definition zpe sets', async () => {
    const jobId = await submitZpe(http)
    expect(await worker.leased()).toMatchObject({ job_id: jobId, lease_ttl_seconds: 3600 })
    await worker.result(jobId)
    const policy = { timeout_seconds: 7200.5, max_attempts: 2, continuation_seconds: 60 }
    await http.services.definitions.create(LOCAL_ADMIN, 'zpe', { kind: 'zpe', ...policy })
    const long = await submitZpe(http)
    expect(await worker.leased()).toMatchObject({ job_id: long, lease_ttl_seconds: 7201 })
    expect((await detail(long)).policy).toEqual({ ...policy, lease_ttl_seconds: 7201, continuation_seconds: 0 })
    await worker.result(long)
    await http.services.definitions.remove(LOCAL_ADMIN, 'zpe')
    await http.services.definitions.create(LOCAL_ADMIN, 'zpe', { kind: 'zpe', lease_ttl_seconds: 5400 })
    const leased = await submitZpe(http)
    expect(await worker.leased()).toMatchObject({ job_id: leased, lease_ttl_seconds: 5400 })
    await worker.result(leased)
    await http.services.definitions.remove(LOCAL_ADMIN, 'zpe')
  })

  test('a job of another kind is not found', async () => {
    const { body } = await http.call('POST', '/v1/jobs', { body: { kind: 'work', queue: 'zpe' } })
    const { job_id } = body as { job_id: string }
    for (const id of [job_id, randomUUID(), 'job-1']) {
      for (const rest of ['', '/result', '/files?kind=summary']) {
        expect(await get(id, rest)).toMatchObject({ status: 404, body: { error: { code: 'NOT_FOUND' } } })
      }
    }
    expect((await worker.lease()).status).toBe(204)
  })

  test('a calculation without files has no files', async () => {
    const body = { kind: 'zpe', queue: 'zpe', payload: JOB }
    const { job_id: jobId } = (await http.call('POST', '/v1/jobs', { body })).body as { job_id: string }
    const { lease_id } = await worker.leased()
    const report = { summaryText: null, freqsCsv: null, meta: null, costMicros: null }
    await http.services.runs.finish(worker.id, lease_id, { verb: 'finish', result: '{}', ...report })
    expect((await get(jobId, '/result')).body).toEqual({ result: {} })
    expect(await get(jobId, '/files?kind=summary')).toMatchObject({ status: 404 })
  })

  test.each([
    ['no content', { mobile_indices: [0] }, 'Missing required field: content'],
    ['no atoms', { content: 'x' }, 'Missing required field: mobile_indices'],
    ['an empty content', { ...JOB, content: '' }, 'content must not be empty'],
    ['an input without atoms', { ...JOB, content: '&CONTROL\n/\n' }, expect.stringMatching(/^content has no atoms: /)],
    [
      'a card without atoms',
      { ...JOB, content: 'ATOMIC_POSITIONS\nK_POINTS gamma\n' },
      expect.stringMatching(/^content/),
    ],
    ['a content that is no text', { ...JOB, content: 7 }, 'content must be a string'],
    ['no index', { ...JOB, mobile_indices: [] }, 'mobile_indices must have at least 1 entry'],
    [
      'an atom twice',
      { ...JOB, mobile_indices: [1, 0, 1] },
      'mobile_indices.2 names an atom that is in the list already',
    ],
    [
      'an atom that is not there',
      { ...JOB, mobile_indices: [0, 2] },
      'mobile_indices.1 must be less than 2, the number of atoms in content',
    ],
    ['indices that are no numbers', { ...JOB, mobile_indices: ['0'] }, 'mobile_indices.0 must be a number'],
    ['half an index', { ...JOB, mobile_indices: [0.5] }, 'mobile_indices.0 must be a whole number'],
    ['an unknown mode', { ...JOB, calc_mode: 'restart' }, 'calc_mode must be one of new, continue'],
    ['atoms that are none', { ...JOB, mobile_indices: [-1] }, 'mobile_indices.0 must be at least 0'],
    ['a flag that is none', { ...JOB, use_environ: 'yes' }, 'use_environ must be true or false'],
    ['a list', [], 'The body must be a JSON object'],
    ['broken JSON', '{"content":', expect.stringMatching(/JSON/)],
    ['nothing', undefined, 'Missing required field: content'],
  ])('refused: %s', async (_, body, message) => {
    const before = await http.call('GET', '/v1/stats')
    const answer = await http.call('POST', '/calc/zpe/jobs', { body })
    expect(answer).toMatchObject({ status: 400, body: { error: { code: 'INVALID_PAYLOAD', message } } })
    expect((await http.call('GET', '/v1/stats')).body).toEqual(before.body)
  })

  test('refused: a wrong media type, a large payload, an unknown file', async () => {
    const form = { body: 'content=x', headers: { 'content-type': 'application/x-www-form-urlencoded' } }
    expect(await http.call('POST', '/calc/zpe/jobs', form)).toMatchObject({ status: 415 })
    const large = { ...JOB, content: JOB.content + '!'.repeat(2 * 1024 * 1024) }
    expect(await http.call('POST', '/calc/zpe/jobs', { body: large })).toMatchObject({ status: 413 })
    const answer = await get(randomUUID(), '/files?kind=log')
    expect(answer).toMatchObject({ status: 400, body: { error: { details: { field: 'kind' } } } })
    expect(await get(randomUUID(), '/files')).toMatchObject({ status: 400 })
  })
})

describe.each(ENGINES)('limits and callers of compat/zpe on %s', (engine) => {
  let http: TestApp
  beforeAll(async () => {
    http = await testApp(engine)
  })
  afterAll(() => http.close())

  test('a full quota is a 409', async () => {
    await http.call('PUT', '/v1/quotas/local', { body: { max_concurrent: 1 } })
    await submitZpe(http)
    const answer = await http.call('POST', '/calc/zpe/jobs', { body: JOB })
    expect(answer).toMatchObject({ status: 409, body: { error: { code: 'QUOTA_EXCEEDED' } } })
  })

  test('each role may do what it should', async () => {
    const [admin, viewer, mine, other, operator] = [
      await http.token('root', 'admin'),
      await http.token('eve', 'viewer'),
      await http.token('ann', 'submitter'),
      await http.token('bob', 'submitter'),
      await http.token('oli', 'operator'),
    ]
    const submit = (token: string | undefined) =>
      http.call('POST', '/calc/zpe/jobs', { body: JOB, ...(token === undefined ? {} : { token }) })
    expect(await submit(undefined)).toMatchObject({ status: 401, body: { error: { code: 'UNAUTHENTICATED' } } })
    expect(await submit(viewer)).toMatchObject({ status: 403, body: { error: { code: 'FORBIDDEN' } } })
    const jobId = ((await submit(mine)).body as { job_id: string }).job_id
    const read = (token: string) => http.call('GET', `/calc/zpe/jobs/${jobId}`, { token })
    expect((await read(mine)).status).toBe(200)
    expect((await read(viewer)).status).toBe(200)
    expect((await read(other)).status).toBe(404)

    const enroll = (token: string) => http.call('POST', '/calc/zpe/compute/enroll-tokens', { token })
    expect((await enroll(mine)).status).toBe(403)
    const worker = await ZpeWorker.register(http, operator)
    expect((await submit(worker.token)).status).toBe(401)
    expect((await read(worker.token)).status).toBe(401)
    for (const token of [admin, mine]) expect((await worker.lease({ token })).status).toBe(401)
    const revoke = (token: string) => http.call('DELETE', `/calc/zpe/compute/servers/${worker.id}`, { token })
    expect((await revoke(mine)).status).toBe(403)
    expect((await revoke(worker.token)).status).toBe(401)
    expect((await revoke(operator)).status).toBe(200)
  })
})
