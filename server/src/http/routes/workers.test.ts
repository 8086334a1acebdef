import {
  type EnrollTokenShape,
  type ErrorBody,
  type Page,
  type RegisteredShape,
  type RenewedShape,
  ROLES,
  type WorkerShape,
} from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { z } from 'zod'
import { page } from '../../contract/common.ts'
import * as shapes from '../../contract/workers.ts'
import { realWorld } from '../../node/world.ts'
import { type Answer, type TestApp, testApp } from '../../testing/http/app.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { ageWorker } from '../../testing/services/workers.ts'
import { sql } from '../../testing/store/store.ts'
import { FAILURES_MAX } from '../auth/rates.ts'

const NOBODY = '01a1e12b-0000-7000-8000-000000000000'
const code = (answer: Answer) => (answer.body as ErrorBody).error.code
const message = (answer: Answer) => (answer.body as ErrorBody).error.message

async function enroll(http: TestApp, body: object = {}, token?: string): Promise<string> {
  const made = await http.call('POST', '/v1/workers/enroll-tokens', { body, ...(token === undefined ? {} : { token }) })
  return (made.body as EnrollTokenShape).enroll_token
}

async function register(http: TestApp, body: object = {}, token?: string): Promise<RegisteredShape> {
  const enroll_token = await enroll(http, {}, token)
  return (await http.call('POST', '/v1/workers/register', { body: { enroll_token, ...body } })).body as RegisteredShape
}

const renew = (http: TestApp, token?: string, headers?: Record<string, string>) =>
  http.call('POST', '/v1/workers/renew', {
    ...(token === undefined ? {} : { token }),
    ...(headers === undefined ? {} : { headers }),
  })

