import {
  type ErrorBody,
  type JobDetail,
  type JobShape,
  type Page,
  type ReservationShape,
  ROLES,
  type SubmitResponse,
} from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Role } from '../../core/limits/roles.ts'
import { realWorld } from '../../node/world.ts'
import { type Answer, type TestApp, testApp } from '../../testing/http/app.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { FAILURES_MAX, WINDOW_MS } from './rates.ts'

const code = (answer: Answer) => (answer.body as ErrorBody).error.code

describe.each(ENGINES)('open mode on %s', (engine) => {
  let http: TestApp
  beforeAll(async () => {
    http = await testApp(engine)
  })
  afterAll(() => http.close())

  test.each([
    { host: 'localhost' },
    { host: 'LOCALHOST:8001' },
    { host: '127.0.0.1:8001' },
    { host: '[::1]:8001' },
    { host: '127.0.0.2:8001' },
    { host: 'localhost:8001', origin: 'http://localhost:8001' },
    { host: 'localhost:8001', origin: 'http://localhost:8001', 'sec-fetch-site': 'same-origin' },
    { host: 'localhost:8001', 'sec-fetch-site': 'none' },
  ])('a direct call from this machine is the local admin: %j', async (headers) => {
    expect(await http.call('GET', '/v1/tokens', { headers })).toMatchObject({ status: 200 })
  })

  test.each([
    { host: 'ichido.example.com' },
    { host: 'localhost.example.com' },
    { host: 'localhost:8001.example.com' },
    { host: '127.0.0.1.nip.io:8001' },
    { host: '192.168.1.5:8001' },
    { forwarded: 'for=192.0.2.1' },
    { 'x-forwarded-for': '192.0.2.1' },
    { 'x-forwarded-for': '' },
    { 'x-forwarded-host': 'localhost:8001' },
    { 'x-forwarded-proto': 'http' },
    { 'x-forwarded-anything': '1' },
    { via: '1.1 proxy' },
    { origin: 'https://evil.example' },
    { origin: 'http://localhost:3000' },
    { origin: 'https://localhost:8001' },
    { origin: 'null' },
    { 'sec-fetch-site': 'cross-site' },
    { 'sec-fetch-site': 'same-site' },
  ])('hazard 25: a request from a proxy or another site is refused: %j', async (headers) => {
    for (const [method, path] of [
      ['GET', '/v1/jobs'],
      ['POST', '/v1/jobs'],
      ['GET', '/metrics'],
    ] as const) {
      const answer = await http.call(method, path, { headers })
      expect(answer).toMatchObject({ status: 403, headers: { 'should-retry': 'false' } })
      expect(code(answer)).toBe('OPEN_MODE_REFUSED')
    }
  })

  test.each(['/healthz', '/readyz', '/openapi.json', '/docs', '/'])('%s needs no credentials', async (path) => {
    expect(await http.call('GET', path, { headers: { host: 'ichido.example.com' } })).toMatchObject({ status: 200 })
  })

  test('hazard 25: after the first token, credentials are required for good', async () => {
    const made = await http.call('POST', '/v1/tokens', { body: { user_id: 'ann', role: 'admin', name: 'laptop' } })
    expect(made).toMatchObject({ status: 201, body: { token: expect.stringMatching(/^ichido_/) } })
    const { token, token_id } = made.body as { token: string; token_id: string }
    expect(code(await http.call('GET', '/v1/jobs'))).toBe('UNAUTHENTICATED')

    const listed = await http.call('GET', '/v1/tokens', { token })
    expect(listed).toMatchObject({
      status: 200,
      body: { data: [{ token_id, user_id: 'ann', role: 'admin', name: 'laptop' }] },
    })
    expect(listed.text).not.toContain(token)
    expect(await http.call('DELETE', `/v1/tokens/${token_id}`, { token })).toMatchObject({ status: 204, text: '' })

    expect(code(await http.call('GET', '/v1/jobs', { token }))).toBe('UNAUTHENTICATED')
    expect(code(await http.call('GET', '/v1/jobs'))).toBe('UNAUTHENTICATED')
    expect(code(await http.call('GET', '/v1/jobs', { headers: { host: '127.0.0.1' } }))).toBe('UNAUTHENTICATED')
    expect((await http.call('GET', '/v1/jobs')).headers['www-authenticate']).toMatch(/^Bearer/)
  })
})

