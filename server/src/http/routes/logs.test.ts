import { writeFileSync } from 'node:fs'
import type { ServerResponse } from 'node:http'
import { join } from 'node:path'
import type { World } from '@ichido/sdk/world'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { createArchive } from '../../leader/duties/archive.ts'
import { realWorld } from '../../node/world.ts'
import { silentMeter } from '../../services/system/meter.ts'
import { type TestApp, testApp } from '../../testing/http/app.ts'
import { openSse, type SseClient } from '../../testing/http/sse.ts'
import { seize, trusting } from '../../testing/nodes/reaper.ts'
import { beginWriting, leaseWriting, testArchive, type Writing } from '../../testing/services/logs.ts'
import { settingsOf } from '../../testing/store/retention.ts'
import { only } from '../../testing/store/scene.ts'
import { sql, unique, until } from '../../testing/store/store.ts'
import { preferredType } from '../server/headers.ts'

const HEARTBEAT_MS = 15_000
const LIFETIME_MS = 15 * 60_000
const POLL_MS = 1_000

/** The test fires timers of these lengths. All others run normally. */
let turned: Record<number, number> = {}
const world: World = { ...realWorld, after: (ms, callback) => realWorld.after(turned[ms] ?? ms, callback) }

let http: TestApp
let url = ''
const clients: SseClient[] = []
beforeAll(async () => {
  http = await testApp('sqlite', { deps: { world } })
  url = await http.app.listen({ host: '127.0.0.1', port: 0 })
})
afterEach(() => {
  turned = {}
  for (const client of clients.splice(0)) client.close()
})
afterAll(() => http.close())

const begin = (queue?: string) => beginWriting(http.services, queue)
const pathOf = (jobId: string, query = '') => `/v1/jobs/${jobId}/logs${query}`
const get = (path: string, headers: Record<string, string> = {}) => http.call('GET', path, { headers })

async function follow(jobId: string, query = '', headers: Record<string, string> = {}): Promise<SseClient> {
  const client = await openSse(`${url}${pathOf(jobId, query)}`, headers)
  clients.push(client)
  return client
}

const textsOf = (client: SseClient) =>
  client.frames.filter(({ event }) => event === 'log').map(({ data }) => (data as { text: string }).text)

describe('the Accept header sets the form', () => {
  test.each([
    [undefined, 'a/b'],
    ['*/*', 'a/b'],
    ['text/html, application/xml;q=0.9, */*;q=0.8', 'a/b'],
    ['text/plain', 'text/plain'],
    ['TEXT/Plain; charset=utf-8', 'text/plain'],
    ['text/*', 'text/plain'],
    ['a/b;q=0.5, text/x', 'text/x'],
    ['text/x;q=0, text/plain;q=0.1', 'text/plain'],
    [';;,q=,=', 'a/b'],
  ])('%s', (accept, type) => {
    expect(preferredType(accept, ['a/b', 'text/plain', 'text/x'])).toBe(type)
  })

  test('a page, text, and the last lines of either', async () => {
    const run = await begin()
    await run.write('one\n', 'two\nthr', 'ee\n')
    const page = await get(pathOf(run.jobId))
    expect(page).toMatchObject({ status: 200, body: { data: [{ n: 0 }, { n: 1 }, { n: 2 }], next_cursor: null } })
    expect(page.headers).toMatchObject({ 'content-type': expect.stringContaining('json'), vary: 'accept' })
    const accept = 'text/plain'
    const text = await get(pathOf(run.jobId), { accept })
    expect(text).toMatchObject({ status: 200, text: 'one\ntwo\nthree\n' })
    expect(text.headers).toMatchObject({
      'content-type': 'text/plain; charset=utf-8',
      'x-content-type-options': 'nosniff',
    })
    expect(await get(pathOf(run.jobId, '?tail=2'), { accept })).toMatchObject({ text: 'two\nthree\n' })
    expect(await get(pathOf(run.jobId, '?cursor=1.0'), { accept })).toMatchObject({ text: 'two\nthree\n' })
    expect((await get(pathOf(run.jobId, '?tail=1'))).body).toMatchObject({
      data: [
        { n: 1, text: 'thr' },
        { n: 2, text: 'ee\n' },
      ],
    })
    expect((await get(pathOf(run.jobId, '?limit=2'))).body).toMatchObject({ next_cursor: '1.1' })
  })

  test('a log without chunks is an empty answer', async () => {
    const { jobId } = await begin()
    expect(await get(pathOf(jobId), { accept: 'text/plain' })).toMatchObject({ status: 200, text: '' })
    expect((await get(pathOf(jobId, '?tail=10'))).body).toEqual({ data: [], next_cursor: null })
  })

  test.each([
    ['?tail=0', {}, 'tail'],
    ['?tail=10001', {}, 'tail'],
    ['?tail=1e9', {}, 'tail'],
    ['?tail=1&cursor=1.0', {}, 'tail'],
    ['?cursor=../1', {}, 'cursor'],
    ['?cursor=1', {}, 'cursor'],
    ['?follow=true', {}, 'follow'],
    ['', { accept: 'text/event-stream', 'last-event-id': 'x' }, 'Last-Event-ID'],
  ])('%s %o is refused by name', async (query, headers, field) => {
    const { jobId } = await begin()
    const { status, body } = await get(pathOf(jobId, query), headers as Record<string, string>)
    expect([status, body]).toMatchObject([400, { error: { code: 'INVALID_PAYLOAD', details: { field } } }])
  })

  test('a tail is bounded in bytes', async () => {
    const run = await begin()
    await run.write('x'.repeat(800_000), 'y'.repeat(800_000))
    const { text } = await get(pathOf(run.jobId, '?tail=5'), { accept: 'text/plain' })
    expect([text.length, text.indexOf('y')]).toEqual([1024 * 1024, 1024 * 1024 - 800_000])
  })
})

