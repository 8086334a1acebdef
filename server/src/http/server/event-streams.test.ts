import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { freshDatabase } from '../../../../scripts/testing/services.ts'
import { PostgresBus } from '../../bus/postgres.ts'
import { realWorld } from '../../node/world.ts'
import { DEFAULT_LIMITS } from '../../services/deps.ts'
import { type TestApp, testApp } from '../../testing/http/app.ts'
import {
  answering,
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
import { beginPublishing } from '../../testing/services/publishing.ts'
import { openNode, until } from '../../testing/store/store.ts'

const { open, clients } = streamClients()

describe('a stream', () => {
  let http: TestApp
  let url = ''
  beforeAll(async () => {
    http = await testApp('sqlite', { deps: { world, limits: { ...DEFAULT_LIMITS, subscribersMax: 5 } } })
    url = await http.app.listen({ host: '127.0.0.1', port: 0 })
  })
  afterAll(() => http.close())

  test('has a retry time, sends heartbeats while idle, and ends after its lifetime', async () => {
    pace.pollMs = 10
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
      pace.aheadMs += 15_000
      await until('a heartbeat', async () => client.heartbeats() >= i)
    }
    pace.aheadMs += 15 * 60_000
    expect(await client.ended).toBe(true)
    expect(cursorsOf(client)).toEqual([1, 2])
  })

  test('that stalls uses little memory, delays nobody, and catches up', async () => {
    const run = await beginPublishing(http.services)
    const { opened: slow, response } = await answering(http, () => open(url + pathOf(run.jobId)))
    slow.pause()
    const quick = await open(url + pathOf(run.jobId))
    // The socket buffers take a few megabytes, which varies.
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

  test('that stalls for a minute is dropped and counted', async () => {
    const run = await beginPublishing(http.services)
    const { opened: client, response } = await answering(http, () => open(url + pathOf(run.jobId)))
    response.emit('timeout')
    await client.ended
    expect(await metric(http, broken('dropped'))).toBe(1)
  })

  test('is refused beyond the maximum', async () => {
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

  test('is visible to readers of the job', async () => {
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

  test('ends at once when the server stops, also a stalled one', async () => {
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

test('a reader on one node gets events that are published on another', async () => {
  pace.pollMs = HOUR_MS
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
  await database.leave()
})