describe('on an address outside this machine', () => {
  let http: TestApp
  beforeAll(async () => {
    http = await testApp('sqlite', { openMode: false })
  })
  afterAll(() => http.close())

  test('a token is required even before the first one is made', async () => {
    const answer = await http.call('GET', '/v1/jobs')
    expect(answer).toMatchObject({ status: 401, headers: { 'www-authenticate': 'Bearer realm="ichido"' } })
    expect(code(answer)).toBe('UNAUTHENTICATED')
    expect(await http.call('GET', '/healthz')).toMatchObject({ status: 200 })
  })

  test('a token works behind a proxy and from any name', async () => {
    const token = await http.token('ann', 'viewer')
    const headers = { host: 'ichido.example.com', 'x-forwarded-for': '192.0.2.1', origin: 'https://ichido.example.com' }
    expect(await http.call('GET', '/v1/jobs', { token, headers })).toMatchObject({ status: 200 })
  })
})

describe.each(ENGINES)('roles on %s', (engine) => {
  let http: TestApp
  let tokens: Record<Role, string>
  let job: string
  beforeAll(async () => {
    http = await testApp(engine)
    const made = await Promise.all(ROLES.map(async (role) => [role, await http.token(`the-${role}`, role)] as const))
    tokens = Object.fromEntries(made) as Record<Role, string>
    const submitted = await http.call('POST', '/v1/jobs', {
      token: await http.token('ann', 'submitter'),
      body: { kind: 'work', idempotency_key: 'anns' },
    })
    job = (submitted.body as SubmitResponse).job_id
  })
  afterAll(() => http.close())

  const FORBIDDEN = 'FORBIDDEN'
  const NOT_FOUND = 'NOT_FOUND'
  /** viewer, submitter, operator, admin, each on what belongs to ann. */
  const MATRIX: [string, string, unknown, (number | string)[]][] = [
    ['GET', '/v1/jobs', undefined, [200, 200, 200, 200]],
    ['GET', '/v1/jobs/:job', undefined, [200, NOT_FOUND, 200, 200]],
    ['GET', '/v1/jobs/:job/result', undefined, ['RESULT_NOT_READY', NOT_FOUND, 'RESULT_NOT_READY', 'RESULT_NOT_READY']],
    ['GET', '/v1/jobs/:job/events', undefined, [200, NOT_FOUND, 200, 200]],
    ['POST', '/v1/jobs', { kind: 'work' }, [FORBIDDEN, 201, 201, 201]],
    ['POST', '/v1/jobs/batch', { jobs: [{ kind: 'work' }] }, [FORBIDDEN, 200, 200, 200]],
    ['GET', '/v1/idempotency-keys/anns', undefined, [200, NOT_FOUND, 200, 200]],
    ['PATCH', '/v1/idempotency-keys/anns', { ttl_hours: 25 }, [FORBIDDEN, NOT_FOUND, 200, 200]],
    ['GET', '/v1/quotas/ann', undefined, [200, FORBIDDEN, 200, 200]],
    ['GET', '/v1/users', undefined, [200, FORBIDDEN, 200, 200]],
    ['PUT', '/v1/quotas/ann', {}, [FORBIDDEN, FORBIDDEN, FORBIDDEN, 200]],
    ['DELETE', '/v1/quotas/ann', undefined, [FORBIDDEN, FORBIDDEN, FORBIDDEN, 200]],
    ['POST', '/v1/reservations', {}, [FORBIDDEN, 201, 201, 201]],
    ['GET', '/v1/tokens', undefined, [FORBIDDEN, FORBIDDEN, FORBIDDEN, 200]],
    ['POST', '/v1/tokens', { user_id: 'bob', role: 'viewer' }, [FORBIDDEN, FORBIDDEN, FORBIDDEN, 201]],
    ['GET', '/v1/stats', undefined, [200, FORBIDDEN, 200, 200]],
    ['GET', '/v1/stats/series?range=15m', undefined, [200, FORBIDDEN, 200, 200]],
    ['GET', '/metrics', undefined, [200, FORBIDDEN, 200, 200]],
    ['POST', '/v1/jobs/:job/cancel', undefined, [FORBIDDEN, NOT_FOUND, 200, 200]],
  ]

  test.each(MATRIX)('%s %s', async (method, path, body, expected) => {
    const found: (number | string)[] = []
    for (const role of ROLES) {
      const answer = await http.call(method, path.replace(':job', job), { token: tokens[role], body })
      found.push(answer.status < 400 ? answer.status : code(answer))
    }
    expect(found).toEqual(expected)
  })

  test('a submitter sees and touches only its own', async () => {
    const [mine, other] = [await http.token('mia', 'submitter'), await http.token('tom', 'submitter')]
    const submitted = await http.call('POST', '/v1/jobs', {
      token: mine,
      body: { kind: 'work', idempotency_key: 'same' },
    })
    const { job_id } = submitted.body as SubmitResponse
    const theirs = await http.call('POST', '/v1/jobs', {
      token: other,
      body: { kind: 'play', idempotency_key: 'same' },
    })
    expect(theirs).toMatchObject({ status: 201 })
    const reserved = (await http.call('POST', '/v1/reservations', { token: mine })).body as ReservationShape

    const list = async (path: string, token: string) =>
      ((await http.call('GET', path, { token })).body as Page<JobShape>).data
    expect((await list('/v1/jobs', mine)).map((one) => one.job_id)).toEqual([job_id])
    expect(await list(`/v1/jobs?user_id=mia`, other)).toEqual([])
    expect((await list('/v1/jobs?key=same', mine)).map((one) => one.job_id)).toEqual([job_id])
    expect(await list('/v1/reservations?user_id=mia', other)).toEqual([])
    expect((await list('/v1/idempotency-keys', mine)).length).toBe(1)

    const stranger = [
      ['GET', `/v1/jobs/${job_id}`],
      ['POST', `/v1/jobs/${job_id}/cancel`],
      ['GET', `/v1/jobs/${job_id}/events`],
      ['GET', `/v1/reservations/${reserved.reservation_id}`],
      ['POST', `/v1/reservations/${reserved.reservation_id}/release`],
      ['POST', `/v1/reservations/${reserved.reservation_id}/consume`, { job_id }],
    ] as const
    for (const [method, path, body] of stranger) {
      expect(code(await http.call(method, path, { token: other, body }))).toBe('NOT_FOUND')
    }
    // Its own job cannot take another user's reservation either.
    const own = { job_id: (theirs.body as SubmitResponse).job_id }
    const taken = await http.call('POST', `/v1/reservations/${reserved.reservation_id}/consume`, {
      token: other,
      body: own,
    })
    expect(code(taken)).toBe('NOT_FOUND')
    const kept = (await http.call('GET', `/v1/jobs/${job_id}`, { token: mine })).body as JobDetail
    expect(kept).toMatchObject({ state: 'PENDING', user_id: 'mia', cancel_requested_at: null })
    expect(await http.call('POST', `/v1/jobs/${job_id}/cancel`, { token: mine })).toMatchObject({
      body: { state: 'CANCELED' },
    })
  })
})

