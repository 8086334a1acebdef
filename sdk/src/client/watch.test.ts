import { once } from 'node:events'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'
import { IchidoError } from '../protocol/index.ts'
import type { Timers } from '../world.ts'
import { Client } from './client.ts'
import { httpTransport } from './http.ts'
import type { WatchOptions } from './transport.ts'

const SILENCE_MS = 45_000

type Turn = (response: ServerResponse, request: IncomingMessage) => void

let server: Server
let origin: string
let urls: string[]
/** The answers to the connections, in order. */
let turns: Turn[]
/** How long it waited each time before it came again; it does not wait in truth. */
let waits: number[]
let silence: (() => void)[]

beforeAll(async () => {
  server = createServer((request, response) => {
    urls.push(request.url ?? '')
    const turn = turns[urls.length - 1]
    if (turn === undefined) throw new Error('It came once too often')
    turn(response, request)
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address()
  if (address === null || typeof address === 'string') throw new Error('It listens on a port')
  origin = `http://127.0.0.1:${address.port}`
})
afterAll(() => {
  server.closeAllConnections()
  server.close()
})
beforeEach(() => {
  urls = []
  waits = []
  silence = []
})

const timers: Timers = {
  random: () => 1,
  after(ms, callback) {
    if (ms === SILENCE_MS) {
      silence.push(callback)
      return () => {}
    }
    waits.push(ms)
    const timer = setImmediate(callback)
    return () => clearImmediate(timer)
  },
}

const client = (token?: string) => new Client(httpTransport({ url: origin, token, world: timers }))
const eventOf = (cursor: number) => ({ cursor, stage: 'progress', seq: cursor, data: '€', timestamp: '' })
const message = (cursor: number) => `id: ${cursor}\ndata: ${JSON.stringify(eventOf(cursor))}\n\n`
const END = 'event: end\ndata: {"state":"SUCCEEDED"}\n\n'

/** Says this, piece by piece, and ends the stream or breaks it off. */
const says =
  (...pieces: string[]): Turn =>
  (response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    for (const piece of pieces) response.write(piece)
    response.end()
  }
const breaks =
  (...pieces: string[]): Turn =>
  (response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    response.write(pieces.join(''), () => response.destroy())
  }
const refuses =
  (status: number, body: string): Turn =>
  (response) =>
    void response.writeHead(status).end(body)
const errorBody = (code: string) => JSON.stringify({ error: { code, message: 'm', details: {}, request_id: 'r' } })

async function cursors(options: WatchOptions = {}): Promise<number[]> {
  const seen: number[] = []
  for await (const event of client('t').job('a/job').watch(options)) {
    expect(event).toEqual(eventOf(event.cursor))
    seen.push(event.cursor)
  }
  return seen
}

test('every event comes once, through ends, breaks, refusals and repeats', async () => {
  const trouble: unknown[] = []
  turns = [
    says('retry: 2000\n\n', message(4), ':\n\n', message(5)),
    breaks(message(6), 'id: 7\ndata: {"cur'),
    (response) => void response.destroy(),
    refuses(503, errorBody('UNAVAILABLE')),
    refuses(502, '<h1>Bad Gateway</h1>'),
    says(message(5), message(6), message(7), END),
  ]
  expect(await cursors({ after: 3, onTrouble: (error) => void trouble.push(error) })).toEqual([4, 5, 6, 7])
  expect(urls.map((url) => url.replace('/v1/jobs/a%2Fjob/events?', ''))).toEqual([
    'after=3',
    'after=5',
    ...Array<string>(4).fill('after=6'),
  ])
  expect(waits).toEqual([2_000, 300, 600, 1_200, 2_400])
  expect(trouble.map((error) => (error === null ? null : error instanceof Error))).toEqual([
    true,
    true,
    true,
    true,
    null,
  ])
})

test('a watch starts after a seq, and reconnects with it until the first event', async () => {
  const over: Turn = (response, { headers }) => {
    expect([headers.authorization, headers.accept]).toEqual(['Bearer t', 'text/event-stream'])
    response.writeHead(204).end()
  }
  turns = [says(':\n\n'), says(message(9)), over]
  expect(await cursors({ lastSeq: 30 })).toEqual([9])
  expect(urls.map((url) => url.split('?')[1])).toEqual(['last_seq=30', 'last_seq=30', 'after=9'])
})

test('after a reset the watch continues from its cursor, even from an earlier one', async () => {
  const states: unknown[] = []
  const reset = `id: 3\nevent: reset\ndata: ${JSON.stringify({ cursor: 3, state: 'RUNNING' })}\n\n`
  turns = [says(reset), says(message(4), END)]
  expect(await cursors({ after: 99, onReset: (state) => void states.push(state) })).toEqual([4])
  expect([states, urls.map((url) => url.split('?')[1])]).toEqual([
    [{ cursor: 3, state: 'RUNNING' }],
    ['after=99', 'after=3'],
  ])
})

test.each([
  ['a refusal', refuses(404, errorBody('NOT_FOUND')), 'NOT_FOUND'],
  ['a problem', says(`event: problem\ndata: ${errorBody('NOT_FOUND')}\n\n`), 'NOT_FOUND'],
])('%s that is permanent is thrown', async (_, turn, code) => {
  turns = [turn]
  const thrown = await cursors().catch((error: unknown) => error)
  expect(thrown).toBeInstanceOf(IchidoError)
  expect(thrown).toMatchObject({ code })
})

test('a page instead of the stream is an error and is not retried', async () => {
  turns = [
    (response) => response.writeHead(200, { 'content-type': 'text/html' }).end('<p>Log in to use this network</p>'),
  ]
  await expect(cursors()).rejects.toThrow('answered 200 and the answer is not from Ichido: <p>Log in')
  expect(urls).toHaveLength(1)
})

test('an error of the caller ends the watch', async () => {
  turns = [(response) => void response.destroy()]
  const giveUp = () => {
    throw new Error('enough')
  }
  await expect(cursors({ onTrouble: giveUp })).rejects.toThrow('enough')
})

test('a silent connection is closed', async () => {
  const opened = Promise.withResolvers<void>()
  turns = [
    (response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' }).write(message(1), () => opened.resolve())
    },
    says(message(2), END),
  ]
  const seen = cursors()
  await opened.promise
  while (silence.length < 3) await new Promise((resolve) => setImmediate(resolve))
  silence.at(-1)?.()
  expect(await seen).toEqual([1, 2])
})

test('an abort or a break closes the connection', async () => {
  const closed = Promise.withResolvers<void>()
  turns = [
    (response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' }).write(message(1))
      response.on('close', () => closed.resolve())
    },
    (response) => void response.writeHead(200, { 'content-type': 'text/event-stream' }).write(message(1)),
  ]
  for await (const _ of client().watch('a-job')) break
  await closed.promise
  const controller = new AbortController()
  const watching = (async () => {
    for await (const _ of client().watch('a-job', { signal: controller.signal })) controller.abort(new Error('enough'))
  })()
  await expect(watching).rejects.toThrow('enough')
})
