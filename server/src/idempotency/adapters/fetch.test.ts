import { DatabaseSync } from 'node:sqlite'
import { afterAll, expect, test } from 'vitest'
import { createIdempotency, type FetchHandler, sqliteKeys } from '../index.ts'
import { fresh } from '../testing/ask.ts'

const database = new DatabaseSync(':memory:')
afterAll(() => database.close())
const once = createIdempotency({ keys: sqliteKeys(database), responseMaxBytes: 1_000, requestMaxBytes: 1_000 })
const route = { route: 'POST /orders', user: 'ann' }
type Handler = FetchHandler<DatabaseSync, { status: number }>

const requestOf = (key: string, body: BodyInit | null = null) =>
  new Request('http://shop/orders', { method: 'POST', headers: { 'idempotency-key': key }, body })

test('the handler can read the request after it was compared', async () => {
  const request = requestOf(fresh().key, '{"item":"tea"}')
  const response = await once.fetch(request, route, async () => Response.json(await request.json()))
  expect(await response.json()).toEqual({ item: 'tea' })
})

test('a request whose body was read before is refused with advice', async () => {
  const request = requestOf(fresh().key, 'tea')
  await request.text()
  await expect(once.fetch(request, route, () => expect.fail())).rejects.toThrow('let the plugin go first')
})

test('a request body over the limit is refused before the handler runs', async () => {
  const response = await once.fetch(requestOf(fresh().key, 'x'.repeat(1_001)), route, () => expect.fail())
  expect([response.status, (await response.json()).error.code]).toEqual([413, 'PAYLOAD_TOO_LARGE'])
})

test('a response that is too large to keep is streamed, not buffered', async () => {
  const { key } = fresh()
  let pulled = 0
  const body = new ReadableStream<Uint8Array>({
    pull(controller) {
      pulled += 1
      if (pulled > 100) controller.close()
      else controller.enqueue(new Uint8Array(600).fill(120))
    },
  })
  const response = await once.fetch(requestOf(key), route, () => new Response(body, { status: 201 }))
  expect(pulled).toBeLessThan(10)
  expect(await response.text()).toHaveLength(60_000)
  const again = await once.fetch(requestOf(key), route, () => expect.fail())
  expect([again.status, (await again.json()).error.code]).toEqual([201, 'IDEMPOTENT_BODY_NOT_KEPT'])
})

test('a response whose body breaks leaves the key in doubt', async () => {
  const { key } = fresh()
  const broken = new ReadableStream({ pull: () => Promise.reject(new Error('on purpose')) })
  await expect(once.fetch(requestOf(key), route, () => new Response(broken))).rejects.toThrow('on purpose')
  const again = await once.fetch(requestOf(key), route, () => expect.fail())
  expect((await again.json()).error.code).toBe('IDEMPOTENCY_IN_DOUBT')
})

test.each<[string, Handler, number, string]>([
  ['without a body', () => new Response(null, { status: 204 }), 204, ''],
  ['of bytes', () => ({ status: 200, body: Buffer.from('tea') }), 200, 'tea'],
  ['of text', () => ({ status: 200, body: 'té' }), 200, 'té'],
])('an answer %s is replayed unchanged', async (_, handler, status, text) => {
  const { key } = fresh()
  for (const replayed of [null, 'true']) {
    const response = await once.fetch(requestOf(key), route, handler)
    expect([response.status, await response.text()]).toEqual([status, text])
    expect(response.headers.get('idempotent-replayed')).toBe(replayed)
  }
})

test('headers that middleware added to a committed answer stay', async () => {
  const response = await once.fetch(requestOf(fresh().key), route, async (call) => {
    await call.withKey(() => ({ status: 201, body: { item: 'tea' } }))
    return new Response('other', { status: 200, headers: { 'x-served-by': 'shop', etag: '"other"' } })
  })
  expect([response.status, await response.json()]).toEqual([201, { item: 'tea' }])
  expect([response.headers.get('x-served-by'), response.headers.get('etag')]).toEqual(['shop', null])
})

test('a section can be committed once', async () => {
  await once.fetch(requestOf(fresh().key), route, async (call) => {
    await call.withKey(() => ({ status: 503 }))
    const answer = await call.withKey(() => ({ status: 201 }))
    await expect(call.withKey(() => ({ status: 202 }))).rejects.toThrow('withKey can commit only once')
    return answer
  })
})