describe.each(ENGINES)('workers over HTTP on %s', (engine) => {
  let http: TestApp
  let skippedMs = 0
  beforeAll(async () => {
    const world = { ...realWorld, monotonic: () => realWorld.monotonic() + skippedMs }
    http = await testApp(engine, { deps: { world }, trustProxy: '127.0.0.1' })
  })
  afterAll(() => http.close())

  test('from the enroll token to the revoked worker', async () => {
    const body = { label: 'lab', queues: ['a', 'b'], ttl_seconds: 600 }
    const made = await http.call('POST', '/v1/workers/enroll-tokens', { body })
    expect(made).toMatchObject({ status: 201, body: { label: 'lab', queues: ['a', 'b'], ttl_seconds: 600 } })
    const { enroll_token } = made.body as EnrollTokenShape

    const answer = await http.call('POST', '/v1/workers/register', {
      body: { enroll_token, name: 'pc', queues: ['a'], meta: { os: 'linux' } },
    })
    expect(answer).toMatchObject({ status: 201, body: { name: 'pc', queues: ['a'] } })
    const worker = answer.body as RegisteredShape

    const renewed = await renew(http, worker.worker_token)
    expect(renewed).toMatchObject({ status: 200, body: { worker_token: expect.stringMatching(/^ichido_worker_/) } })
    expect(await renew(http, (renewed.body as RenewedShape).worker_token)).toMatchObject({ status: 200 })

    const path = `/v1/workers/${worker.worker_id}`
    const shown = await http.call('GET', path)
    expect(shown).toMatchObject({
      status: 200,
      body: { name: 'pc', state: 'online', live_leases: 0, meta: { os: 'linux' } },
    })
    const { data } = (await http.call('GET', '/v1/workers?limit=1')).body as Page<WorkerShape>
    // The renewal is written a moment later, perhaps between the two reads.
    expect(data).toEqual([{ ...(shown.body as WorkerShape), last_seen_at: expect.any(String) }])

    const gone = await http.call('DELETE', path)
    expect(gone).toMatchObject({ status: 200, body: { worker_id: worker.worker_id, fenced_leases: 0 } })
    const refused = await renew(http, worker.worker_token)
    expect(refused).toMatchObject({ status: 403, headers: { 'should-retry': 'false' } })
    expect(message(refused)).toBe('This worker was revoked')
    expect(await http.call('GET', path)).toMatchObject({ body: { state: 'revoked', revoked_at: expect.any(String) } })
    expect(await http.call('DELETE', path)).toMatchObject({ status: 200, body: { fenced_leases: 0 } })
  })

  test('answers have exactly the fields that are described', async () => {
    const described = (schema: z.ZodType, { body }: Answer) => expect(schema.parse(body)).toEqual(body)
    const made = await http.call('POST', '/v1/workers/enroll-tokens', { body: {} })
    described(shapes.enrollToken, made)
    const { enroll_token } = made.body as EnrollTokenShape
    const answer = await http.call('POST', '/v1/workers/register', { body: { enroll_token } })
    described(shapes.registered, answer)
    const { worker_id, worker_token } = answer.body as RegisteredShape
    described(shapes.renewed, await renew(http, worker_token))
    described(page(shapes.worker), await http.call('GET', '/v1/workers'))
    described(shapes.worker, await http.call('GET', `/v1/workers/${worker_id}`))
    described(shapes.revoked, await http.call('DELETE', `/v1/workers/${worker_id}`))
  })

  test('a used enroll token is refused, and a lost answer can be repeated', async () => {
    const enroll_token = await enroll(http)
    const body = { enroll_token, register_id: 'a-random-name-of-16-characters' }
    const first = await http.call('POST', '/v1/workers/register', { body })
    const again = await http.call('POST', '/v1/workers/register', { body })
    expect(again).toMatchObject({ status: 201, body: { worker_id: (first.body as RegisteredShape).worker_id } })
    const other = await http.call('POST', '/v1/workers/register', { body: { enroll_token } })
    expect(other).toMatchObject({ status: 401, headers: { 'should-retry': 'false' } })
    expect(code(other)).toBe('UNAUTHENTICATED')
  })

  test('an expired token is 401 at the next check of every node', async () => {
    const worker = await register(http)
    expect(await renew(http, worker.worker_token)).toMatchObject({ status: 200 })
    await ageWorker(http.services.deps.store, worker.worker_id, 8 * 24 * 3_600_000)
    skippedMs += 1_000
    const late = await renew(http, worker.worker_token, { 'x-forwarded-for': '192.0.2.77' })
    expect(late).toMatchObject({ status: 401 })
    expect(late.headers['www-authenticate']).toContain('invalid_token')

    const anew = { worker_id: worker.worker_id, worker_token: worker.worker_token }
    expect(await register(http, anew)).toMatchObject({ worker_id: worker.worker_id })
    const stranger = { worker_id: worker.worker_id, worker_token: 'ichido_worker_guessed' }
    expect(await register(http, stranger)).toMatchObject({ error: { code: 'FORBIDDEN' } })
  })

  test('in open mode a worker needs its token, too', async () => {
    expect(await http.call('GET', '/v1/jobs')).toMatchObject({ status: 200 })
    const without = await renew(http)
    expect(without).toMatchObject({ status: 401, headers: { 'www-authenticate': 'Bearer realm="ichido"' } })
    expect(message(without)).toContain('worker token')
    // Workers may call from anywhere: the rules of open mode apply only to callers without credentials.
    const { worker_token } = await register(http)
    const headers = { host: 'ichido.example.com', 'x-forwarded-for': '192.0.2.1', via: '1.1 proxy' }
    expect(await renew(http, worker_token, headers)).toMatchObject({ status: 200 })
  })

  test('a call makes a worker online', async () => {
    const { worker_id, worker_token } = await register(http)
    await ageWorker(http.services.deps.store, worker_id, 3_600_000)
    expect(await http.call('GET', `/v1/workers/${worker_id}`)).toMatchObject({ body: { state: 'unseen' } })
    await renew(http, worker_token)
    await expect
      .poll(async () => (await http.call('GET', `/v1/workers/${worker_id}`)).body, { timeout: 10_000 })
      .toMatchObject({ state: 'online' })
  })

  test('a detached worker is not online', async () => {
    const { worker_id, worker_token: token } = await register(http)
    const detach = (given: object) => http.call('POST', '/v1/workers/detach', given)
    expect(await detach({})).toMatchObject({ status: 401 })
    const answer = await detach({ token, body: {} })
    expect(answer).toMatchObject({ status: 200, body: { worker_id, detached_at: expect.any(String) } })
    expect(shapes.detached.parse(answer.body)).toEqual(answer.body)
    // A later call of another worker is written by now, so this one would be, too.
    const other = await register(http)
    await ageWorker(http.services.deps.store, other.worker_id, 3_600_000)
    await renew(http, other.worker_token)
    await expect
      .poll(async () => (await http.call('GET', `/v1/workers/${other.worker_id}`)).body, { timeout: 10_000 })
      .toMatchObject({ state: 'online' })
    expect(await http.call('GET', `/v1/workers/${worker_id}`)).toMatchObject({ body: { state: 'detached' } })
  })

  test('the metrics count workers by state', async () => {
    const { text } = await http.call('GET', '/metrics')
    const [{ online } = { online: -1 }] = await sql(
      http.services.deps.store,
      `SELECT count(*) AS online FROM ichido.workers
        WHERE revoked_at IS NULL AND detached_at IS NULL AND last_seen_at > now_ms() - 90000`,
    )
    const lines = text.split('\n').filter((line) => line.startsWith('ichido_workers{'))
    expect(lines).toContain(`ichido_workers{state="online"} ${online}`)
    expect(lines).toContainEqual(expect.stringMatching(/state="revoked"\} [1-9]/))
  })

  test.each([
    ['POST', '/v1/workers/enroll-tokens', { queues: [] }, 'queues must have at least 1 entry'],
    ['POST', '/v1/workers/enroll-tokens', { queues: ['no spaces'] }, 'queues.0 must be 1 to 128 letters'],
    ['POST', '/v1/workers/enroll-tokens', { queues: 'a' }, 'queues must be a list'],
    ['POST', '/v1/workers/enroll-tokens', { ttl_seconds: 0 }, 'ttl_seconds must be at least 1'],
    ['POST', '/v1/workers/enroll-tokens', { ttl_seconds: 1e9 }, 'ttl_seconds must be at most 2592000'],
    ['POST', '/v1/workers/enroll-tokens', { label: '' }, 'label must not be empty'],
    ['POST', '/v1/workers/enroll-tokens', { label: 'a\u001bb' }, 'label must not have control characters'],
    ['POST', '/v1/workers/enroll-tokens', { worker_id: 'me' }, 'worker_id must be a UUID'],
    ['POST', '/v1/workers/enroll-tokens', { queue: 'a' }, 'Unknown field: queue'],
    ['POST', '/v1/workers/enroll-tokens', '[]', 'The body must be a JSON object'],
    ['POST', '/v1/workers/enroll-tokens', '{', 'The body'],
    ['POST', '/v1/workers/register', {}, 'Missing required field: enroll_token'],
    ['POST', '/v1/workers/register', { enroll_token: 7 }, 'enroll_token must be a string'],
    [
      'POST',
      '/v1/workers/register',
      { enroll_token: 'e'.repeat(300) },
      'enroll_token must have at most 256 characters',
    ],
    ['POST', '/v1/workers/register', { enroll_token: 'e', name: '\u0007' }, 'name must not have control characters'],
    ['POST', '/v1/workers/register', { enroll_token: 'e', register_id: 'short' }, 'register_id must have at least 16'],
    ['POST', '/v1/workers/register', { enroll_token: 'e', meta: [] }, 'meta must be a JSON object'],
    [
      'POST',
      '/v1/workers/register',
      { enroll_token: 'e', meta: { a: 'x'.repeat(20_000) } },
      'meta must be at most 16384',
    ],
    ['POST', '/v1/workers/register', { enroll_token: 'e', worker_id: '1' }, 'worker_id must be a UUID'],
    ['GET', '/v1/workers?limit=0', undefined, 'limit must be at least 1'],
    ['GET', '/v1/workers?cursor=none', undefined, 'cursor must be the next_cursor'],
    ['GET', '/v1/workers?state=online', undefined, 'Unknown query parameter: state'],
  ])('%s %s is refused: $3', async (method, path, body, expected) => {
    const answer = await http.call(method, path, { body })
    expect(answer).toMatchObject({ status: 400 })
    expect(code(answer)).toBe('INVALID_PAYLOAD')
    expect(message(answer)).toContain(expected)
  })

  test.each([
    ['GET', `/v1/workers/${NOBODY}`, undefined],
    ['DELETE', `/v1/workers/${NOBODY}`, undefined],
    ['POST', '/v1/workers/enroll-tokens', { worker_id: NOBODY }],
  ])('%s %s of an unknown worker is 404', async (method, path, body) => {
    const answer = await http.call(method, path, { body })
    expect(answer).toMatchObject({ status: 404 })
    expect(code(answer)).toBe('NOT_FOUND')
  })
})

