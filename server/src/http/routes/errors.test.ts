import { ERRORS, type ErrorBody, type SubmitResponse } from '@ichido/sdk/protocol'
import pino from 'pino'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { StoreUnavailable } from '../../core/node/store-errors.ts'
import { realWorld } from '../../node/world.ts'
import type { Store } from '../../store/port.ts'
import { type Answer, type TestApp, testApp } from '../../testing/http/app.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { testStore } from '../../testing/store/store.ts'

const errorOf = ({ body }: Answer) => (body as ErrorBody).error

let open: TestApp | undefined
afterEach(async () => {
  await open?.close()
  open = undefined
})

describe('request ids', () => {
  let http: TestApp
  beforeAll(async () => {
    http = await testApp('sqlite')
  })
  afterAll(() => http.close())

  test.each(['abc-123', 'x'.repeat(128), 'a/b:c=d;e'])('%s is echoed, in errors too', async (id) => {
    const headers = { 'x-request-id': id }
    expect((await http.call('GET', '/healthz', { headers })).headers['x-request-id']).toBe(id)
    expect(errorOf(await http.call('GET', '/nothing', { headers })).request_id).toBe(id)
  })

  test.each(['', 'x'.repeat(129), 'a b', 'a\tb', 'é'])('%j is replaced by a new id', async (id) => {
    const { headers } = await http.call('GET', '/healthz', { headers: { 'x-request-id': id } })
    expect(headers['x-request-id']).toMatch(/^[0-9a-f-]{36}$/)
  })
})

describe('errors', () => {
  const failing = (error: Error) => ({
    alter: (services: TestApp['services']) => ({
      ...services,
      jobs: { ...services.jobs, list: () => Promise.reject(error) },
    }),
  })

  test('an outage of the store is 503, and the request can be repeated', async () => {
    open = await testApp('sqlite', failing(new StoreUnavailable('password of db.internal was wrong')))
    const answer = await open.call('GET', '/v1/jobs')
    expect(answer).toMatchObject({ status: 503, headers: { 'retry-after': '1', 'should-retry': 'true' } })
    expect(errorOf(answer)).toMatchObject({ code: 'UNAVAILABLE', message: ERRORS.UNAVAILABLE.sentence })
  })

  test('an unexpected error is a 500 without details, logged by request id', async () => {
    const lines: string[] = []
    const logger = pino({ level: 'info' }, { write: (line: string) => void lines.push(line) })
    open = await testApp('sqlite', { ...failing(new TypeError('the secret inside')), logger })
    const answer = await open.call('GET', '/v1/jobs')
    expect(answer).toMatchObject({ status: 500, headers: { 'should-retry': 'true' } })
    expect(errorOf(answer)).toEqual({
      code: 'INTERNAL',
      message: ERRORS.INTERNAL.sentence,
      details: {},
      request_id: answer.headers['x-request-id'],
    })
    expect(lines).toHaveLength(1)
    expect(JSON.parse(lines[0] ?? '')).toMatchObject({
      requestId: answer.headers['x-request-id'],
      path: '/v1/jobs',
      err: { message: 'the secret inside', stack: expect.stringContaining('errors.test.ts') },
    })
  })

  test('a route without an ability refuses everybody', async () => {
    open = await testApp('sqlite')
    open.app.get('/forgotten', () => 'the secret inside')
    expect(errorOf(await open.call('GET', '/forgotten')).code).toBe('INTERNAL')
  })

  test('a refusal is logged at info without its query, and a success is not', async () => {
    const lines: object[] = []
    const logger = pino({ level: 'info' }, { write: (line: string) => void lines.push(JSON.parse(line)) })
    open = await testApp('sqlite', { logger })
    await open.call('POST', '/v1/jobs', { body: { kind: 'work' } })
    const bad = await open.call('POST', '/v1/jobs', { body: {} })
    await open.call('GET', '/v1/nothing?stream_token=secret')
    await open.token('ann', 'viewer')
    await open.call('GET', '/v1/jobs', { token: 'wrong' })
    expect(lines).toMatchObject([
      {
        requestId: bad.headers['x-request-id'],
        method: 'POST',
        path: '/v1/jobs',
        code: 'INVALID_PAYLOAD',
        from: '127.0.0.1',
      },
      { path: '/v1/nothing', code: 'NOT_FOUND', why: 'There is no GET /v1/nothing' },
      { path: '/v1/jobs', code: 'UNAUTHENTICATED' },
    ])
    expect(JSON.stringify(lines)).not.toContain('secret')
    logger.level = 'warn'
    await open.call('GET', '/v1/nothing')
    expect(lines).toHaveLength(3)
  })
})

