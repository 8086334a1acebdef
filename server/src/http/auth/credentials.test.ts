import { request } from 'node:http'
import type { ErrorBody, StreamTokenShape } from '@ichido/sdk/protocol'
import { pino } from 'pino'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type TestApp, testApp } from '../../testing/http/app.ts'
import { beginPublishing } from '../../testing/services/publishing.ts'
import { registered } from '../../testing/services/workers.ts'
import { credentialsOf } from './auth.ts'
import { FAILURES_MAX } from './rates.ts'

const basic = (password: string, user = 'ci') => `Basic ${Buffer.from(`${user}:${password}`).toString('base64')}`

const WAYS = {
  bearer: (token: string) => ({ authorization: `Bearer ${token}` }),
  basic: (token: string) => ({ authorization: basic(token) }),
  'x-api-key': (token: string) => ({ 'x-api-key': token }),
} as const
const EACH_WAY = Object.entries(WAYS)

describe('the token of a request', () => {
  test.each<[string, Record<string, string>, string]>([
    ['Bearer', { authorization: 'bearer  abc ' }, 'abc'],
    ['X-API-Key', { 'x-api-key': ' abc ' }, 'abc'],
    ['Basic, with any user name', { authorization: basic('abc', 'Zoë') }, 'abc'],
    ['Basic, without a user name', { authorization: basic('abc', '') }, 'abc'],
    ['Basic, with a colon in the token', { authorization: basic('a:b') }, 'a:b'],
    ['two headers that agree', { authorization: basic('abc'), 'x-api-key': 'abc' }, 'abc'],
  ])('is read from %s', (_, headers, token) => {
    expect(credentialsOf(headers)).toEqual({ kind: 'token', token })
  })

  test.each<[string, Record<string, string>, RegExp]>([
    ['another scheme', { authorization: 'Digest abc' }, /^Authorization must be Bearer/],
    ['no scheme', { authorization: 'abc' }, /^Authorization must be Bearer/],
    ['an empty header', { authorization: '' }, /^Authorization must be Bearer/],
    ['two words', { authorization: 'Bearer a b' }, /^Authorization must be Bearer/],
    ['a user name alone', { authorization: basic('', 'abc') }, /password/],
    ['Basic without a colon', { authorization: `Basic ${Buffer.from('abc').toString('base64')}` }, /password/],
    ['Basic with a space in the password', { authorization: basic('a b') }, /password/],
    ['an empty X-API-Key', { 'x-api-key': '' }, /^X-API-Key must be one token/],
    ['two X-API-Keys', { 'x-api-key': 'a, b' }, /^X-API-Key must be one token/],
    ['tokens that differ', { authorization: 'Bearer a', 'x-api-key': 'b' }, /different tokens; send one of them/],
  ])('cannot be read from %s', (_, headers, problem) => {
    expect(credentialsOf(headers)).toEqual({ kind: 'unreadable', problem: expect.stringMatching(problem) })
  })

  test('is missing from a request without both headers', () => {
    expect(credentialsOf({})).toEqual({ kind: 'none' })
  })
})

