import { once } from 'node:events'
import { createServer, type IncomingMessage, type Server } from 'node:http'
import { text } from 'node:stream/consumers'
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'
import { IchidoError } from '../protocol/index.ts'
import { platformTimers } from '../world.ts'
import { Client } from './client.ts'
import { ForeignAnswer, MaxRetriesExceeded, NoAnswer, QuotaExceeded, Transient } from './errors.ts'
import { httpTransport } from './http.ts'
import type { RetryOptions } from './retry.ts'

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

/** The connection is cut instead of an answer. */
const CUT = 'cut' as const

let server: Server
let origin: string
let seen: Seen[]
let answer: (request: Seen) => Answer | typeof CUT | Promise<Answer>

beforeAll(async () => {
  server = createServer(async (request, response) => {
    const body = await text(request)
    const { method = '', url = '', headers } = request
    const one = { method, url, headers, body: body === '' ? undefined : JSON.parse(body) }
    seen.push(one)
    const given = await answer(one)
    if (given === CUT) return void request.socket.destroy()
    const { status = 200, headers: answered = {}, body: sent } = given
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
  waits = []
})

/** Waits between tries, which take no time here; how long one may take stays as it is. */
let waits: number[]
const world = {
  random: () => 0.5,
  after(ms: number, callback: () => void) {
    if (ms >= 100_000) return platformTimers.after(ms, callback)
    waits.push(ms)
    return platformTimers.after(0, callback)
  },
}

const client = (path = '', token?: string, retry?: RetryOptions) =>
  new Client(httpTransport({ url: `${origin}${path}`, token, retry, world }))
const json = (body: unknown, more: Omit<Answer, 'body'> = {}): Answer => ({ ...more, body: JSON.stringify(body) })
const JOB = { job_id: 'a-job', state: 'PENDING', quota_warnings: [], cost_limit_warning: null }

async function thrownBy(call: Promise<unknown>): Promise<unknown> {
  return call.then(
    () => Promise.reject(new Error('It should have been refused')),
    (error: unknown) => error,
  )
}

test('submit sends its options under the base path, with key and token', async () => {
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

test('a token in the URL is sent; an explicit token overrides it', async () => {
  answer = () => json(JOB)
  const url = origin.replace('//', '//ci:in-url@')
  for (const token of [undefined, 'given']) await new Client(httpTransport({ url, token })).job('a-job').get()
  expect(seen.map(({ headers }) => headers.authorization)).toEqual(['Bearer in-url', 'Bearer given'])
})

test('no error message contains the token of the URL', async () => {
  answer = () => CUT
  const url = origin.replace('//', '//ci:in-url@')
  const cut = await thrownBy(new Client(httpTransport({ url, retry: { tries: 1 }, world })).job('a-job').get())
  expect(cut).toMatchObject({ message: expect.stringContaining(`No answer from ${origin}: `) })
  const odd = () => httpTransport({ url: 'https://ci:p%40ss@jobs.lab' })
  expect(odd).toThrow(new TypeError('https://jobs.lab has a password that is not a token'))
})

test('a URL without http:// or https:// is refused', async () => {
  const thrown = await thrownBy(new Client(httpTransport({ url: 'localhost:8001', world })).job('a-job').get())
  expect(thrown).toEqual(new TypeError('localhost:8001 must begin with http:// or https://'))
  expect(waits).toEqual([])
})

test('trigger data that JSON cannot hold is refused with its path', async () => {
  const thrown = await thrownBy(client().trigger('paid', { order: { id: 7n } }))
  expect(thrown).toMatchObject({ name: 'InvalidValue', message: expect.stringContaining('data.order.id is a BigInt') })
  expect(seen).toEqual([])
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

const refused = (code: string, more: Omit<Answer, 'body'> = {}) =>
  json({ error: { code, message: code, details: { max: 5 }, request_id: 'r-1' } }, { status: 409, ...more })

test('an error answer is thrown with its code, and not retried', async () => {
  answer = () => refused('QUOTA_EXCEEDED', { headers: { 'should-retry': 'true', 'retry-after': '1' } })
  const thrown = await thrownBy(client().submit('work', null))
  expect(thrown).toBeInstanceOf(QuotaExceeded)
  expect(thrown).toBeInstanceOf(IchidoError)
  expect(thrown).toMatchObject({
    name: 'QuotaExceeded',
    code: 'QUOTA_EXCEEDED',
    message: 'QUOTA_EXCEEDED',
    details: { max: 5, request_id: 'r-1' },
    status: 409,
    retryable: false,
  })
  expect(seen).toHaveLength(1)
})

test.each<[string, Answer]>([
  ['an HTML page as an error', { status: 502, body: '<h1>Bad Gateway</h1>' }],
  ['an HTML page that refuses', { status: 403, body: '<h1>Forbidden</h1>' }],
  ['an HTML page as an answer', { body: '<h1>Please log in</h1>' }],
  ['JSON that is no envelope', json({ error: 'nope' }, { status: 500 })],
  ['a code that only an object has', json({ error: { code: 'toString' } }, { status: 500 })],
  ['a code that nobody knows', json({ error: { code: 'TEAPOT', message: 'short and stout' } }, { status: 418 })],
  ['nothing', { status: 500, body: '' }],
])('%s is a ForeignAnswer, retried if its status allows it', async (_, sent) => {
  const { status = 200, body } = sent
  answer = () => sent
  const thrown = await thrownBy(client().job('a-job').get())
  expect(String(thrown)).toContain(`The server answered ${status} and the answer is not from Ichido`)
  expect(String(thrown)).toContain(body.slice(0, 20))
  expect(seen).toHaveLength(status >= 500 ? 3 : 1)
  if (status >= 500) expect(thrown).toMatchObject({ name: 'MaxRetriesExceeded', cause: expect.any(ForeignAnswer) })
  else expect(thrown).toBeInstanceOf(ForeignAnswer)
})

test('a submission keeps its key over all tries and sends the number of the try', async () => {
  const answers = [
    () => CUT,
    () => refused('UNAVAILABLE', { status: 503, headers: { 'retry-after': '7' } }),
    () => json(JOB, { status: 201, headers: { 'idempotent-replayed': 'true' } }),
  ] as const
  answer = () => answers[Math.min(seen.length, answers.length) - 1]?.() ?? CUT
  const told: unknown[] = []
  const onRetry = ({ error, key }: { error: unknown; key: string | undefined }) => void told.push([error, key])
  expect(await client('', undefined, { onRetry }).submit('work', { n: 1 })).toMatchObject({
    id: 'a-job',
    replayed: true,
  })
  expect(seen.map(({ headers }) => headers['ichido-attempt'])).toEqual(['1', '2', '3'])
  const [key, ...others] = seen.map(({ body }) => (body as { idempotency_key: string }).idempotency_key)
  expect(key).toMatch(/^client-[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}$/)
  expect(others).toEqual([key, key])
  expect(waits).toEqual([1_000, 7_350])
  expect(told).toEqual([
    [expect.any(NoAnswer), key],
    [expect.objectContaining({ code: 'UNAVAILABLE', retryAfterMs: 7_000 }), key],
  ])
  await client().submit('work', { n: 1 })
  expect(seen[3]?.body).not.toMatchObject({ idempotency_key: key })
})

test('after a timeout the error contains the key of the submission', async () => {
  answer = () => new Promise(() => {})
  const timers = { after: (ms: number, callback: () => void) => platformTimers.after(ms / 1_000, callback) }
  const patient = new Client(httpTransport({ url: origin, world: timers, retry: { tries: 2 } }))
  const thrown = await thrownBy(patient.submit('work', null, { key: 'mine' }))
  server.closeAllConnections()
  expect(thrown).toBeInstanceOf(MaxRetriesExceeded)
  expect(thrown).toMatchObject({ code: 'UNAVAILABLE', key: 'mine', tries: 2, cause: { name: 'NoAnswer' } })
  expect(String(thrown)).toContain('No answer within 120 s')
  expect(String(thrown)).toContain('The job may have been created; submit again with the key mine to get one job')
  expect(seen).toHaveLength(2)
})

test('an unreachable server is reported with the network error', async () => {
  const nobody = new Client(httpTransport({ url: 'http://127.0.0.1:2', world, retry: { tries: 1 } }))
  const thrown = await thrownBy(nobody.list())
  expect(thrown).toBeInstanceOf(Transient)
  expect(String(thrown)).toMatch(/^Transient: No answer from http:\/\/127.0.0.1:2: connect ECONNREFUSED/)
})

test.each<[string, () => Promise<unknown>]>([
  ['a token that no header can carry', () => client('', 'a\nb').list()],
  ['an address that is none', () => new Client(httpTransport({ url: 'nowhere' })).list()],
])('%s is a mistake of the caller and is not retried', async (_, call) => {
  expect(await thrownBy(call())).toBeInstanceOf(TypeError)
  expect([seen, waits]).toEqual([[], []])
})

test.each<[RetryOptions, string]>([
  [{ tries: 0 }, 'retry.tries must be a whole number from 1'],
  [{ tries: 1.5 }, 'retry.tries must be a whole number from 1'],
  [{ timeoutMs: Number.NaN }, 'retry.timeoutMs must be a number of ms above 0'],
  [{ totalMs: -1 }, 'retry.totalMs must be a number of ms above 0'],
])('%j is refused', (retry, message) => {
  expect(() => httpTransport({ url: origin, retry })).toThrow(message)
})

test('each job of a batch has its own key over all tries, and its own outcome', async () => {
  const error = { code: 'IDEMPOTENCY_KEY_REUSED', message: 'no', details: { job_id: 'j' }, request_id: 'r' }
  const gone = { code: 'UNAVAILABLE', message: 'gone', details: {}, request_id: 'r' }
  const data = [
    { status: 201, replayed: true, body: { ...JOB, quota_warnings: ['1 of 1'], cost_limit_warning: 'much' } },
    { status: 409, replayed: false, error },
    { status: 503, replayed: false, error: gone },
  ]
  answer = () => (seen.length === 1 ? CUT : json({ data }))
  const [first, second, third] = await client().batch([
    { kind: 'a', payload: 1, key: 'mine' },
    { kind: 'b', payload: 2, labels: { x: 'y' } },
    { kind: 'c', payload: 3 },
  ])
  expect(first).toMatchObject({ value: { id: 'a-job', replayed: true, warnings: ['1 of 1', 'much'] } })
  expect(second).toMatchObject({ reason: { name: 'KeyReused', details: { job_id: 'j', request_id: 'r' } } })
  const auto = expect.stringMatching(/^client-/)
  expect(third).toMatchObject({ reason: { name: 'Transient', key: auto } })
  expect(seen).toHaveLength(2)
  expect(seen[1]?.body).toEqual(seen[0]?.body)
  expect(seen[0]?.body).toEqual({
    jobs: [
      { kind: 'a', queue: 'default', payload: 1, idempotency_key: 'mine' },
      { kind: 'b', queue: 'default', payload: 2, labels: { x: 'y' }, idempotency_key: auto },
      { kind: 'c', queue: 'default', payload: 3, idempotency_key: auto },
    ],
  })
})

test('job.retry is sent once; with a payload it has a key and is retried', async () => {
  answer = () => CUT
  expect(await thrownBy(client().job('a-job').retry())).toMatchObject({ name: 'Transient', key: undefined })
  expect(seen).toMatchObject([{ url: '/v1/jobs/a-job/retry', body: {} }])
  seen = []
  answer = () => (seen.length === 1 ? CUT : json({ job_id: 'b-job' }, { headers: { 'idempotent-replayed': 'true' } }))
  const job = await client().job('a-job').retry({ payload: null, key: '"a\\b' })
  expect(job).toMatchObject({ id: 'b-job', replayed: true })
  const sent = { body: { payload: null }, headers: { 'idempotency-key': '"\\"a\\\\b"' } }
  expect(seen).toMatchObject([sent, sent])
  expect(await thrownBy(client().job('a-job').retry({ payload: 1, key: 'é' }))).toMatchObject({
    details: { field: 'key' },
  })
})

test('a retried reservation has the same id, so it holds one slot', async () => {
  answer = () => (seen.length === 1 ? CUT : json({ reservation_id: 'r' }, { status: 201 }))
  await client().reservations.reserve({ ttlSeconds: 60 })
  expect(seen).toHaveLength(2)
  expect(seen[0]?.body).toEqual({ ttl_seconds: 60, reservation_id: expect.stringMatching(/^[0-9a-f-]{36}$/) })
  expect(seen[1]?.body).toEqual(seen[0]?.body)
})

test('result() polls until the result is ready', async () => {
  const notReady = { error: { code: 'RESULT_NOT_READY', message: 'not yet', details: {}, request_id: 'r' } }
  answer = () => (seen.length < 3 ? json(notReady, { status: 409 }) : json({ ...JOB, result: { bytes: 7 } }))
  expect(await client().job('a-job').result()).toEqual({ bytes: 7 })
  expect(seen.map(({ url }) => url)).toEqual(Array.from({ length: 3 }, () => '/v1/jobs/a-job/result?wait_seconds=20'))
})

test('a wait can be aborted', async () => {
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

test('tx is refused over HTTP', async () => {
  await expect(client().submit('work', null, { tx: {} })).rejects.toThrow(TypeError)
  expect(seen).toEqual([])
})