describe('readiness', () => {
  test('a failing store is named, and the process stays up', async () => {
    open = await testApp('sqlite', {
      alter: (services) => ({
        ...services,
        deps: {
          ...services.deps,
          store: { ...services.deps.store, health: () => Promise.reject(new Error('secret')) },
        },
      }),
    })
    const answer = await open.call('GET', '/readyz')
    expect(answer).toMatchObject({ status: 503 })
    expect(answer.body).toEqual({ status: 'not ready', checks: { store: 'cannot be reached', server: 'ok' } })
    expect(await open.call('GET', '/healthz')).toMatchObject({ status: 200, body: { status: 'ok' } })
  })

  test('readiness does not wait for a silent store', async () => {
    const world = { ...realWorld, after: (_ms: number, callback: () => void) => realWorld.after(0, callback) }
    open = await testApp('sqlite', {
      alter: (services) => ({
        ...services,
        deps: { ...services.deps, world, store: { ...services.deps.store, health: () => new Promise(() => {}) } },
      }),
    })
    expect(await open.call('GET', '/readyz')).toMatchObject({
      status: 503,
      body: { checks: { store: 'does not answer' } },
    })
  })
})

describe('metrics without a store', () => {
  /** The behaviour of the store. */
  let asked: <T>(answer: () => Promise<T>) => Promise<T>
  let looked: typeof asked
  let reads: number
  /** The duration of each wait. */
  let waitsMs: number[]
  async function start(): Promise<TestApp> {
    asked = (answer) => answer()
    looked = (answer) => answer()
    reads = 0
    waitsMs = []
    const { store, close } = await testStore('sqlite')
    const read: Store['read'] = (command) => {
      reads++
      return asked(() => store.read(command))
    }
    const health: Store['health'] = () => looked(() => store.health())
    const after = (ms: number, callback: () => void) => {
      waitsMs.push(ms)
      return realWorld.after(0, callback)
    }
    const world = { ...realWorld, after }
    open = await testApp('sqlite', { opened: { store: { ...store, read, health }, remove: close }, deps: { world } })
    return open
  }
  const gone = () => Promise.reject(new StoreUnavailable('away'))
  const silent = () => new Promise<never>(() => {})

  test.each([
    ['cannot be reached', gone],
    ['does not answer', silent],
  ])('in open mode, if it %s, have the numbers of the process', async (_, away) => {
    const { call } = await start()
    expect((await call('GET', '/metrics')).text).toContain('ichido_jobs{')
    asked = away
    const answer = await call('GET', '/metrics')
    expect(answer.status).toBe(200)
    expect(answer.text).toContain('ichido_http_request_seconds_count{')
    expect(answer.text).not.toContain('ichido_jobs{')
  })

  test.each([
    ['cannot be reached', gone],
    ['does not answer', silent],
  ])('do not read a store that is known to be down, because it %s', async (_, away) => {
    const { call } = await start()
    expect((await call('GET', '/metrics')).text).toMatch(/^ichido_store_up 1$/m)
    asked = away
    looked = away
    expect(await call('GET', '/readyz')).toMatchObject({ status: 503 })
    reads = 0
    waitsMs = []
    const { status, text } = await call('GET', '/metrics')
    expect(status).toBe(200)
    expect(text).toMatch(/^ichido_store_up 0$/m)
    expect(text).not.toMatch(/^ichido_(jobs|workers|queue_ready|schedules_overdue)\b/m)
    expect(reads).toBe(0)
    // Each call waits briefly for the shared check, which continues without it.
    expect(waitsMs.filter((ms) => ms < 2_000)).toEqual([100, 100])
  })

  test('accept callers that were accepted before, on no other route', async () => {
    const { call, token } = await start()
    const [viewer, submitter, unseen] = [
      await token('ann', 'viewer'),
      await token('bob', 'submitter'),
      await token('eve', 'viewer'),
    ]
    expect(await call('GET', '/metrics', { token: viewer })).toMatchObject({ status: 200 })
    expect(await call('GET', '/metrics', { token: submitter })).toMatchObject({ status: 403 })
    asked = gone
    expect(await call('GET', '/metrics', { token: viewer })).toMatchObject({ status: 200 })
    expect(await call('GET', '/metrics', { token: submitter })).toMatchObject({ status: 403 })
    expect(await call('GET', '/metrics', { token: unseen })).toMatchObject({ status: 503 })
    expect(await call('GET', '/metrics')).toMatchObject({ status: 401 })
    expect(await call('GET', '/v1/jobs', { token: viewer })).toMatchObject({ status: 503 })
  })
})

