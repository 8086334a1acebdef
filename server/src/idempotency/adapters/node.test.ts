import { randomUUID } from 'node:crypto'
import { once as event } from 'node:events'
import { createServer, request as httpRequest, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import { connect } from 'node:net'
import { DatabaseSync } from 'node:sqlite'
import { Readable } from 'node:stream'
import { text } from 'node:stream/consumers'
import { pipeline } from 'node:stream/promises'
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'
import { createIdempotency, sqliteKeys } from '../index.ts'
import { listen } from '../testing/listen.ts'

const database = new DatabaseSync(':memory:')
const RESPONSE_MAX_BYTES = 1_000
let errors: string[] = []
const once = createIdempotency({
  keys: sqliteKeys(database),
  responseMaxBytes: RESPONSE_MAX_BYTES,
  onError: (error) => void errors.push(String(error)),
})

type Handler = (req: IncomingMessage, res: ServerResponse) => unknown
let before: (req: IncomingMessage) => unknown
let handler: Handler
let runs = 0
let server: Server
let url: string

beforeAll(async () => {
  server = createServer(async (req, res) => {
    res.setHeader('x-served-by', 'shop')
    await before(req)
    await once.node(req, res, { route: 'POST /orders', user: 'ann' }, () => {
      runs += 1
      return handler(req, res)
    })
  })
  url = await listen(server)
})
beforeEach(() => {
  before = () => {}
  runs = 0
  errors = []
})
afterAll(() => {
  server.close().closeAllConnections()
  database.close()
})

async function post(key: string, body?: string) {
  const response = await fetch(url, { method: 'POST', headers: { 'idempotency-key': key }, ...(body ? { body } : {}) })
  return { status: response.status, headers: response.headers, text: await response.text() }
}

/** The same request twice; the second is a replay of the first, but for headers that are not kept. */
async function twice(answer: Handler, body?: string) {
  handler = answer
  const key = randomUUID()
  const first = await post(key, body)
  const again = await post(key, body)
  expect([again.status, again.text, runs]).toEqual([first.status, first.text, 1])
  expect([first.headers.get('idempotent-replayed'), again.headers.get('idempotent-replayed')]).toEqual([null, 'true'])
  for (const { headers } of [first, again]) expect(headers.get('x-served-by')).toBe('shop')
  return { first, again }
}

test.each<[string, (res: ServerResponse) => void]>([
  ['an object', (res) => res.writeHead(201, { location: '/1', etag: '"a"' })],
  ['a reason and an object', (res) => res.writeHead(201, 'Made', { location: '/1', etag: '"a"' })],
  ['a flat list', (res) => res.writeHead(201, ['location', '/1', 'etag', '"a"'])],
  ['setHeader', (res) => void res.setHeader('location', '/1').setHeader('etag', '"a"')],
])('headers may be given as %s', async (form, give) => {
  const { first, again } = await twice((_, res) => {
    res.statusCode = 201
    give(res)
    res.end('made')
  })
  for (const one of [first, again]) {
    expect([one.status, one.headers.get('location'), one.headers.get('etag')]).toEqual([201, '/1', '"a"'])
  }
  expect(form).toBeTruthy()
})

test('an answer in pieces, with callbacks, after the handler returned, is stored', async () => {
  const called: string[] = []
  const { first } = await twice((_, res) => {
    setImmediate(() => {
      res.write('one ', () => called.push('write'))
      res.write(Buffer.from('two '))
      res.end('dHJlaQ==', 'base64', () => called.push('end'))
    })
  })
  expect(first.text).toBe('one two trei')
  expect(called).toEqual(['write', 'end'])
})

test('a 204 has no body, and only the first caller gets the cookies', async () => {
  const { first, again } = await twice((_, res) => res.writeHead(204, { 'set-cookie': ['a=1', 'b=2'] }).end())
  expect([first.headers.getSetCookie(), again.headers.getSetCookie()]).toEqual([['a=1', 'b=2'], []])
})

test('only the first answer of a handler counts', async () => {
  const { first } = await twice((_, res) => {
    res.setHeader('location', '/1')
    res.end('good')
    res.statusCode = 500
    res.removeHeader('location')
    res.end('too late')
    throw new Error('too late, too')
  })
  expect([first.status, first.text, first.headers.get('location')]).toEqual([200, 'good', '/1'])
  expect(errors).toEqual(['Error: too late, too'])
})

test('a body that is too large is sent at the pace of its reader', async () => {
  handler = (_, res) => pipeline(Readable.from(Array.from({ length: 200 }, () => Buffer.alloc(10_000, 'x'))), res)
  const key = randomUUID()
  expect((await post(key)).text).toHaveLength(2_000_000)
  const again = await post(key)
  expect([again.status, JSON.parse(again.text).error.code, runs]).toEqual([200, 'IDEMPOTENT_BODY_NOT_KEPT', 1])
})

test.each<[string, Handler]>([
  ['cuts the connection', (_, res) => void res.destroy()],
  [
    'throws with half of its answer written',
    (_, res) => {
      res.write('half')
      throw new Error('on purpose')
    },
  ],
  [
    'pipes a stream that breaks',
    (_, res) =>
      pipeline(
        Readable.from(
          (async function* () {
            yield 'half'
            throw new Error('on purpose')
          })(),
        ),
        res,
      ),
  ],
])('a handler that %s has failed and is not run again', async (_, broken) => {
  handler = broken
  const key = randomUUID()
  const first = await post(key)
  expect([first.status, JSON.parse(first.text).error.code]).toEqual([500, 'INTERNAL'])
  expect(JSON.parse((await post(key)).text).error.code).toBe('IDEMPOTENCY_IN_DOUBT')
  expect(runs).toBe(1)
})

test('later writes of a refused event stream are ignored', async () => {
  const ended = Promise.withResolvers<void>()
  handler = async (_, res) => {
    res.writeHead(200, { 'content-type': 'text/event-stream' }).flushHeaders()
    res.write('data: 1\n\n')
    await event(res, 'close')
    res.write('data: 2\n\n')
    res.end()
    ended.resolve()
  }
  const refused = await post(randomUUID())
  expect([refused.status, JSON.parse(refused.text).error.code]).toEqual([500, 'IDEMPOTENCY_STREAM_REFUSED'])
  await ended.promise
})

test('the answer of a disconnected caller is replayed when it returns', async () => {
  const key = randomUUID()
  const [entered, gone] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
  handler = async (_, res) => {
    entered.resolve()
    await gone.promise
    res.end('made')
  }
  const req = httpRequest(url, { method: 'POST', headers: { 'idempotency-key': key } })
  req.on('error', () => {}).end()
  await entered.promise
  req.destroy()
  gone.resolve()
  const again = await post(key)
  expect([again.status, again.text, runs]).toEqual([200, 'made', 1])
})

test('a request that breaks off before its body has no effect', async () => {
  const key = randomUUID()
  const arrived = Promise.withResolvers<IncomingMessage>()
  before = (req) => arrived.resolve(req)
  const socket = connect(Number(new URL(url).port), '127.0.0.1')
  socket.write(`POST / HTTP/1.1\r\nhost: shop\r\nidempotency-key: ${key}\r\ncontent-length: 100\r\n\r\nhalf`)
  const req = await arrived.promise
  const closed = new Promise((resolve) => req.once('close', resolve))
  socket.destroy()
  await closed
  expect(runs).toBe(0)
  handler = (_, res) => res.end('made')
  expect((await post(key, 'whole')).headers.get('idempotent-replayed')).toBeNull()
  expect(errors).toEqual([])
})

test('a body without a length is compared, too', async () => {
  const send = async (key: string, ...parts: string[]) => {
    const req = httpRequest(url, {
      method: 'POST',
      headers: { 'idempotency-key': key, 'transfer-encoding': 'chunked' },
    })
    for (const part of parts) req.write(part)
    req.end()
    const [res]: IncomingMessage[] = await event(req, 'response')
    return [res?.statusCode, res ? await text(res) : '']
  }
  handler = async (req, res) => res.end(await text(req))
  const key = randomUUID()
  expect(await send(key, 'a', 'b')).toEqual([200, 'ab'])
  expect(await send(key, 'ab')).toEqual([200, 'ab'])
  expect(await send(key, 'abc')).toEqual([409, expect.stringContaining('IDEMPOTENCY_KEY_REUSED')])
  expect(await send(randomUUID())).toEqual([200, ''])
})

test('a body that was read and not kept is an error, and the handler does not run', async () => {
  before = (req) => text(req)
  const answer = await post(randomUUID(), 'gone')
  expect([answer.status, JSON.parse(answer.text).error.code, runs]).toEqual([500, 'INTERNAL', 0])
  expect(errors).toEqual([expect.stringContaining('let the plugin go first')])
})

test('callOf throws for a request that did not pass the plugin', () => {
  const stranger = Object.create(null)
  expect(() => once.callOf(stranger)).toThrow('did not come through the node adapter')
})