describe('a followed log', () => {
  /** More than the buffers of a connection hold. */
  const MANY = 150
  async function fill(run: Writing): Promise<void> {
    for (let i = 0; i < MANY; i += 10) await run.write(...Array<string>(10).fill('x'.repeat(64 * 1024)))
  }

  test('is streamed from its beginning over all runs, until the job ends', async () => {
    const queue = unique('q')
    const run = await begin(queue)
    await run.write('before\n')
    const client = await follow(run.jobId)
    expect([client.status, client.headers]).toMatchObject([
      200,
      { 'content-type': 'text/event-stream', 'cache-control': 'no-store', 'x-accel-buffering': 'no' },
    ])
    await client.count(1)
    await run.write('live\n', 'and more\n')
    await client.count(3)
    await run.fail(true)
    const next = await leaseWriting(http.services, queue)
    await next.write('second\n')
    await client.count(4)
    await next.succeed()
    expect(await client.ended).toBe(true)
    expect(client.frames).toMatchObject([
      { event: 'log', id: '1.0', data: { run_no: 1, n: 0, stream: 'stdout', text: 'before\n' } },
      { event: 'log', id: '1.1', data: { text: 'live\n' } },
      { event: 'log', id: '1.2', data: { text: 'and more\n' } },
      { event: 'log', id: '2.0', data: { run_no: 2, text: 'second\n' } },
      { event: 'end', data: { state: 'SUCCEEDED' } },
    ])
  })

  test('continues after Last-Event-ID, regardless of the query', async () => {
    const run = await begin()
    await run.write('a', 'b', 'c')
    await run.succeed()
    for (const [query, headers, texts] of [
      ['', { 'last-event-id': '1.1' }, ['c']],
      ['?cursor=1.0', { 'last-event-id': '' }, ['b', 'c']],
      ['?cursor=1.0', { 'last-event-id': '1.2' }, []],
      ['?tail=1', { 'last-event-id': '1.0' }, ['b', 'c']],
    ] as const) {
      const client = await follow(run.jobId, query, headers)
      expect(await client.ended).toBe(true)
      expect([textsOf(client), client.frames.at(-1)?.event]).toEqual([texts, 'end'])
    }
  })

  test('can begin with its last lines', async () => {
    const run = await begin()
    await run.write('one\ntwo\n', 'three\n')
    const client = await follow(run.jobId, '?tail=2')
    await client.count(2)
    await run.write('four\n')
    await client.count(3)
    expect(textsOf(client)).toEqual(['two\n', 'three\n', 'four\n'])
  })

  test('is woken, and polls for chunks without a wake-up', async () => {
    turned = { [POLL_MS]: 3_600_000 }
    const run = await begin()
    const woken = await follow(run.jobId)
    await run.write('a')
    await woken.count(1)
    turned = {}
    const polling = await follow(run.jobId)
    await polling.count(1)
    const { bus } = http.services.deps
    const wake = bus.wake.bind(bus)
    bus.wake = () => {}
    await run.write('b')
    await run.succeed()
    bus.wake = wake
    expect(await polling.ended).toBe(true)
    expect(textsOf(polling)).toEqual(['a', 'b'])
    woken.close()
  })

  test('sends heartbeats while idle, and ends after its lifetime', async () => {
    turned = { [HEARTBEAT_MS]: 5 }
    const run = await begin()
    const client = await follow(run.jobId)
    await until('heartbeats', async () => client.heartbeats() > 3)
    turned = { [LIFETIME_MS]: 30 }
    const short = await follow(run.jobId)
    expect(await short.ended).toBe(true)
    expect(short.frames).toEqual([])
  })

  test('lets a stalled reader delay nobody, use little memory and catch up', async () => {
    const run = await begin()
    const responses: ServerResponse[] = []
    const listen = (_: unknown, response: ServerResponse) => void responses.push(response)
    http.app.server.on('request', listen)
    const slow = await follow(run.jobId)
    http.app.server.off('request', listen)
    slow.pause()
    await fill(run)
    const other = await begin()
    const quick = await follow(other.jobId)
    await other.write('quick')
    await quick.count(1)
    await run.succeed()
    const response = only(responses)
    await until('the stream to stand still', async () => response.writableNeedDrain)
    expect(slow.frames).toEqual([])
    expect(response.writableLength).toBeLessThan(1024 * 1024)
    slow.resume()
    expect(await slow.ended).toBe(true)
    expect(textsOf(slow)).toHaveLength(MANY)
    expect(slow.frames.at(-1)).toMatchObject({ event: 'end' })
  })

  test('ends at once when the server stops, also for a stalled reader', async () => {
    const stopping = await testApp('sqlite')
    const base = await stopping.app.listen({ host: '127.0.0.1', port: 0 })
    const run = await beginWriting(stopping.services)
    const [healthy, stuck] = [await openSse(base + pathOf(run.jobId)), await openSse(base + pathOf(run.jobId))]
    stuck.pause()
    await fill(run)
    await healthy.count(MANY)
    const beganMs = performance.now()
    stopping.app.startDraining()
    expect(await healthy.ended).toBe(true)
    expect(healthy.frames.at(-1)).toMatchObject({ event: 'log' })
    await stopping.app.close()
    expect(performance.now() - beganMs).toBeLessThan(5_000)
    stuck.close()
    await stopping.close()
  })

  test('is limited by node and by user', async () => {
    const run = await begin()
    const open = await Promise.all(Array.from({ length: 50 }, () => follow(run.jobId)))
    const refused = await get(pathOf(run.jobId), { accept: 'text/plain' })
    expect(refused).toMatchObject({ status: 429, body: { error: { code: 'RATE_LIMITED' } } })
    expect(refused.headers['retry-after']).toBe('5')
    expect(await get(pathOf(run.jobId))).toMatchObject({ status: 200 })
    open[0]?.close()
    await until('a free seat', async () => (await get(pathOf(run.jobId), { accept: 'text/plain' })).status === 200)
  })
})