describe('failed authentication', () => {
  let nowMs = 0
  let http: TestApp
  beforeAll(async () => {
    const world = { ...realWorld, monotonic: () => nowMs }
    http = await testApp('sqlite', { trustProxy: '127.0.0.1,10.0.0.0/8', deps: { world } })
  })
  afterAll(() => http.close())

  const from = (address: string) => ({ 'x-forwarded-for': address })

  test('is limited by address, and a valid token is not', async () => {
    const token = await http.token('ann', 'viewer')
    const fail = (address: string) => http.call('GET', '/v1/jobs', { token: 'wrong', headers: from(address) })
    for (let i = 0; i < FAILURES_MAX; i++) {
      const answer = await fail('192.0.2.1')
      expect(answer).toMatchObject({ status: 401 })
      expect(answer.headers['www-authenticate']).toContain('invalid_token')
    }
    const limited = await fail('192.0.2.1')
    expect(limited).toMatchObject({
      status: 429,
      headers: { 'should-retry': 'true', 'retry-after': String(WINDOW_MS / 1000) },
    })
    expect(code(limited)).toBe('RATE_LIMITED')

    expect(await fail('192.0.2.2')).toMatchObject({ status: 401 })
    expect(await http.call('GET', '/v1/jobs', { token, headers: from('192.0.2.1') })).toMatchObject({ status: 200 })
    expect(await http.call('GET', '/v1/jobs', { headers: from('192.0.2.1') })).toMatchObject({ status: 401 })

    nowMs += WINDOW_MS - 1_000
    expect(await fail('192.0.2.1')).toMatchObject({ status: 429, headers: { 'retry-after': '1' } })
    nowMs += 1_000
    expect(await fail('192.0.2.1')).toMatchObject({ status: 401 })
  })

  test('counts every unknown scheme', async () => {
    const fail = () => http.call('GET', '/v1/jobs', { headers: { ...from('192.0.2.9'), authorization: 'Digest YTpi' } })
    const refused = { status: 401, body: { error: { message: expect.stringContaining('must be Bearer <token>') } } }
    for (let i = 0; i < FAILURES_MAX; i++) expect(await fail()).toMatchObject(refused)
    expect(await fail()).toMatchObject({ status: 429 })
  })

  const LIMITED = [...Array<number>(FAILURES_MAX).fill(401), 429]

  async function failures(app: TestApp, call: (i: number) => { headers?: Record<string, string>; peer?: string }) {
    const statuses: number[] = []
    for (let i = 0; i <= FAILURES_MAX; i++) {
      const { headers = {}, peer = '127.0.0.1' } = call(i)
      const authorization = 'Bearer wrong'
      const options = {
        url: '/v1/jobs',
        headers: { host: 'localhost', authorization, ...headers },
        remoteAddress: peer,
      }
      statuses.push((await app.app.inject(options)).statusCode)
    }
    return statuses
  }

  test.each<[string, (i: number) => { headers?: Record<string, string>; peer?: string }]>([
    ['an IPv6 address by its /64', (i) => ({ headers: from(`2001:db8:0:7::${i + 1}`) })],
    ['IPv4 in IPv6 as IPv4', (i) => ({ headers: from(i % 2 ? '192.0.2.20' : '::ffff:192.0.2.20') })],
    ['a client by what its proxy has seen', (i) => ({ headers: from(`192.0.2.${100 + i}, 192.0.2.30, 10.1.2.3`) })],
    ['a peer that is no proxy by its own address', (i) => ({ headers: from(`192.0.2.${i}`), peer: '192.0.2.40' })],
    ['a proxy that names no address as itself', (i) => ({ headers: from(`unknown${i}`) })],
  ])('counts %s', async (_, call) => {
    await http.token('ann', 'viewer')
    expect(await failures(http, call)).toEqual(LIMITED)
  })

  test('counts the peer if every header is trusted, because headers can be forged', async () => {
    const believing = await testApp('sqlite', { trustProxy: true })
    await believing.token('ann', 'viewer')
    expect(await failures(believing, (i) => ({ headers: from(`192.0.2.${i}`) }))).toEqual(LIMITED)
    await believing.close()
  })
})
