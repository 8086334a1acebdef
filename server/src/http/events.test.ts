import type { ServerResponse } from 'node:http'
import type { EventShape, EventsOfAllShape } from '@ichido/sdk/protocol'
import type { World } from '@ichido/sdk/world'
import pg from 'pg'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { freshDatabase } from '../../../scripts/testing/services.ts'
import { EmbeddedBus } from '../bus/embedded.ts'
import { PostgresBus } from '../bus/postgres.ts'
import { decodePlace } from '../core/contract/events.ts'
import { LOCAL_ADMIN } from '../services/access.ts'
import { DEFAULT_LIMITS } from '../services/deps.ts'
import { createServices } from '../services/index.ts'
import { FIRST_EVENT } from '../store/commands/walk-events.ts'
import { type Store, StoreUnavailable } from '../store/port.ts'
import { type TestApp, testApp } from '../testing/app.ts'
import { beginPublishing, type Publishing } from '../testing/publishing.ts'
import { only } from '../testing/scene.ts'
import { ENGINES } from '../testing/services.ts'
import { openSse, type SseClient } from '../testing/sse.ts'
import { openNode, sql, testStore, unique, until } from '../testing/store.ts'
import { realWorld } from '../world.ts'

const POLL_MS = 1_000
const HOUR_MS = 3_600_000

/** Polls go off when the test says so; its clock is ahead by as much as it says. */
let pollMs = POLL_MS
let aheadMs = 0
const world: World = {
  ...realWorld,
  monotonic: () => realWorld.monotonic() + aheadMs,
  after: (ms, callback) => realWorld.after(ms === POLL_MS ? pollMs : ms, callback),
}

const clients: SseClient[] = []
afterEach(() => {
  pollMs = POLL_MS
  aheadMs = 0
  for (const client of clients.splice(0)) client.close()
})

const pathOf = (jobId: string, query = '') => `/v1/jobs/${jobId}/events${query}`

async function open(url: string, headers: Record<string, string> = {}): Promise<SseClient> {
  const client = await openSse(url, headers)
  clients.push(client)
  return client
}

const eventsOf = ({ frames }: SseClient) =>
  frames.filter(({ event }) => event === 'message').map(({ data }) => data as EventShape)
const cursorsOf = (client: SseClient) => eventsOf(client).map(({ cursor }) => cursor)
/** What a node says of itself: that number, or 0. */
async function metric({ call }: TestApp, name: string): Promise<number> {
  const { text } = await call('GET', '/metrics')
  return Number(
    text
      .split('\n')
      .find((line) => line.startsWith(`${name} `))
      ?.split(' ')
      .at(-1) ?? 0,
  )
}
const CURRENT = 'ichido_event_subscribers{pace="current"}'
const BEHIND = 'ichido_event_subscribers{pace="behind"}'
const broken = (how: string) => `ichido_event_streams_broken_total{how="${how}"}`
const upTo = (last: number, first = 1) => Array.from({ length: last - first + 1 }, (_, i) => first + i)

/** What happens after a page was read and before whoever asked for it hears of it. */
let meanwhile: (() => Promise<unknown>) | null = null
let pagesRead = 0
let away = false
function seen(store: Store): Store {
  return {
    engine: store.engine,
    write: (command) => store.write(command),
    async read(command) {
      if (away) throw new StoreUnavailable('away')
      const answer = await store.read(command)
      if (command.name === 'find_events') pagesRead++
      const deed = command.name === 'find_events' ? meanwhile : null
      if (deed !== null) meanwhile = null
      await deed?.()
      return answer
    },
    health: () => store.health(),
    close: async () => {},
  }
}