test('an archived log is read like any other, and an unreadable one is an error', async () => {
  const place = await testArchive()
  http.services.deps.logArchive = place.logArchive
  const { store } = http.services.deps
  const queue = unique('q')
  const run = await begin(queue)
  await run.write(...Array.from({ length: 101 }, (_, i) => `${i}\n`))
  await run.fail(true)
  const last = await leaseWriting(http.services, queue)
  await last.write('last\n')
  await last.succeed()
  const [before, text] = [await get(pathOf(run.jobId)), await get(pathOf(run.jobId), { accept: 'text/plain' })]
  await sql(store, 'UPDATE ichido.runs SET finished_at = finished_at - 86400000 WHERE id = $1', last.runId)
  await sql(store, 'UPDATE ichido.run_logs SET created_at = created_at - 86400000 WHERE run_id = $1', last.runId)
  const settings = settingsOf({ log_retention_days_db: 0.5 })
  const given = { world, store, settings, meter: silentMeter, logArchive: place.logArchive }
  await createArchive(given, trusting(await seize(store)))()
  expect(place.files()).toHaveLength(1)
  expect((await get(pathOf(run.jobId))).body).toEqual(before.body)
  expect((await get(pathOf(run.jobId), { accept: 'text/plain' })).text).toBe(text.text)
  const whole = await follow(run.jobId)
  expect([await whole.ended, whole.frames.length, whole.frames.at(-1)?.event]).toEqual([true, 103, 'end'])

  writeFileSync(join(place.folder, only(place.files())), 'no gzip')
  const unavailable = { error: { code: 'LOG_UNAVAILABLE', message: expect.stringMatching(/is damaged$/) } }
  expect(await get(pathOf(run.jobId, '?tail=1'))).toMatchObject({ status: 503, body: unavailable })
  expect(await get(pathOf(run.jobId, '?cursor=1.100'), { accept: 'text/plain' })).toMatchObject({ status: 503 })
  const damaged = await follow(run.jobId)
  expect(await damaged.ended).toBe(true)
  expect(damaged.frames).toHaveLength(102)
  expect(damaged.frames.at(-1)).toMatchObject({ event: 'problem', data: unavailable })
  place.remove()
})

test('a log is visible to readers of its job', async () => {
  const closed = await testApp('sqlite')
  const token = await closed.token('local', 'submitter')
  const [viewer, other] = [await closed.token('v', 'viewer'), await closed.token('o', 'submitter')]
  const run = await beginWriting(closed.services)
  await run.write('x')
  await run.succeed()
  for (const accept of ['application/json', 'text/plain', 'text/event-stream']) {
    const look = async (as?: string) =>
      (await closed.call('GET', pathOf(run.jobId), { headers: { accept }, ...(as === undefined ? {} : { token: as }) }))
        .status
    expect([await look(token), await look(viewer), await look(other), await look()]).toEqual([200, 200, 404, 401])
  }
  await closed.close()
})