describe.each(ENGINES)('who may do what with workers on %s', (engine) => {
  let http: TestApp
  let admin: string
  beforeAll(async () => {
    http = await testApp(engine, { trustProxy: '127.0.0.1' })
    admin = await http.token('root', 'admin')
  })
  afterAll(() => http.close())

  test.each([
    ['POST', '/v1/workers/enroll-tokens', {}, [403, 403, 201, 201]],
    ['GET', '/v1/workers', undefined, [200, 403, 200, 200]],
    ['GET', '/v1/workers/:worker', undefined, [200, 403, 200, 200]],
    ['DELETE', '/v1/workers/:worker', undefined, [403, 403, 200, 200]],
    // An admin is not a worker either.
    ['POST', '/v1/workers/renew', undefined, [401, 401, 401, 401]],
  ])('%s %s', async (method, path, body, expected) => {
    const { worker_id } = await register(http, {}, admin)
    const found: number[] = []
    for (const role of ROLES) {
      const token = await http.token(`the-${role}`, role)
      const headers = { 'x-forwarded-for': `198.51.100.${ROLES.indexOf(role)}` }
      found.push((await http.call(method, path.replace(':worker', worker_id), { token, body, headers })).status)
    }
    expect(found).toEqual(expected)
  })

  test('a worker token opens only routes for workers', async () => {
    const { worker_token: token } = await register(http, {}, admin)
    for (const [method, path] of [
      ['GET', '/v1/jobs'],
      ['POST', '/v1/jobs'],
      ['GET', '/v1/workers'],
      ['POST', '/v1/workers/enroll-tokens'],
      ['GET', '/metrics'],
    ] as const) {
      expect(await http.call(method, path, { token, headers: { 'x-forwarded-for': '203.0.113.9' } })).toMatchObject({
        status: 401,
      })
    }
  })

  test('a shared route accepts worker tokens, and refuses wrong ones', async () => {
    const { worker_id, worker_token: token } = await register(http, {}, admin)
    const path = `/v1/artifacts/${NOBODY}`
    expect(await http.call('GET', path, { token: admin })).toMatchObject({ status: 404 })
    expect(await http.call('GET', path, { token })).toMatchObject({ status: 404 })
    const headers = { 'x-forwarded-for': '203.0.113.10' }
    expect(await http.call('GET', path, { token: 'ichido_worker_guessed', headers })).toMatchObject({ status: 401 })
    await http.call('DELETE', `/v1/workers/${worker_id}`, { token: admin })
    expect(await http.call('GET', path, { token })).toMatchObject({ status: 403 })
  })

  test('wrong worker tokens and wrong enroll tokens count in one limit', async () => {
    const headers = { 'x-forwarded-for': '192.0.2.44' }
    const body = { enroll_token: 'ichido_enroll_guessed' }
    for (let i = 0; i < FAILURES_MAX / 2; i++) {
      expect(await renew(http, 'ichido_worker_guessed', headers)).toMatchObject({ status: 401 })
      expect(await http.call('POST', '/v1/workers/register', { body, headers })).toMatchObject({ status: 401 })
    }
    for (const limited of [
      await renew(http, 'ichido_worker_guessed', headers),
      await http.call('POST', '/v1/workers/register', { body, headers }),
      await http.call('GET', '/v1/jobs', { token: 'ichido_guessed', headers }),
    ]) {
      expect(limited).toMatchObject({ status: 429, headers: { 'retry-after': expect.anything() } })
      expect(code(limited)).toBe('RATE_LIMITED')
    }
    // Valid tokens are not delayed.
    const { worker_token } = await register(http, {}, admin)
    expect(await renew(http, worker_token, headers)).toMatchObject({ status: 200 })
    const enroll_token = await enroll(http, {}, admin)
    expect(await http.call('POST', '/v1/workers/register', { body: { enroll_token }, headers })).toMatchObject({
      status: 201,
    })
  })
})
