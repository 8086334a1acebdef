import { ERRORS } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { StoreUnavailable } from '../../../core/node/store-errors.ts'
import { DEFAULT_LIMITS } from '../../../services/deps.ts'
import { type Answer, type Call, type TestApp, testApp } from '../../../testing/http/app.ts'
import { FAILURES_MAX } from '../../auth/rates.ts'
import type { CloudError } from './shapes.ts'

const JOB = '01990f3a-7c1e-7b52-9d4e-3f6a8b2c1d07'
const body = { config_name_to_load: 'lora' }

/** Every error below /api/cloud keeps its status and its headers, and can be read by each sort of client. */
describe.each(['', '/base'])('an error of /api/cloud, with the base path %j,', (basePath) => {
  let http: TestApp
  let token: string
  let viewer: string
  let failing: Error | null = null
  beforeAll(async () => {
    http = await testApp('sqlite', {
      basePath,
      openMode: false,
      trustProxy: '127.0.0.1',
      deps: { limits: { ...DEFAULT_LIMITS, payloadBytesMax: 1_000 } },
      alter: (services) => ({
        ...services,
        jobs: {
          ...services.jobs,
          list: async (...args) => {
            if (failing !== null) throw failing
            return services.jobs.list(...args)
          },
        },
      }),
    })
    token = await http.token('ann', 'submitter')
    viewer = await http.token('eve', 'viewer')
  })
  afterAll(() => http.close())

  const call = (method: string, path: string, sent: Call = {}) => http.call(method, basePath + path, { token, ...sent })

  function expectReadable(answer: Answer, status: number, code: CloudError['code']): void {
    const message = expect.stringMatching(/\w+ \w+/)
    expect(answer).toMatchObject({
      status,
      headers: { 'should-retry': String(ERRORS[code].retryable), 'content-type': expect.stringContaining('json') },
      body: { success: false, error: message, detail: message, code, details: expect.any(Object) },
    })
    const { error, detail, request_id } = answer.body as CloudError
    expect(detail).toBe(error)
    expect(request_id).toBe(answer.headers['x-request-id'])
  }

  test.each<[number, CloudError['code'], string, string, Call]>([
    [400, 'INVALID_PAYLOAD', 'POST', '/jobs/submit', { body: {} }],
    [400, 'INVALID_PAYLOAD', 'POST', '/jobs/submit', { body: '{' }],
    [400, 'INVALID_PAYLOAD', 'GET', '/jobs?limit=x', {}],
    [400, 'INVALID_PAYLOAD', 'GET', '/jobs/%ff', {}],
    [
      400,
      'KEY_CONFLICT',
      'POST',
      '/jobs/submit',
      { body: { ...body, idempotency_key: 'a' }, headers: { 'idempotency-key': 'b' } },
    ],
    [401, 'UNAUTHENTICATED', 'GET', '/jobs', { headers: { authorization: 'Bearer wrong' } }],
    [401, 'UNAUTHENTICATED', 'POST', '/jobs/submit', { headers: { authorization: 'Nothing' } }],
    [404, 'NOT_FOUND', 'GET', `/jobs/${JOB}`, {}],
    [404, 'NOT_FOUND', 'GET', '/jobs/xyz789abc', {}],
    [404, 'NOT_FOUND', 'GET', `/jobs/${JOB}/logs`, {}],
    [404, 'NOT_FOUND', 'GET', `/jobs/${JOB}/logs/stream`, {}],
    [404, 'NOT_FOUND', 'DELETE', `/jobs/${JOB}`, {}],
    [404, 'NOT_FOUND', 'POST', `/jobs/${JOB}/cancel`, {}],
    [404, 'NOT_FOUND', 'GET', '', {}],
    [404, 'NOT_FOUND', 'GET', '/nothing/at/all?x=1', {}],
    [405, 'METHOD_NOT_ALLOWED', 'PUT', '/jobs', {}],
    [413, 'PAYLOAD_TOO_LARGE', 'POST', '/jobs/submit', { body: { ...body, notes: 'x'.repeat(1_000) } }],
    [413, 'PAYLOAD_TOO_LARGE', 'POST', '/jobs/submit', { body: JSON.stringify('x'.repeat(17 * 1024 * 1024)) }],
    [415, 'UNSUPPORTED_MEDIA_TYPE', 'POST', '/jobs/submit', { body: 'a=b', headers: { 'content-type': 'text/plain' } }],
  ])('%i %s can be read: %s %s', async (status, code, method, path, sent) => {
    expectReadable(await call(method, `/api/cloud${path}`, sent), status, code)
  })

  test('the refusal of a large config names its field', async () => {
    const { body: refused } = await call('POST', '/api/cloud/jobs/submit', {
      body: { ...body, config: { notes: 'x'.repeat(1_000) } },
    })
    expect(refused).toMatchObject({
      details: { field: 'config' },
      error: expect.stringContaining('largest part is config'),
    })
  })

  test('403 can be read', async () => {
    expectReadable(await call('POST', '/api/cloud/jobs/submit', { body, token: viewer }), 403, 'FORBIDDEN')
  })

  test('429 can be read', async () => {
    const headers = { 'x-forwarded-for': '192.0.2.1', authorization: 'Bearer wrong' }
    for (let i = 0; i < FAILURES_MAX; i++) await call('GET', '/api/cloud/jobs', { headers })
    const limited = await call('GET', '/api/cloud/jobs', { headers })
    expectReadable(limited, 429, 'RATE_LIMITED')
    expect(limited.headers['retry-after']).toBeDefined()
  })

  test('500 and 503 can be read, and reveal nothing internal', async () => {
    try {
      failing = new Error('a secret of the server')
      const broken = await call('GET', '/api/cloud/jobs')
      expectReadable(broken, 500, 'INTERNAL')
      expect(broken.text).not.toContain('secret')
      failing = new StoreUnavailable('a secret of the store')
      const away = await call('GET', '/api/cloud/jobs')
      expectReadable(away, 503, 'UNAVAILABLE')
      expect(away.headers['retry-after']).toBe('1')
      expect(away.text).not.toContain('secret')
    } finally {
      failing = null
    }
  })

  test('other paths keep the native form', async () => {
    for (const path of ['/v1/nothing', '/api/cloudy', '/api', '/calc/zpe/nothing']) {
      expect(await call('GET', path)).toMatchObject({ status: 404, body: { error: { code: 'NOT_FOUND' } } })
    }
  })
})