describe.each(ENGINES)('the events of a job, on %s', (engine) => {
  let http: TestApp
  let url = ''
  const bus = new EmbeddedBus()
  beforeAll(async () => {
    const { store, close } = await testStore(engine)
    http = await testApp(engine, { deps: { world, bus }, opened: { store: seen(store), remove: close } })
    url = await http.app.listen({ host: '127.0.0.1', port: 0 })
  })
  afterAll(() => http.close())

  const follow = (jobId: string, query = '', headers: Record<string, string> = {}) =>
    open(url + pathOf(jobId, query), headers)
  /** Once it has nothing to read any more: for who comes, and then for what came in before the feed was there. */
  async function followed(run: Publishing): Promise<SseClient> {
    const first = pagesRead
    const client = await follow(run.jobId)
    await client.count(2)
    await until('the feed to look', async () => pagesRead - first === 2)
    return client
  }

  test('are told from the first one, then as they come, and end with the job; a page says the same', async () => {
    pollMs = HOUR_MS
    const run = await beginPublishing(http.services)
    await run.progress(1, { text: 'one\ntwo\u2028' })
    const client = await follow(run.jobId)
    expect([client.status, client.headers]).toMatchObject([
      200,
      {
        'content-type': 'text/event-stream',
        'cache-control': 'no-store',
        'x-accel-buffering': 'no',
        vary: 'accept',
        'x-request-id': expect.any(String),
      },
    ])
    await client.count(3)
    await run.progress(1)
    await client.count(4)
    await run.progress(3)
    await client.count(7)
    await run.succeed()
    expect(await client.ended).toBe(true)
    const page = await http.call('GET', pathOf(run.jobId), { headers: { accept: 'application/json' } })
    expect(page.body).toEqual({ events: eventsOf(client), ended: true })
    expect(client.frames.map(({ id }) => id)).toEqual([...upTo(8).map(String), null])
    expect(client.frames.at(-1)).toEqual({ event: 'end', id: null, data: { state: 'SUCCEEDED' } })
    expect((await http.call('GET', pathOf(run.jobId), { headers: { accept: '*/*' } })).body).toEqual(page.body)
  })

  test('go on after Last-Event-ID, a cursor or a seq, also when late ones of a lower seq came since', async () => {
    const run = await beginPublishing(http.services, { stages: 'eco2', seq_scope: 'job' })
    for (const [stage, seq] of [
      ['vision', 10],
      ['rule', 20],
      ['answer', 30],
      ['vision', 11],
      ['rule', 21],
    ] as const) {
      await run.publish({ stage, seq })
    }
    await run.succeed()
    for (const [query, headers, cursors] of [
      ['', { 'last-event-id': '6' }, [7, 8]],
      ['', { 'last-event-id': '0' }, upTo(8)],
      ['?after=7', {}, [8]],
      ['?after=1', { 'last-event-id': '7' }, [8]],
      ['?after=7', { 'last-event-id': '' }, [8]],
      ['?last_seq=30', {}, [6, 7, 8]],
      ['?last_seq=11', {}, [7, 8]],
      ['?last_seq=0', {}, upTo(8)],
    ] as const) {
      const client = await follow(run.jobId, query, headers)
      expect(await client.ended).toBe(true)
      expect([query, headers, cursorsOf(client), client.frames.at(-1)?.event]).toEqual([query, headers, cursors, 'end'])
    }
    const { body } = await http.call('GET', pathOf(run.jobId, '?last_seq=30'))
    expect(body).toMatchObject({ events: [{ cursor: 6 }, { cursor: 7 }, { cursor: 8 }] })
    const over = await follow(run.jobId, '', { 'last-event-id': '8' })
    expect([over.status, await over.ended, over.frames]).toEqual([204, true, []])
  })

  test('what comes in between replay and live is neither lost nor told twice', async () => {
    pollMs = HOUR_MS
    const run = await beginPublishing(http.services, { stages: 'eco2', seq_scope: 'job' })
    await run.publish({ stage: 'rule', seq: 20 })
    meanwhile = () => run.publish({ stage: 'vision', seq: 11 }, { stage: 'vision', seq: 10 })
    const first = await follow(run.jobId)
    await first.count(5)
    meanwhile = () => run.publish({ stage: 'rule', seq: 21 })
    const second = await follow(run.jobId, '?after=2')
    await second.count(4)
    await run.publish({ stage: 'answer', seq: 30 })
    await run.succeed()
    expect([await first.ended, await second.ended]).toEqual([true, true])
    expect([cursorsOf(first), cursorsOf(second)]).toEqual([upTo(8), upTo(8, 3)])
  })

  test('many join while many are published', async () => {
    const run = await beginPublishing(http.services)
    const joining: Promise<SseClient>[] = []
    for (let i = 0; i < 40; i++) {
      const published = run.progress(1 + (i % 7), 'x'.repeat(i * 100))
      joining.push(follow(run.jobId, `?after=${i % 3}`))
      await published
    }
    const all = await Promise.all(joining)
    await run.succeed()
    const { events } = await http.services.events.read(LOCAL_ADMIN, run.jobId, 0, 0)
    for (const [i, client] of all.entries()) {
      expect(await client.ended).toBe(true)
      expect(cursorsOf(client)).toEqual(upTo(events.length, 1 + (i % 3)))
    }
  })

  test('reset, with the latest state, where what comes next is not kept or the place is unknown', async () => {
    const run = await beginPublishing(http.services)
    await run.progress(5, 'x')
    const ahead = await follow(run.jobId, '', { 'last-event-id': '999999' })
    const unknown = await follow(run.jobId, '?last_seq=77')
    for (const client of [ahead, unknown]) {
      const [frame] = await client.count(1)
      const latest = {
        cursor: 7,
        state: 'RUNNING',
        event: { cursor: 7 },
        stages: { progress: { cursor: 7, data: 'x' } },
      }
      expect(frame).toMatchObject({ event: 'reset', id: '7', data: { job_id: run.jobId, ...latest } })
    }
    expect(await metric(http, broken('reset'))).toBe(2)
    await run.succeed()
    expect([await ahead.ended, cursorsOf(ahead), await unknown.ended, cursorsOf(unknown)]).toEqual([
      true,
      [8],
      true,
      [8],
    ])

    await sql(http.services.deps.store, 'DELETE FROM ichido.events WHERE job_id = $1 AND n < 5', run.jobId)
    const kept = await follow(run.jobId, '?after=4')
    expect([await kept.ended, cursorsOf(kept)]).toEqual([true, [5, 6, 7, 8]])
    await sql(http.services.deps.store, 'DELETE FROM ichido.events WHERE job_id = $1', run.jobId)
    for (const query of ['', '?after=4']) {
      const old = await follow(run.jobId, query)
      expect(await old.ended).toBe(true)
      expect(old.frames).toMatchObject([
        { event: 'reset', id: '8', data: { state: 'SUCCEEDED', event: null } },
        { event: 'end', data: { state: 'SUCCEEDED' } },
      ])
    }
  })

  test('of all jobs are told as they come, from now on or after a place, also those of one kind only', async () => {
    pollMs = 20
    const kind = unique('kind')
    const before = await beginPublishing(http.services, { kind })
    await before.progress(1)
    const live = await open(`${url}/v1/events?kind=${kind}`)
    expect([live.status, live.headers['x-accel-buffering']]).toEqual([200, 'no'])
    const run = await beginPublishing(http.services, { kind })
    const other = await beginPublishing(http.services)
    await other.progress(3)
    await run.progress(2)
    await run.succeed()
    // Another transaction on the same server may have held up what came before.
    const own = () => live.frames.filter(({ data }) => (data as { job_id: string }).job_id === run.jobId)
    await until('its events', async () => own().length >= 5)
    expect(own().map(({ data }) => data)).toMatchObject(upTo(5).map((cursor) => ({ kind, cursor })))
    let page: EventsOfAllShape | undefined
    while (page === undefined || page.data.length === 0) {
      const after = page === undefined ? '' : `&cursor=${page.next_cursor}`
      page = (await http.call('GET', `/v1/events?kind=${kind}&limit=1${after}`)).body as EventsOfAllShape
    }
    const { next_cursor } = page
    const rest = await open(`${url}/v1/events?kind=${kind}&cursor=${next_cursor}`)
    await rest.count(7)
    expect(cursorsOf(rest)).toEqual([2, 3, ...upTo(5)])
    const resumed = await open(`${url}/v1/events?kind=${kind}`, { 'last-event-id': own()[2]?.id ?? '' })
    await resumed.count(2)
    expect(cursorsOf(resumed)).toEqual([4, 5])
    for (const [query, id, field] of [
      ['?cursor=x', '', 'cursor'],
      ['', 'x', 'Last-Event-ID'],
    ] as const) {
      const headers = { accept: 'text/event-stream', 'last-event-id': id }
      const { status, body } = await http.call('GET', `/v1/events${query}`, { headers })
      expect([status, body]).toMatchObject([400, { error: { details: { field } } }])
    }
  })

  test('of all jobs: who hears of none of them is told where to go on, all the same', async () => {
    pollMs = 20
    const live = await open(`${url}/v1/events?kind=${unique('kind')}`)
    const run = await beginPublishing(http.services)
    await run.succeed()
    const last = `SELECT max(${engine === 'sqlite' ? 'rowid' : 'tx'}) AS tx FROM ichido.events WHERE job_id = $1`
    const [left] = await sql(http.services.deps.store, last, run.jobId)
    const place = () => decodePlace(live.ids.at(-1) ?? '') ?? FIRST_EVENT
    await until('a place after what was left out', async () => place().tx > Number(left?.tx))
    expect(live.frames).toEqual([])
    const resumed = await open(`${url}/v1/events?kind=work`, { 'last-event-id': live.ids.at(-1) ?? '' })
    const next = await beginPublishing(http.services)
    await resumed.count(2)
    const jobs = resumed.frames.map(({ data }) => (data as { job_id: string }).job_id)
    expect(jobs).toEqual([next.jobId, next.jobId])
  })

  test('are read once, however often they are heard of', async () => {
    pollMs = HOUR_MS
    // Of what another node stores this one hears nothing by itself.
    const run = await beginPublishing(createServices({ ...http.services.deps, bus: new EmbeddedBus() }))
    const client = await followed(run)
    const before = pagesRead
    const wake = (cursor: number) => bus.wake([`job:${run.jobId}`], { cursor })
    meanwhile = async () => wake(3)
    await run.progress(1)
    wake(3)
    await client.count(3)
    wake(3)
    wake(2)
    expect(pagesRead - before).toBe(1)
    // What nobody has stored is looked for, and not again and again.
    wake(99)
    await until('a look', async () => pagesRead - before === 2)
    await run.succeed()
    wake(4)
    expect([await client.ended, cursorsOf(client)]).toEqual([true, upTo(4)])
    expect(pagesRead - before).toBe(3)
  })

  test('are not read where they were stored, unless something is missing before them', async () => {
    pollMs = HOUR_MS
    const run = await beginPublishing(http.services)
    const client = await followed(run)
    const before = pagesRead
    await run.progress(2, { text: 'one\ntwo' })
    await run.progress(1)
    await client.count(5)
    expect(pagesRead - before).toBe(0)
    expect(eventsOf(client)).toEqual((await http.services.events.read(LOCAL_ADMIN, run.jobId, 0, 0)).events)
    const [news] = eventsOf(client).map((event) => ({
      ...event,
      jobId: run.jobId,
      domain: '',
      data: '0',
      createdAtMs: 0,
    }))
    for (const ns of [[5], [7], [6, 8]]) {
      const events = ns.flatMap((n) => (news === undefined ? [] : [{ ...news, n }]))
      bus.wake([`job:${run.jobId}`], { cursor: 5, events })
    }
    await run.progress(1)
    await client.count(6)
    expect(cursorsOf(client)).toEqual(upTo(6))
  })

  test('are kept for nobody who went away before they were there', async () => {
    const run = await beginPublishing(http.services)
    const responses: ServerResponse[] = []
    const listen = (_: unknown, response: ServerResponse) => void responses.push(response)
    http.app.server.on('request', listen)
    const gone = new AbortController()
    const opened = Promise.withResolvers<void>()
    meanwhile = async () => {
      gone.abort()
      await until('it to be gone', async () => only(responses).destroyed)
      opened.resolve()
    }
    const headers = { accept: 'text/event-stream' }
    await expect(fetch(url + pathOf(run.jobId), { headers, signal: gone.signal })).rejects.toThrow()
    http.app.server.off('request', listen)
    await opened.promise
    // It would be there for as long as the job goes on.
    expect((await http.call('GET', pathOf(run.jobId))).status).toBe(200)
    await until('nobody', async () => (await metric(http, CURRENT)) + (await metric(http, BEHIND)) === 0)
  })

  test('are found by themselves when no wake-up comes', async () => {
    pollMs = 50
    const run = await beginPublishing(http.services)
    const client = await follow(run.jobId)
    await client.count(2)
    const wake = bus.wake.bind(bus)
    bus.wake = () => {}
    await run.progress(2)
    await client.count(4)
    await run.succeed()
    bus.wake = wake
    expect([await client.ended, cursorsOf(client)]).toEqual([true, upTo(5)])
  })

  test('go on when the store does, after it did not answer', async () => {
    pollMs = 20
    const run = await beginPublishing(http.services)
    const client = await follow(run.jobId)
    await client.count(2)
    away = true
    expect((await follow(run.jobId)).status).toBe(503)
    await run.progress(2)
    await run.succeed()
    away = false
    expect([await client.ended, cursorsOf(client)]).toEqual([true, upTo(5)])
  })

  test('of a job that is gone are a problem', async () => {
    pollMs = 50
    const run = await beginPublishing(http.services)
    const client = await follow(run.jobId)
    await client.count(2)
    for (const table of ['events', 'runs'])
      await sql(http.services.deps.store, `DELETE FROM ichido.${table} WHERE job_id = $1`, run.jobId)
    expect(await client.ended).toBe(true)
    expect(client.frames.at(-1)).toMatchObject({ event: 'problem', data: { error: { code: 'NOT_FOUND' } } })
  })
})