describe('a server with tokens', () => {
  let http: TestApp
  let port: number
  let token: string
  const logged: string[] = []
  /** Requests that the framework saw; the fast route served the others. */
  let framework = 0
  beforeAll(async () => {
    const logger = pino({ level: 'trace' }, { write: (line: string) => void logged.push(line) })
    http = await testApp('sqlite', { openMode: false, trustProxy: '127.0.0.1', logger })
    http.app.addHook('onSend', async () => void framework++)
    port = Number(new URL(await http.app.listen({ host: '127.0.0.1', port: 0 })).port)
    token = await http.token('ann', 'submitter')
  })
  afterAll(() => http.close())

  const get = (path: string, headers: Record<string, string>) => http.call('GET', path, { headers })

  test.each(EACH_WAY)('accepts an API token as %s on every route', async (_, as) => {
    for (const path of ['/v1/jobs', '/api/cloud/jobs'])
      expect(await get(path, as(token))).toMatchObject({ status: 200 })
  })

  test.each(EACH_WAY)('accepts a worker token as %s', async (_, as) => {
    const made = await registered(http.services, { name: 'w', queues: ['q'] })
    const lease = { queues: ['q'], kinds: ['k'], wait_seconds: 0 }
    expect(await http.call('POST', '/v1/leases', { body: lease, headers: as(made.worker_token) })).toMatchObject({
      status: 204,
    })
  })

  test.each(EACH_WAY)('accepts a stream token as %s', async (_, as) => {
    const run = await beginPublishing(http.services, {}, { userId: 'ann', role: 'submitter' })
    await run.succeed()
    const made = await http.call('POST', `/v1/jobs/${run.jobId}/stream-token`, { token })
    const headers = as((made.body as StreamTokenShape).token)
    expect(await get(`/v1/jobs/${run.jobId}/events`, headers)).toMatchObject({ status: 200 })
    expect(await get(`/v1/jobs/${run.jobId}`, headers)).toMatchObject({ status: 401 })
  })

  /** Sends a raw request line over a connection. */
  function send(method: string, path: string, headers: Record<string, string>, body = ''): Promise<string> {
    return new Promise((resolve, reject) => {
      const sent = request({ port, method, path, headers: { ...headers, 'content-length': body.length } }, (answer) => {
        let text = `${answer.statusCode} ${JSON.stringify(answer.headers)} `
        answer.on('data', (part) => {
          text += String(part)
        })
        answer.on('end', () => resolve(text))
      })
      sent.on('error', reject).end(body)
    })
  }

  test.each(EACH_WAY)('accepts a token sent as %s on the fast route', async (_, as) => {
    await get('/v1/jobs', as(token))
    const before = framework
    const headers = { 'content-type': 'application/json', ...as(token) }
    expect(await send('POST', '/v1/jobs', headers, '{"kind":"work"}')).toMatch(/^201 /)
    expect(framework).toBe(before)
    const differ = { ...headers, authorization: 'Bearer other', 'x-api-key': token }
    expect(await send('POST', '/v1/jobs', differ, '{"kind":"work"}')).toMatch(/^401 .*different tokens/)
  })

  test('says how to send a token, and never asks a browser for a password', async () => {
    const answer = await get('/v1/jobs', {})
    expect(answer).toMatchObject({ status: 401, headers: { 'www-authenticate': 'Bearer realm="ichido"' } })
    const { message } = (answer.body as ErrorBody).error
    for (const way of ['Authorization: Bearer', 'X-API-Key', 'HTTP Basic']) expect(message).toContain(way)
    const wrong = await get('/v1/jobs', { authorization: basic('wrong') })
    expect(wrong.headers['www-authenticate']).toBe('Bearer realm="ichido", error="invalid_token"')
  })

  test.each(EACH_WAY)('limits failures with a token sent as %s', async (way, as) => {
    const from = { 'x-forwarded-for': `192.0.2.${way.length}` }
    const fail = () => get('/v1/jobs', { ...from, ...as('wrong') })
    for (let i = 0; i < FAILURES_MAX; i++) expect(await fail()).toMatchObject({ status: 401 })
    expect(await fail()).toMatchObject({ status: 429 })
    expect(await get('/v1/jobs', { ...from, ...as(token) })).toMatchObject({ status: 200 })
  })

  test('logs and echoes no token', async () => {
    const secret = 'ichido_not-to-be-seen'
    const answers: string[] = []
    for (const [, as] of EACH_WAY) {
      answers.push(await send('GET', '/v1/jobs', as(secret)))
      answers.push(await send('POST', '/api/cloud/nothing', as(secret)))
    }
    // A proxy may send the request line in absolute form, with the credentials of the client's URL.
    for (const path of ['/v1/jobs', '/nothing', '/api/cloud/nothing', '/%ff']) {
      answers.push(await send('GET', `https://ci:${secret}@localhost:${port}${path}`, {}))
    }
    expect(answers.every((text) => /^4\d\d /.test(text))).toBe(true)
    const encoded = basic(secret).slice('Basic '.length)
    for (const text of [...answers, ...logged]) {
      expect(text).not.toContain(secret)
      expect(text).not.toContain(encoded)
    }
    expect(logged.length).toBeGreaterThanOrEqual(answers.length)
  })
})
