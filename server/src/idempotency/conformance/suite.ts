import { randomUUID } from 'node:crypto'
import { request as httpRequest, type Server } from 'node:http'
import { text } from 'node:stream/consumers'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createIdempotency } from '../index.ts'
import { listen } from '../testing/listen.ts'
import type { Framework } from './frameworks.ts'
import { type Order, type Shop, serveOrder } from './shop.ts'

const RESPONSE_MAX_BYTES = 20_000
const CALLERS = 8

/** The tests for every framework and every database. */
export function conforms<Tx, Returned>(framework: Framework, open: () => Shop<Tx, Returned>): void {
  const wait = Promise.withResolvers<void>()
  let shop: Shop<Tx, Returned>
  let server: Server
  let url: string

  beforeAll(async () => {
    shop = open()
    const settings = { keys: shop.keys, responseMaxBytes: RESPONSE_MAX_BYTES, onError: () => {} }
    server = await framework({
      once: createIdempotency(settings),
      impatient: createIdempotency({ ...settings, waitMs: 0 }),
      handle: (call, order) => serveOrder(shop, call, order, wait.promise),
    })
    url = await listen(server)
  })

  afterAll(() => void server.close().closeAllConnections())

  type Sent = { path?: string; user?: string; headers?: Record<string, string>; body?: string }

  async function post(
    key: string | null,
    order: Order,
    { path = '/orders/1', user = 'ann', headers, body }: Sent = {},
  ) {
    const response = await fetch(url + path, {
      method: 'POST',
      redirect: 'manual',
      headers: {
        'content-type': 'application/json',
        'x-user': user,
        ...(key === null ? {} : { 'idempotency-key': key }),
        ...headers,
      },
      body: body ?? JSON.stringify(order),
    })
    const said = (name: string) => response.headers.get(name)
    return { status: response.status, said, replayed: said('idempotent-replayed'), text: await response.text() }
  }
  type Reply = Awaited<ReturnType<typeof post>>

  const fresh = () => ({ key: `key-${randomUUID()}`, note: `note-${randomUUID()}` })
  const codeOf = (reply: Reply): unknown => JSON.parse(reply.text).error.code
  const expectReplay = (again: Reply, first: Reply) => {
    expect(first.replayed).toBeNull()
    expect([again.status, again.text, again.replayed]).toEqual([first.status, first.text, 'true'])
    for (const name of ['content-type', 'location']) expect(again.said(name)).toBe(first.said(name))
  }

  test('the first request runs; every other one gets its status, body and headers', async () => {
    const { key, note } = fresh()
    const first = await post(key, { note })
    expect(first.status).toBe(201)
    expect(first.said('location')).toBe(`/orders/${note}`)
    expectReplay(await post(key, { note }), first)
    expectReplay(await post(`"${key}"`, { note }), first)
    expect(await shop.count(note)).toBe(1)
  })

  test('the order of JSON members does not matter; values, query and path do', async () => {
    const { key, note } = fresh()
    const first = await post(key, { note, act: 'section' }, { path: '/orders/1?draft=yes' })
    const turned = `{ "act": "section",\n "note": "${note}" }`
    expectReplay(await post(key, { note }, { path: '/orders/1?draft=yes', body: turned }), first)
    for (const [order, path] of [
      [{ note, act: 'section' }, '/orders/1'],
      [{ note, act: 'section' }, '/orders/1?draft=no'],
      [{ note, act: 'section' }, '/orders/2?draft=yes'],
      [{ note, act: 'write' }, '/orders/1?draft=yes'],
    ] as const) {
      const other = await post(key, order, { path })
      expect([other.status, codeOf(other), other.said('should-retry')]).toEqual([
        409,
        'IDEMPOTENCY_KEY_REUSED',
        'false',
      ])
    }
    expect(await shop.count(note)).toBe(1)
  })

  test('a key belongs to its user and its route', async () => {
    const { key, note } = fresh()
    for (const sent of [{ user: 'ann' }, { user: 'bob' }, { path: '/notes' }]) {
      expect((await post(key, { note }, sent)).replayed).toBeNull()
    }
    expect(await shop.count(note)).toBe(3)
  })

  test('a required key that is missing, malformed or too long is refused, and nothing runs', async () => {
    const { note } = fresh()
    for (const [key, message] of [
      [null, 'Missing required header: Idempotency-Key'],
      [
        'two words',
        'Idempotency-Key must be visible ASCII (letters, digits and punctuation, no spaces); character 4 is U+0020',
      ],
      ['k'.repeat(257), 'Idempotency-Key must have at most 256 characters, has 257'],
    ] as const) {
      const reply = await post(key, { note })
      expect([reply.status, JSON.parse(reply.text).error]).toEqual([
        400,
        { code: 'INVALID_PAYLOAD', message, details: { field: 'Idempotency-Key' } },
      ])
    }
    expect((await post('k'.repeat(256), { note: fresh().note }, { user: randomUUID() })).status).toBe(201)
    expect(await shop.count(note)).toBe(0)
  })

  test('two keys are refused', async () => {
    const { note } = fresh()
    const body = JSON.stringify({ note })
    const headers = ['x-user', 'ann', 'content-type', 'application/json', 'content-length', String(body.length)]
    const keys = ['idempotency-key', 'one', 'idempotency-key', 'two']
    const answered = Promise.withResolvers<string>()
    const req = httpRequest(`${url}/orders/1`, { method: 'POST', headers: [...headers, 'host', 'shop', ...keys] })
    req.on('response', (res) => answered.resolve(text(res))).on('error', answered.reject)
    req.end(body)
    expect(JSON.parse(await answered.promise).error.message).toBe(
      'Idempotency-Key must be sent once, not several times',
    )
    expect(await shop.count(note)).toBe(0)
  })

  test('where a key is optional, a request without one runs each time', async () => {
    const { key, note } = fresh()
    expect((await post(null, { note }, { path: '/notes' })).status).toBe(201)
    expect((await post(null, { note, act: 'section' }, { path: '/notes' })).status).toBe(201)
    const first = await post(key, { note }, { path: '/notes' })
    expectReplay(await post(key, { note }, { path: '/notes' }), first)
    expect(await shop.count(note)).toBe(3)
  })

  test('neither a client nor a handler can fake a replay', async () => {
    const { key, note } = fresh()
    const faked = { 'idempotent-replayed': 'true', 'x-idempotency-hit': '1' }
    const order: Order = { note, act: 'section', headers: { 'Idempotent-Replayed': 'true' } }
    const first = await post(key, order, { headers: faked })
    expect([first.status, first.replayed]).toEqual([201, null])
    const other = fresh()
    expect((await post(other.key, { ...order, note: other.note, act: 'write' })).replayed).toBeNull()
    expect(await shop.count(note)).toBe(1)
  })

  test('of concurrent requests one runs, and the others get its answer', async () => {
    const { key, note } = fresh()
    const replies = await Promise.all(Array.from({ length: CALLERS }, () => post(key, { note })))
    expect(new Set(replies.map((reply) => `${reply.status} ${reply.text}`)).size).toBe(1)
    expect(replies.filter((reply) => reply.replayed === null)).toHaveLength(1)
    expect(await shop.count(note)).toBe(1)
  })

  test('a wait ends with 409 and Retry-After', async () => {
    const { key, note } = fresh()
    const first = post(key, { note, act: 'wait' }, { path: '/impatient/1' })
    await expect.poll(() => shop.count(note), { interval: 5 }).toBe(1)
    const second = await post(key, { note, act: 'wait' }, { path: '/impatient/1' })
    expect([second.status, codeOf(second)]).toEqual([409, 'IDEMPOTENCY_IN_PROGRESS'])
    expect([second.said('retry-after'), second.said('should-retry')]).toEqual(['1', 'true'])
    wait.resolve()
    const answered = await first
    expectReplay(await post(key, { note, act: 'wait' }, { path: '/impatient/1' }), answered)
    expect(await shop.count(note)).toBe(1)
  })

  test('an answer without success is stored and replayed, too', async () => {
    for (const [status, act] of [
      [302, 'write'],
      [404, 'section'],
    ] as const) {
      const { key, note } = fresh()
      const first = await post(key, { note, act, status })
      expect(first.status).toBe(status)
      expectReplay(await post(key, { note, act, status }), first)
      expect(await shop.count(note)).toBe(1)
    }
  })

  test('a 429 is not stored, so the same key may try again', async () => {
    const { key, note } = fresh()
    const status = 429
    for (let i = 0; i < 2; i++) {
      const reply = await post(key, { note, status, act: 'section' })
      expect([reply.status, reply.replayed]).toEqual([status, null])
    }
    expect(await shop.count(note)).toBe(0)
  })

  test('a 5xx or a throw leaves the key in doubt, without a second run', async () => {
    for (const order of [{ status: 503 }, { act: 'throw' }] as const) {
      const { key, note } = fresh()
      expect((await post(key, { note, ...order })).status).toBe('status' in order ? order.status : 500)
      const again = await post(key, { note, ...order })
      expect([again.status, codeOf(again), again.said('should-retry')]).toEqual([409, 'IDEMPOTENCY_IN_DOUBT', 'false'])
      expect(await shop.count(note)).toBe(1)
    }
  })

  test('a recover hook can let a key in doubt run again', async () => {
    const { key, note } = fresh()
    for (let i = 0; i < 2; i++) {
      expect((await post(key, { note, act: 'nothing', status: 500 }, { path: '/recovered' })).status).toBe(500)
    }
  })

  test('a 5xx or a throw in a section is rolled back and can be sent again', async () => {
    for (const order of [{ act: 'section', status: 500 }, { act: 'section_throws' }] as const) {
      const { key, note } = fresh()
      for (let i = 0; i < 2; i++) {
        const reply = await post(key, { note, ...order })
        expect([reply.status, reply.replayed]).toEqual([500, null])
      }
      expect(await shop.count(note)).toBe(0)
    }
  })

  test('a committed answer counts, even if the handler throws after it', async () => {
    const { key, note } = fresh()
    const first = await post(key, { note, act: 'section_then_throw' })
    expect([first.status, JSON.parse(first.text).note]).toEqual([201, note])
    expectReplay(await post(key, { note, act: 'section_then_throw' }), first)
    expect(await shop.count(note)).toBe(1)
  })

  test('a body too large to keep is sent once; a replay reports that', async () => {
    const { key, note } = fresh()
    const order: Order = { note, act: 'section', bodyBytes: RESPONSE_MAX_BYTES * 5 }
    const first = await post(key, order)
    expect([first.status, first.text.length]).toEqual([201, RESPONSE_MAX_BYTES * 5])
    const again = await post(key, order)
    expect([again.status, again.replayed, codeOf(again)]).toEqual([201, 'true', 'IDEMPOTENT_BODY_NOT_KEPT'])
    expect(again.said('location')).toBe(`/orders/${note}`)
    expect(await shop.count(note)).toBe(1)
  })

  test('an event stream is refused, and the handler does not run again', async () => {
    const { key, note } = fresh()
    const order = { note, headers: { 'content-type': 'text/event-stream' }, bodyBytes: 10 }
    const first = await post(key, order)
    expect([first.status, codeOf(first)]).toEqual([500, 'IDEMPOTENCY_STREAM_REFUSED'])
    expect(codeOf(await post(key, order))).toBe('IDEMPOTENCY_IN_DOUBT')
    expect(await shop.count(note)).toBe(1)
  })

  test('a body of many packets is compared whole and reaches the handler', async () => {
    const { key, note } = fresh()
    const order = { note, act: 'section', long: 'é'.repeat(45_000) } as const
    expect(JSON.parse((await post(key, order)).text).note).toBe(note)
    expect((await post(key, order)).replayed).toBe('true')
    expect(codeOf(await post(key, { ...order, long: `${order.long}!` } as Order))).toBe('IDEMPOTENCY_KEY_REUSED')
    expect(await shop.count(note)).toBe(1)
  })

  test('a request body over the limit is refused', async () => {
    const { key, note } = fresh()
    const reply = await post(key, { note }, { body: JSON.stringify({ note, long: 'x'.repeat(1024 * 1024) }) })
    expect([reply.status, codeOf(reply)]).toEqual([413, 'PAYLOAD_TOO_LARGE'])
    expect(await shop.count(note)).toBe(0)
  })
}