describe('a stream', () => {
  let http: TestApp
  let url = ''
  beforeAll(async () => {
    http = await testApp('sqlite', { deps: { world, limits: { ...DEFAULT_LIMITS, subscribersMax: 5 } } })
    url = await http.app.listen({ host: '127.0.0.1', port: 0 })
  })
  afterAll(() => http.close())

  test('says when to come again, beats while nothing comes, and after a while ends', async () => {
    pollMs = 10
    const run = await beginPublishing(http.services)
    const gone = new AbortController()
    const headers = { accept: 'text/event-stream' }
    const response = await fetch(url + pathOf(run.jobId), { headers, signal: gone.signal })
    const { value } = (await response.body?.getReader().read()) ?? {}
    expect(Number(/^retry: (\d+)\n\n/.exec(new TextDecoder().decode(value))?.[1])).toBeGreaterThanOrEqual(1_000)
    gone.abort()
    const client = await open(url + pathOf(run.jobId))
    await client.count(2)
    for (let i = 1; i <= 2; i++) {
      aheadMs += 15_000
      await until('a heartbeat', async () => client.heartbeats() >= i)
    }
    aheadMs += 15 * 60_000
    expect(await client.ended).toBe(true)
    expect(cursorsOf(client)).toEqual([1, 2])
  })

  test('that nobody reads has little in memory, holds up nobody, and has everything when it is read', async () => {
    const run = await beginPublishing(http.services)
    const responses: ServerResponse[] = []
    const listen = (_: unknown, response: ServerResponse) => void responses.push(response)
    http.app.server.on('request', listen)
    const slow = await open(url + pathOf(run.jobId))
    http.app.server.off('request', listen)
    slow.pause()
    const quick = await open(url + pathOf(run.jobId))
    const response = only(responses)
    // The system takes a few megabytes, now more and now less.
    let last = 2
    const standsStill = async () => response.writableNeedDrain
    while (!(await standsStill())) {
      expect(last).toBeLessThan(1_000)
      await run.progress(10, 'x'.repeat(60_000))
      last += 10
      await quick.count(last)
      await until(
        'it to have all or to stand still',
        async () => (await standsStill()) || !(await metric(http, BEHIND)),
      )
    }
    expect(response.writableLength).toBeLessThan(256 * 1024)
    expect([await metric(http, CURRENT), await metric(http, BEHIND)]).toEqual([1, 1])
    await run.succeed()
    expect([await quick.ended, cursorsOf(quick)]).toEqual([true, upTo(last + 1)])
    slow.resume()
    expect([await slow.ended, cursorsOf(slow), slow.frames.at(-1)?.event]).toEqual([true, upTo(last + 1), 'end'])
  })

  test('that takes nothing for a minute is dropped, and that is counted', async () => {
    const run = await beginPublishing(http.services)
    const responses: ServerResponse[] = []
    const listen = (_: unknown, response: ServerResponse) => void responses.push(response)
    http.app.server.on('request', listen)
    const client = await open(url + pathOf(run.jobId))
    http.app.server.off('request', listen)
    only(responses).emit('timeout')
    await client.ended
    expect(await metric(http, broken('dropped'))).toBe(1)
  })

  test('is refused where there are as many as there may be', async () => {
    const run = await beginPublishing(http.services)
    await until('free places', async () => (await open(url + pathOf(run.jobId))).status === 503)
    const answer = await http.call('GET', pathOf(run.jobId), { headers: { accept: 'text/event-stream' } })
    expect([answer.status, answer.headers['retry-after'], answer.body]).toMatchObject([
      503,
      '1',
      { error: { code: 'UNAVAILABLE' } },
    ])
    expect((await http.call('GET', pathOf(run.jobId))).status).toBe(200)
    clients[0]?.close()
    await until('a free place', async () => (await open(url + pathOf(run.jobId))).status === 200)
  })

  test.each([
    ['', { 'last-event-id': 'x' }, 'Last-Event-ID'],
    ['', { 'last-event-id': '-1' }, 'Last-Event-ID'],
    ['', { 'last-event-id': '1.5' }, 'Last-Event-ID'],
    ['', { 'last-event-id': '9'.repeat(30) }, 'Last-Event-ID'],
    ['?last_seq=-1', {}, 'last_seq'],
    ['?last_seq=1.5', {}, 'last_seq'],
    ['?last_seq=1&after=1', {}, 'last_seq'],
    ['?after=x', {}, 'after'],
    ['?cursor=1', {}, 'cursor'],
  ])('%s %o is refused by name', async (query, headers, field) => {
    const { jobId } = await beginPublishing(http.services)
    const { status, body } = await http.call('GET', pathOf(jobId, query), {
      headers: { accept: 'text/event-stream', ...headers },
    })
    expect([status, body]).toMatchObject([400, { error: { code: 'INVALID_PAYLOAD', details: { field } } }])
  })

  test('is for those who may see the job', async () => {
    const closed = await testApp('sqlite')
    const [own, viewer] = [await closed.token('local', 'submitter'), await closed.token('v', 'viewer')]
    const other = await closed.token('o', 'submitter')
    const run = await beginPublishing(closed.services)
    await run.succeed()
    const look = async (token?: string, jobId = run.jobId) => {
      const call = { headers: { accept: 'text/event-stream' }, ...(token === undefined ? {} : { token }) }
      return (await closed.call('GET', pathOf(jobId), call)).status
    }
    expect([await look(own), await look(viewer), await look(other), await look()]).toEqual([200, 200, 404, 401])
    expect([await look(own, realWorld.uuid()), await look(own, 'x')]).toEqual([404, 404])
    await closed.close()
  })

  test('ends at once when the server stops, also one that nobody reads', async () => {
    const stopping = await testApp('sqlite')
    const base = await stopping.app.listen({ host: '127.0.0.1', port: 0 })
    const run = await beginPublishing(stopping.services)
    const [healthy, stuck] = [await open(base + pathOf(run.jobId)), await open(base + pathOf(run.jobId))]
    stuck.pause()
    for (let i = 0; i < 10; i++) await run.progress(10, 'x'.repeat(60_000))
    await healthy.count(102)
    const beganMs = performance.now()
    stopping.app.startDraining()
    expect(await healthy.ended).toBe(true)
    expect(healthy.frames.at(-1)?.event).toBe('message')
    await stopping.app.close()
    expect(performance.now() - beganMs).toBeLessThan(5_000)
    await stopping.close()
  })
})

test('who follows on one node is told of what is published on another', async () => {
  pollMs = HOUR_MS
  const database = await freshDatabase()
  const connect = async () => {
    const client = new pg.Client(database.url)
    await client.connect()
    return client
  }
  const node = async () => {
    const store = await openNode(database.url)
    const bus = new PostgresBus({ world, connect, schema: 'ichido' })
    return testApp('postgres', { deps: { world, bus }, opened: { store, remove: async () => {} } })
  }
  const [here, there] = [await node(), await node()]
  const url = await here.app.listen({ host: '127.0.0.1', port: 0 })
  const run = await beginPublishing(there.services)
  const client = await open(url + pathOf(run.jobId))
  await until('the nodes to hear each other', async () => {
    await run.progress(1)
    return client.frames.length > 2
  })
  for (let i = 0; i < 5; i++) await run.progress(3)
  await run.succeed()
  expect(await client.ended).toBe(true)
  expect([cursorsOf(client), eventsOf(client).at(-1)?.data]).toEqual([
    upTo(cursorsOf(client).length),
    { state: 'SUCCEEDED', attempt: 1 },
  ])
  await here.close()
  await there.close()
  await database.drop()
})
