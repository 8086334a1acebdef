import { type IncomingHttpHeaders, request } from 'node:http'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { Role } from '../../core/limits/roles.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import { type Call, type TestApp, testApp } from '../../testing/http/app.ts'

/** The fast route serves `POST /v1/jobs` without the framework. Both give the same answers. */

let plane: TestApp
let port: number
/** Requests that the framework saw. */
let framework = 0
const tokens: Partial<Record<Role, string>> = {}

beforeAll(async () => {
  plane = await testApp('sqlite')
  plane.app.addHook('onSend', async () => {
    framework++
  })
  port = Number(new URL(await plane.app.listen({ port: 0, host: '127.0.0.1' })).port)
  await plane.services.quotas.put(LOCAL_ADMIN, 'full', { max_concurrent: 0, cost_limit: null, period: 'month' })
})

afterAll(() => plane.close())

interface Seen {
  status: number | undefined
  headers: Record<string, unknown>
  body: string
}

function over(path: string, call: Call & { pieces?: number }): Promise<Seen> {
  const { body = '', pieces = 1 } = call
  const bytes = Buffer.isBuffer(body) ? body : Buffer.from(typeof body === 'string' ? body : JSON.stringify(body))
  return new Promise((resolve, reject) => {
    const headers = {
      host: 'localhost:8001',
      'content-type': 'application/json',
      'content-length': String(bytes.length),
      ...(call.token === undefined ? {} : { authorization: `Bearer ${call.token}` }),
      ...call.headers,
    }
    const sent = request({ port, path, method: 'POST', headers }, (answer) => {
      const chunks: Buffer[] = []
      answer.on('data', (chunk: Buffer) => chunks.push(chunk))
      answer.on('end', () => {
        resolve({ status: answer.statusCode, headers: plain(answer.headers), body: masked(Buffer.concat(chunks)) })
      })
    })
    sent.on('error', reject)
    if (pieces === 1) return void sent.end(bytes.toString('latin1'), 'latin1')
    const size = Math.ceil(bytes.length / pieces)
    for (let i = 0; i < pieces; i++) sent.write(bytes.subarray(i * size, (i + 1) * size))
    sent.end()
  })
}

/** Headers that differ between requests. */
function plain(headers: IncomingHttpHeaders | Record<string, unknown>): Record<string, unknown> {
  const { date, connection, 'keep-alive': _, 'x-request-id': id, 'transfer-encoding': __, ...rest } = headers
  return { ...rest, 'x-request-id': typeof id }
}

function masked(body: Buffer | string): string {
  return String(body)
    .replace(/[0-9a-f]{8}-[0-9a-f-]{27}/g, '<id>')
    .replace(/\d{4}-\d\d-\d\dT[\d:.]+Z/g, '<instant>')
}

async function bothWays(call: Call, hotCall: Call & { pieces?: number } = call): Promise<{ seen: Seen; hot: boolean }> {
  const answer = await plane.call('POST', '/v1/jobs', call)
  const expected = { status: answer.status, headers: plain(answer.headers), body: masked(answer.text) }
  const before = framework
  const seen = await over('/v1/jobs', hotCall)
  expect(seen).toEqual(expected)
  return { seen, hot: framework === before }
}

const JOB = { kind: 'work', payload: { n: 1 } }

test.each<[string, (n: string) => Call]>([
  ['a job', () => ({ body: JOB })],
  ['with charset', () => ({ body: JOB, headers: { 'content-type': 'application/json; charset=utf-8' } })],
  ['with a key in the body', (n) => ({ body: { ...JOB, idempotency_key: n } })],
  ['with a key in the header', (n) => ({ body: JOB, headers: { 'idempotency-key': n } })],
  ['with everything', () => ({ body: { ...JOB, priority: 3, delay_seconds: 9, labels: { a: 'b' }, max_attempts: 2 } })],
])('%s takes the short way', async (_, call) => {
  const { seen, hot } = await bothWays(call('first'), call('second'))
  expect(seen.status).toBe(201)
  expect(hot).toBe(true)
})

test('a body in pieces, and many requests at once', async () => {
  expect((await bothWays({ body: JOB }, { body: JOB, pieces: 5 })).seen.status).toBe(201)
  const answers = await Promise.all(Array.from({ length: 20 }, () => over('/v1/jobs', { body: JOB })))
  expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([201]))
})

test('a replay and a mismatch', async () => {
  const call = { body: { ...JOB, idempotency_key: 'again' } }
  await plane.call('POST', '/v1/jobs', call)
  expect(await bothWays(call)).toMatchObject({ hot: true, seen: { headers: { 'idempotent-replayed': 'true' } } })
  const other = { body: { ...JOB, payload: 2, idempotency_key: 'again' } }
  expect(await bothWays(other)).toMatchObject({ hot: true, seen: { status: 409 } })
})

test.each<[string, Call]>([
  ['an unknown field', { body: { ...JOB, colour: 'red' } }],
  ['broken JSON', { body: '{"kind":' }],
  ['bytes that are no UTF-8', { body: Buffer.from([0x22, 0xff, 0x22]) }],
  ['a member twice', { body: '{"kind":"a","kind":"b"}' }],
  ['a bad key', { body: { ...JOB, idempotency_key: 'a b' } }],
  ['two keys that differ', { body: { ...JOB, idempotency_key: 'a' }, headers: { 'idempotency-key': 'b' } }],
  ['null', { body: 'null' }],
  ['another type', { body: 'kind=work', headers: { 'content-type': 'text/plain' } }],
  ['an encoding', { body: JOB, headers: { 'content-encoding': 'gzip' } }],
  ['a proxy in open mode', { body: JOB, headers: { 'x-forwarded-for': '10.0.0.1' } }],
  ['a foreign host', { body: JOB, headers: { host: 'example.com' } }],
  ['a long body', { body: { ...JOB, payload: 'x'.repeat(100_000) } }],
])('%s goes to the framework, and is answered by it', async (_, call) => {
  expect((await bothWays(call)).hot).toBe(false)
})

test('known tokens take the fast route, others do not', async () => {
  for (const role of ['submitter', 'viewer'] as const) tokens[role] = await plane.token('full', role)
  const { submitter = '', viewer = '' } = tokens
  const full = await bothWays({ body: JOB, token: submitter })
  expect(full).toMatchObject({ hot: true, seen: { status: 409, headers: { 'should-retry': 'false' } } })
  expect(await bothWays({ body: JOB, token: viewer })).toMatchObject({ hot: false, seen: { status: 403 } })
  expect(await bothWays({ body: JOB, token: 'wrong' })).toMatchObject({ hot: false, seen: { status: 401 } })
  expect(await bothWays({ body: JOB })).toMatchObject({ hot: false, seen: { status: 401 } })
})
