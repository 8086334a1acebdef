import { once } from 'node:events'
import { createServer, type IncomingMessage, type Server } from 'node:http'
import { text } from 'node:stream/consumers'
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'
import { IchidoError } from '../protocol/index.ts'
import { Client } from './client.ts'
import { httpTransport } from './http.ts'

interface Seen {
  method: string
  url: string
  headers: IncomingMessage['headers']
  body: unknown
}

interface Answer {
  status?: number
  headers?: Record<string, string>
  body: string
}

let server: Server
let origin: string
let seen: Seen[]
let answer: (request: Seen) => Answer | Promise<Answer>

beforeAll(async () => {
  server = createServer(async (request, response) => {
    const body = await text(request)
    const { method = '', url = '', headers } = request
    const one = { method, url, headers, body: body === '' ? undefined : JSON.parse(body) }
    seen.push(one)
    const { status = 200, headers: answered = {}, body: sent } = await answer(one)
    response.writeHead(status, answered).end(sent)
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address()
  if (address === null || typeof address === 'string') throw new Error('It listens on a port')
  origin = `http://127.0.0.1:${address.port}`
})
afterAll(() => server.close())
beforeEach(() => {
  seen = []
})

const client = (path = '', token?: string) => new Client(httpTransport({ url: `${origin}${path}`, token }))
const json = (body: unknown, more: Omit<Answer, 'body'> = {}): Answer => ({ ...more, body: JSON.stringify(body) })
const JOB = { job_id: 'a-job', state: 'PENDING' }

async function thrownBy(call: Promise<unknown>): Promise<unknown> {
  return call.then(
    () => Promise.reject(new Error('It should have been refused')),
    (error: unknown) => error,
  )
}

test('a submit sends what it was given, under the base path, with key and token', async () => {
  answer = () => json(JOB, { status: 201 })
  const job = await client('/jobs/here/', 'secret').submit('resize', { width: 80 }, { key: '"ci"/é 1', priority: 3 })
  expect(job).toMatchObject({ id: 'a-job', replayed: false })
  expect(seen).toMatchObject([
    {
      method: 'POST',
      url: '/jobs/here/v1/jobs',
      headers: { authorization: 'Bearer secret', 'content-type': 'application/json' },
    },
  ])
  // Exactly these members: one that is not set counts as not sent.
  expect(seen[0]?.body).toEqual({
    kind: 'resize',
    queue: 'default',
    payload: { width: 80 },
    priority: 3,
    idempotency_key: '"ci"/é 1',
  })
})

test('without a token there is no Authorization, without a body no Content-Type', async () => {
  answer = () => json(JOB)
  await client().job('a-job').get()
  expect(seen[0]?.headers).not.toHaveProperty('authorization')
  expect(seen[0]?.headers).not.toHaveProperty('content-type')
})

test.each([
  ['true', true],
  ['false', false],
  [undefined, false],
])('Idempotent-Replayed: %s is replayed %s', async (header, replayed) => {
  answer = () => json(JOB, header === undefined ? {} : { headers: { 'idempotent-replayed': header } })
  expect(await client().submit('work', null)).toMatchObject({ replayed })
})

test('ids and filters are percent-encoded', async () => {
  answer = () => json({ data: [], next_cursor: null })
  const odd = client().job('a/b?c#d%')
  await odd.get()
  await odd.cancel()
  await client().list({ label: 'env:a&b=c', state: 'PENDING,RUNNING', limit: 5 })
  expect(seen.map(({ method, url }) => `${method} ${url}`)).toEqual([
    'GET /v1/jobs/a%2Fb%3Fc%23d%25',
    'POST /v1/jobs/a%2Fb%3Fc%23d%25/cancel',
    'GET /v1/jobs?label=env%3Aa%26b%3Dc&state=PENDING%2CRUNNING&limit=5',
  ])
})

test('an error answer is thrown as what it says', async () => {
  const error = { code: 'QUOTA_EXCEEDED', message: 'Quota exceeded', details: { max: 5 }, request_id: 'r-1' }
  answer = () => json({ error }, { status: 409 })
  const thrown = await thrownBy(client().submit('work', null))
  expect(thrown).toBeInstanceOf(IchidoError)
  expect(thrown).toMatchObject({
    name: 'IchidoError',
    code: 'QUOTA_EXCEEDED',
    message: 'Quota exceeded',
    details: { max: 5, request_id: 'r-1' },
    status: 409,
    retryable: false,
  })
})

test.each<[string, Answer]>([
  ['an HTML page as an error', { status: 502, body: '<h1>Bad Gateway</h1>' }],
  ['an HTML page as an answer', { body: '<h1>Please log in</h1>' }],
  ['JSON that is no envelope', json({ error: 'nope' }, { status: 500 })],
  ['a code that only an object has', json({ error: { code: 'toString' } }, { status: 500 })],
  ['a code that nobody knows', json({ error: { code: 'TEAPOT', message: 'short and stout' } }, { status: 418 })],
  ['nothing', { status: 500, body: '' }],
])('%s is a clear error', async (_, sent) => {
  answer = () => sent
  const thrown = await thrownBy(client().job('a-job').get())
  expect(thrown).toBeInstanceOf(Error)
  expect(thrown).not.toBeInstanceOf(IchidoError)
  expect(String(thrown)).toContain(`The server answered ${sent.status ?? 200} with something that is not Ichido's`)
  expect(String(thrown)).toContain(sent.body.slice(0, 20))
})

test('a result is asked for again until it is there', async () => {
  const notReady = { error: { code: 'RESULT_NOT_READY', message: 'not yet', details: {}, request_id: 'r' } }
  answer = () => (seen.length < 3 ? json(notReady, { status: 409 }) : json({ ...JOB, result: { bytes: 7 } }))
  expect(await client().job('a-job').result()).toEqual({ bytes: 7 })
  expect(seen.map(({ url }) => url)).toEqual(Array.from({ length: 3 }, () => '/v1/jobs/a-job/result?wait_seconds=20'))
})

test('a wait can be called off', async () => {
  const arrived = Promise.withResolvers<void>()
  answer = () => {
    arrived.resolve()
    return new Promise(() => {})
  }
  const controller = new AbortController()
  const result = client().job('a-job').result({ signal: controller.signal })
  await arrived.promise
  controller.abort(new Error('enough'))
  await expect(result).rejects.toThrow('enough')
  server.closeAllConnections()
})

test('a transaction cannot be carried over HTTP', async () => {
  await expect(client().submit('work', null, { tx: {} })).rejects.toThrow(TypeError)
  expect(seen).toEqual([])
})