describe.each(ENGINES)('on %s', (engine) => {
  let http: TestApp
  beforeAll(async () => {
    http = await testApp(engine)
  })
  afterAll(() => http.close())

  const submit = (body: object) => http.call('POST', '/v1/jobs', { body })

  /** The value of a series of /metrics, by its name and labels. */
  async function metric(series: string): Promise<number | undefined> {
    const { text } = await http.call('GET', '/metrics')
    const line = text.split('\n').find((candidate) => candidate.startsWith(`${series} `))
    return line === undefined ? undefined : Number(line.slice(series.length + 1))
  }

  test('is ready when the store answers', async () => {
    expect(await http.call('GET', '/readyz')).toMatchObject({
      status: 200,
      body: { status: 'ready', checks: { store: 'ok', server: 'ok' } },
    })
  })

  test('metrics count submits, keys, refusals, reservations, batches, requests and jobs', async () => {
    await submit({ kind: 'work' })
    await submit({ kind: 'work', idempotency_key: 'k' })
    await submit({ kind: 'work', idempotency_key: 'k' })
    await submit({ kind: 'play', idempotency_key: 'k' })
    await http.call('POST', '/v1/reservations')
    await http.call('PUT', '/v1/quotas/local', { body: { max_concurrent: 1 } })
    await submit({ kind: 'work' })
    await http.call('POST', '/v1/reservations')
    await http.call('DELETE', '/v1/quotas/local')
    await http.call('GET', '/v1/jobs/none')
    await http.call('GET', '/no/such/path')

    const found = await http.call('GET', '/metrics')
    expect(found.headers['content-type']).toMatch(/^text\/plain; version=0\.0\.4/)
    const expected = {
      'ichido_submits_total{outcome="created",keyed="false"}': 1,
      'ichido_submits_total{outcome="created",keyed="true"}': 1,
      'ichido_submits_total{outcome="replayed",keyed="true"}': 1,
      'ichido_submits_total{outcome="refused",keyed="true"}': 1,
      'ichido_submits_total{outcome="refused",keyed="false"}': 1,
      'ichido_idempotency_keys_total{result="hit"}': 1,
      'ichido_idempotency_keys_total{result="miss"}': 1,
      'ichido_idempotency_keys_total{result="mismatch"}': 1,
      'ichido_quota_refusals_total{code="QUOTA_EXCEEDED"}': 2,
      'ichido_reservations_total{outcome="reserved"}': 1,
      'ichido_reservations_total{outcome="refused"}': 1,
      'ichido_batch_items_sum{batch="submit"}': 5,
      'ichido_batch_items_count{batch="submit"}': 5,
      'ichido_store_batch_seconds_count{batch="submit"}': 5,
      'ichido_http_request_seconds_count{method="POST",route="/v1/jobs",status="201"}': 3,
      'ichido_http_request_seconds_count{method="POST",route="/v1/jobs",status="409"}': 2,
      'ichido_http_request_seconds_count{method="GET",route="/v1/jobs/:job_id",status="404"}': 1,
      'ichido_http_request_seconds_count{method="GET",route="none",status="404"}': 1,
      'ichido_jobs{state="PENDING"}': 2,
      'ichido_jobs{state="RUNNING"}': 0,
      [`ichido_build_info{version="0.0.0-test",node="${process.version}"}`]: 1,
    }
    const values = await Promise.all(Object.keys(expected).map(async (series) => [series, await metric(series)]))
    expect(Object.fromEntries(values)).toEqual(expected)
    expect(await metric('process_cpu_seconds_total')).toBeGreaterThan(0)
    expect(found.text).not.toMatch(/no\/such\/path|route="\/v1\/jobs\/none/)
  })

  test('stats count jobs by state', async () => {
    const { job_id } = (await submit({ kind: 'work' })).body as SubmitResponse
    await http.call('POST', `/v1/jobs/${job_id}/cancel`)
    // On a slow machine a count is cached for up to 5 s.
    await expect
      .poll(async () => (await http.call('GET', '/v1/stats')).body, { timeout: 30_000 })
      .toMatchObject({ CANCELED: 1, RUNNING: 0 })
  })

  test('a job has its runs, its events, and its result at the end', async () => {
    const payload = { deep: [1, { é: null }] }
    const made = await submit({ kind: 'work', queue: 'q', payload, labels: { a: 'b' }, max_attempts: 2, priority: 3 })
    const { job_id } = made.body as SubmitResponse
    expect(await http.call('GET', `/v1/jobs/${job_id}`)).toMatchObject({
      status: 200,
      body: {
        job_id,
        payload,
        labels: { a: 'b' },
        priority: 3,
        policy: { max_attempts: 2 },
        runs: [{ run_no: 1, state: 'PENDING' }],
      },
    })
    expect(errorOf(await http.call('GET', `/v1/jobs/${job_id}/result`))).toMatchObject({
      code: 'RESULT_NOT_READY',
      details: { state: 'PENDING' },
    })

    const waiting = http.call('GET', `/v1/jobs/${job_id}/result?wait_seconds=50`)
    const { runs } = http.services
    const request = { queues: ['q'], kinds: ['work'], max: 1, waitMs: 0, startId: 's' }
    const [lease] = await runs.lease('worker', request)
    const report = {
      verb: 'finish',
      result: '{"bytes":7}',
      summaryText: null,
      freqsCsv: null,
      meta: null,
      costMicros: null,
    } as const
    await runs.finish('worker', lease?.lease_id ?? '', report)
    expect(await waiting).toMatchObject({ status: 200, body: { job_id, state: 'SUCCEEDED', result: { bytes: 7 } } })
    const events = await http.call('GET', `/v1/jobs/${job_id}/events?after=1`)
    expect(events).toMatchObject({
      status: 200,
      body: { ended: true, events: [{ cursor: 2, data: { state: 'RUNNING' } }, { cursor: 3 }] },
    })
    expect(errorOf(await http.call('POST', `/v1/jobs/${job_id}/cancel`)).code).toBe('ALREADY_ENDED')
  })
})
