import type { ServerResponse } from 'node:http'
import type { EventsOfAllShape } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { EmbeddedBus } from '../../bus/embedded.ts'
import { decodePlace } from '../../contract/events.ts'
import { StoreUnavailable } from '../../core/node/store-errors.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import { createServices } from '../../services/index.ts'
import { FIRST_EVENT } from '../../store/events/all-events.ts'
import type { Store } from '../../store/port.ts'
import { type TestApp, testApp } from '../../testing/http/app.ts'
import {
  BEHIND,
  broken,
  CURRENT,
  cursorsOf,
  eventsOf,
  HOUR_MS,
  metric,
  pace,
  pathOf,
  streamClients,
  upTo,
  world,
} from '../../testing/http/event-streams.ts'
import type { SseClient } from '../../testing/http/sse.ts'
import { beginPublishing, type Publishing } from '../../testing/services/publishing.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { only } from '../../testing/store/scene.ts'
import { removeEventsOf, sql, testStore, unique, until } from '../../testing/store/store.ts'

const { open } = streamClients()

/** A hook between the read of a page and its answer. */
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
    requireRoom: () => store.requireRoom(),
    vacuum: async () => [],
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
  /** When the feed is idle: after the first read, and the read for events before the feed began. */
  async function followed(run: Publishing): Promise<SseClient> {
    const first = pagesRead
    const client = await follow(run.jobId)
    await client.count(2)
    await until('the feed to look', async () => pagesRead - first === 2)
    return client
  }

  test('are streamed from the first one until the end of the job, like in a page', async () => {
    pace.pollMs = HOUR_MS
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

  test('continue after Last-Event-ID, a cursor or a seq, with late lower seqs', async () => {
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
      // The reader saw lifecycle events last, and no event of a worker has this number.
      ['?last_seq=1', {}, upTo(8).slice(1)],
      ['?last_seq=2', {}, upTo(8).slice(2)],
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

  test('are neither lost nor sent twice between replay and live', async () => {
    pace.pollMs = HOUR_MS
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

  test('reach many readers that join while many are published', async () => {
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

  test('reset with the latest state if the next event or the place is unknown', async () => {
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

    await removeEventsOf(http.services.deps.store, run.jobId, 5)
    const kept = await follow(run.jobId, '?after=4')
    expect([await kept.ended, cursorsOf(kept)]).toEqual([true, [5, 6, 7, 8]])
    await removeEventsOf(http.services.deps.store, run.jobId)
    for (const query of ['', '?after=4']) {
      const old = await follow(run.jobId, query)
      expect(await old.ended).toBe(true)
      expect(old.frames).toMatchObject([
        { event: 'reset', id: '8', data: { state: 'SUCCEEDED', event: null } },
        { event: 'end', data: { state: 'SUCCEEDED' } },
      ])
    }
  })

  test('of all jobs are streamed from now on or after a place, with a filter', async () => {
    pace.pollMs = 20
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
    // Another transaction on the server may delay earlier events.
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

  test('of all jobs send an id to a reader whose filter matches nothing', async () => {
    pace.pollMs = 20
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

  test('are read once for several wake-ups', async () => {
    pace.pollMs = HOUR_MS
    // This node gets no wake-up for events of another node.
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
    // A wake-up without an event causes one read, not many.
    wake(99)
    await until('a look', async () => pagesRead - before === 2)
    await run.succeed()
    wake(4)
    expect([await client.ended, cursorsOf(client)]).toEqual([true, upTo(4)])
    expect(pagesRead - before).toBe(3)
  })

  test('are not read on the node that stored them, unless one is missing', async () => {
    pace.pollMs = HOUR_MS
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

  test('are not kept for a reader that has disconnected', async () => {
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
    // A leaked feed would stay as long as the job runs.
    expect((await http.call('GET', pathOf(run.jobId))).status).toBe(200)
    await until('nobody', async () => (await metric(http, CURRENT)) + (await metric(http, BEHIND)) === 0)
  })

  test('are found by polling when no wake-up comes', async () => {
    pace.pollMs = 50
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

  test('continue after an outage of the store', async () => {
    pace.pollMs = 20
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

  test('of a deleted job end with a problem', async () => {
    pace.pollMs = 50
    const run = await beginPublishing(http.services)
    const client = await follow(run.jobId)
    await client.count(2)
    for (const table of ['events', 'runs'])
      await sql(http.services.deps.store, `DELETE FROM ichido.${table} WHERE job_id = $1`, run.jobId)
    await sql(http.services.deps.store, 'DELETE FROM ichido.jobs WHERE id = $1', run.jobId)
    expect(await client.ended).toBe(true)
    expect(client.frames.at(-1)).toMatchObject({ event: 'problem', data: { error: { code: 'NOT_FOUND' } } })
  })
})
