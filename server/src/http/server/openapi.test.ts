import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { z } from 'zod'
import { newToken, token as tokenShape } from '../../contract/access.ts'
import { errorBody, page } from '../../contract/common.ts'
import { events } from '../../contract/events.ts'
import { jobDetail, job as jobShape } from '../../contract/jobs.ts'
import { newReservation, quota, reservation, user } from '../../contract/limits.ts'
import { batchResponse, key, submitResponse } from '../../contract/submit.ts'
import { stats } from '../../contract/system.ts'
import { EVERY_JOB } from '../../store/jobs/list-jobs.ts'
import { type Call, type TestApp, testApp } from '../../testing/http/app.ts'

describe('the description of the API', () => {
  let http: TestApp
  let other: TestApp
  let document: {
    openapi: string
    paths: Record<string, Record<string, Operation>>
    components: { schemas: object; securitySchemes: object }
  }
  beforeAll(async () => {
    http = await testApp('sqlite')
    other = await testApp('sqlite')
    document = (await http.call('GET', '/openapi.json')).body as typeof document
  })
  afterAll(async () => {
    await http.close()
    await other.close()
  })

  interface Operation {
    summary?: string
    tags?: string[]
    security: object[]
    parameters?: { in: string; name: string }[]
    requestBody?: object
    responses: Record<string, { description: string }>
  }

  const operations = () =>
    Object.entries(document.paths).flatMap(([path, methods]) =>
      Object.entries(methods).map(([method, operation]) => ({ name: `${method.toUpperCase()} ${path}`, operation })),
    )

  test('is OpenAPI 3.1 and names every route', () => {
    expect(document.openapi).toMatch(/^3\.1\./)
    expect(operations().map(({ name }) => name)).toEqual(
      expect.arrayContaining([
        'POST /v1/jobs',
        'POST /v1/jobs/batch',
        'GET /v1/jobs',
        'GET /v1/jobs/{job_id}',
        'GET /v1/jobs/{job_id}/result',
        'GET /v1/jobs/{job_id}/events',
        'POST /v1/jobs/{job_id}/cancel',
        'GET /v1/idempotency-keys',
        'GET /v1/idempotency-keys/{key}',
        'PATCH /v1/idempotency-keys/{key}',
        'POST /v1/reservations',
        'GET /v1/reservations',
        'GET /v1/reservations/{reservation_id}',
        'POST /v1/reservations/{reservation_id}/consume',
        'POST /v1/reservations/{reservation_id}/release',
        'GET /v1/quotas/{user_id}',
        'PUT /v1/quotas/{user_id}',
        'DELETE /v1/quotas/{user_id}',
        'GET /v1/users',
        'POST /v1/tokens',
        'GET /v1/tokens',
        'DELETE /v1/tokens/{token_id}',
        'POST /v1/workers/enroll-tokens',
        'POST /v1/workers/register',
        'POST /v1/workers/renew',
        'GET /v1/workers',
        'GET /v1/workers/{worker_id}',
        'DELETE /v1/workers/{worker_id}',
        'GET /v1/stats',
        'GET /healthz',
        'GET /readyz',
        'GET /metrics',
        'POST /api/cloud/jobs/submit',
      ]),
    )
  })

  test('each route has a summary, its refusals and its path parameters', () => {
    for (const { name, operation } of operations()) {
      expect(operation.summary, name).toBeTruthy()
      const inPath = [...name.matchAll(/\{(\w+)\}/g)].map(([, parameter]) => parameter)
      const declared = (operation.parameters ?? []).filter((parameter) => parameter.in === 'path')
      expect(
        declared.map((parameter) => parameter.name),
        name,
      ).toEqual(inPath)
      if (operation.security.length === 0) continue
      const wanted = ['400', '401', '403', '429', '431', '500', '503']
      if (inPath.length > 0) wanted.push('404')
      if (operation.requestBody !== undefined) wanted.push('413', '415')
      expect(Object.keys(operation.responses), name).toEqual(expect.arrayContaining(wanted))
    }
  })

  test('each route with a body lists the refusals of size and media type', () => {
    const silent = operations().filter(({ name, operation }) => {
      const { responses } = operation
      return !name.startsWith('GET ') && !(responses[413] && responses[415])
    })
    expect(silent.map(({ name }) => name)).toEqual([])
  })

  test('a reservation under an id of another user is 404, and described', async () => {
    const [ann, bob] = [await other.token('ann', 'submitter'), await other.token('bob', 'submitter')]
    const body = { reservation_id: '01990f3a-7c1e-7b52-9d4e-3f6a8b2c1d07' }
    expect(await other.call('POST', '/v1/reservations', { token: ann, body })).toMatchObject({ status: 201 })
    expect(await other.call('POST', '/v1/reservations', { token: bob, body })).toMatchObject({ status: 404 })
    expect(document.paths['/v1/reservations']?.post?.responses[404]?.description).toContain('NOT_FOUND')
  })

  test('workers need a token, callers too unless in open mode, a register call none', () => {
    const security = (path: string) => document.paths[path]?.post?.security
    const schemes = [{ token: [] }, { apiKey: [] }, { basic: [] }]
    expect(security('/v1/workers/renew')).toEqual(schemes)
    expect(security('/v1/workers/enroll-tokens')).toEqual([...schemes, { session: [] }, {}])
    expect(Object.keys(document.components.securitySchemes)).toEqual(['token', 'apiKey', 'basic', 'session'])
    expect(security('/v1/workers/register')).toEqual([])
  })

  test('every reference resolves, and no schema is unused', () => {
    const text = JSON.stringify(document)
    const used = new Set([...text.matchAll(/#\/components\/schemas\/(\w+)/g)].map(([, name]) => name))
    expect([...used].sort()).toEqual(Object.keys(document.components.schemas).sort())
  })

  test('the submit route describes the key and the configured mismatch status', async () => {
    const post = document.paths['/v1/jobs']?.post
    expect(post?.parameters).toMatchObject([{ in: 'header', name: 'Idempotency-Key' }])
    expect(post?.responses[409]?.description).toContain('IDEMPOTENCY_KEY_REUSED')
    const changed = await testApp('sqlite', { mismatchStatus: 422 })
    const other = (await changed.call('GET', '/openapi.json')).body as typeof document
    await changed.close()
    expect(other.paths['/v1/jobs']?.post?.responses[422]?.description).toContain('IDEMPOTENCY_KEY_REUSED')
    expect(other.paths['/v1/jobs']?.post?.responses[409]?.description).toContain('QUOTA_EXCEEDED')
  })

  test('/docs is served with a policy that allows no other site', async () => {
    const { headers, text } = await http.call('GET', '/docs')
    const policy = String(headers['content-security-policy'])
    expect(policy).toContain("default-src 'none'")
    expect(policy).toContain("script-src 'self'")
    expect(policy).not.toMatch(/https?:|unsafe-eval|script-src[^;]*unsafe-inline|upgrade-insecure-requests/)
    expect(headers).not.toHaveProperty('strict-transport-security')
    expect(text).not.toMatch(/(src|href)="https?:/)
    for (const [, file] of text.matchAll(/(?:src|href)="([^"]+)"/g)) {
      expect(await http.call('GET', file ?? ''), file).toMatchObject({ status: 200 })
    }
  })
})

describe('an answer', () => {
  let http: TestApp
  beforeAll(async () => {
    http = await testApp('sqlite')
  })
  afterAll(() => http.close())

  /** Zod drops unknown fields, so an extra field shows as a difference. */
  async function expectAsDescribed(schema: z.ZodType, method: string, path: string, call?: Call): Promise<void> {
    const { body } = await http.call(method, path, call)
    expect(schema.parse(body), `${method} ${path}`).toEqual(body)
  }

  test('has exactly the fields that are described', async () => {
    const request = { kind: 'work', idempotency_key: 'k', labels: { a: 'b' } }
    await expectAsDescribed(submitResponse, 'POST', '/v1/jobs', { body: request })
    await expectAsDescribed(batchResponse, 'POST', '/v1/jobs/batch', { body: { jobs: [request, {}] } })
    await expectAsDescribed(page(jobShape), 'GET', '/v1/jobs')
    const [job] = (await http.services.jobs.list({ userId: 'local', role: 'admin' }, EVERY_JOB, 1, null)).data
    await expectAsDescribed(jobDetail, 'GET', `/v1/jobs/${job?.job_id}`)
    await expectAsDescribed(events, 'GET', `/v1/jobs/${job?.job_id}/events`)
    await expectAsDescribed(page(key), 'GET', '/v1/idempotency-keys')
    await expectAsDescribed(newReservation, 'POST', '/v1/reservations')
    await expectAsDescribed(page(reservation), 'GET', '/v1/reservations')
    await expectAsDescribed(quota, 'GET', '/v1/quotas/local')
    await expectAsDescribed(page(user), 'GET', '/v1/users')
    await expectAsDescribed(stats, 'GET', '/v1/stats')
    await expectAsDescribed(errorBody, 'GET', '/v1/jobs/none')

    const { runs } = http.services
    const [lease] = await runs.lease('w', { queues: ['default'], kinds: ['work'], max: 1, waitMs: 0, startId: 's' })
    const error = { code: 'BROKEN', message: 'it broke', traceback: 'here' }
    await runs.finish('w', lease?.lease_id ?? '', { verb: 'fail', error, retryable: false })
    await expectAsDescribed(jobDetail, 'GET', `/v1/jobs/${lease?.job_id}`)
    await expectAsDescribed(newToken, 'POST', '/v1/tokens', { body: { user_id: 'ann', role: 'admin' } })
    const token = await http.token('bob', 'admin')
    await expectAsDescribed(page(tokenShape), 'GET', '/v1/tokens', { token })
  })
})
