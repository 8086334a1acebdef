import { randomUUID } from 'node:crypto'
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest'
import type { ForeignEvent, IngestedEvent } from '../../core/events/event.ts'
import { anEvent, RedisScene, type TestRedis, testRedis } from '../../testing/nodes/redis.ts'
import { until } from '../../testing/store/store.ts'
import { GROUP } from './keys.ts'
import type { Ingest } from './streams.ts'

let redis: TestRedis
let scene: RedisScene
let jobId: string
/** The stored events, in their order. */
let stored: (ForeignEvent | null)[]
beforeAll(async () => {
  redis = await testRedis('single')
})
afterAll(() => redis.stop())
beforeEach(async () => {
  await redis.flushAll()
  scene = new RedisScene(redis.url)
  jobId = randomUUID()
  stored = []
  await scene.up()
})
afterEach(() => scene.close())

/** Stores each once, as the store does, and gives out cursors. */
const ingest: Ingest = async (events) =>
  events.map((event): IngestedEvent | null => {
    if (event === null) return null
    let at = stored.findIndex((one) => one?.seq === event.seq)
    if (at < 0) at = stored.push(event) - 1
    return { event: anEvent({ ...event, n: at + 2 }), last: at === stored.length - 1 }
  })

const stream = () => scene.link.keys.stream('scan', scene.link.keys.shardOf(jobId))
const foreign = (seq: number) => ({
  job_id: jobId,
  domain: 'scan',
  stage: 'vision',
  seq,
  data: { seq },
  timestamp: 'now',
})
const add = (value: unknown) => redis.add(stream(), typeof value === 'string' ? value : JSON.stringify(value))

async function isAcknowledged(): Promise<boolean> {
  const groups = await scene.link.call((commands) => commands.xInfoGroups(stream()))
  const entries = await scene.link.call((commands) => commands.xRange(stream(), '-', '+'))
  return groups[0]?.pending === 0 && groups[0]['last-delivered-id'] === entries?.at(-1)?.id
}

test('a stream of another program is found, and its events get cursors', async () => {
  const heard: number[] = []
  const bus = scene.bus()
  bus.subscribe(`job:${jobId}`, (news) => void heard.push(news?.cursor ?? 0))
  // As S4's publisher does it.
  await add(foreign(10))
  await scene.link.call((commands) => commands.set(scene.link.keys.state('scan', jobId), JSON.stringify(foreign(10))))
  scene.router({ ingest })
  await until('the event', async () => heard.includes(2))
  expect(await scene.state('scan', jobId)).toMatchObject({ cursor: 2, seq: 10, data: { seq: 10 } })
})

test('an entry that another router holds is stored before those after it', async () => {
  for (const seq of [10, 11]) await add(foreign(seq))
  await scene.link.call((commands) => commands.xGroupCreate(stream(), GROUP, '0'))
  await scene.link.call((commands) => commands.xReadGroup(GROUP, 'paused', [{ key: stream(), id: '>' }]))
  for (const seq of [12, 13]) await add(foreign(seq))
  scene.router({ ingest })
  await until('all four', async () => stored.length === 4)
  expect(stored.map((event) => event?.seq)).toEqual([10, 11, 12, 13])
})

test('interleaved entries of two routers are stored in the order of the stream', async () => {
  for (const seq of [10, 11, 12]) await add(foreign(seq))
  await scene.link.call((commands) => commands.xGroupCreate(stream(), GROUP, '0'))
  const [read] = (await scene.link.call((commands) =>
    commands.xReadGroup(GROUP, 'dead', [{ key: stream(), id: '>' }]),
  )) as { messages: { id: string }[] }[]
  const middle = read?.messages[1]?.id ?? ''
  // Held by a running router, so that it is not reclaimed with its neighbours.
  await redis.command('XCLAIM', stream(), GROUP, 'busy', '0', middle, 'IDLE', '0')
  await redis.command('XCLAIM', stream(), GROUP, 'dead', '0', read?.messages[0]?.id ?? '', 'IDLE', '60000')
  await redis.command('XCLAIM', stream(), GROUP, 'dead', '0', read?.messages[2]?.id ?? '', 'IDLE', '60000')
  scene.router({ ingest, reclaimAfterMs: 30_000 })
  await until('all three', async () => stored.length === 3)
  expect(stored.map((event) => event?.seq)).toEqual([10, 11, 12])
})

test('while the store is unreachable entries wait, and our own are routed', async () => {
  let isAway = true
  const failing: Ingest = async (events) => {
    if (isAway) throw new Error('away')
    return ingest(events)
  }
  await add(foreign(10))
  await scene.relay.publish([anEvent({ jobId, n: 9, seq: 19 })])
  scene.router({ ingest: failing, reclaimAfterMs: 50 })
  await until('our own', async () => scene.routed.new === 1)
  isAway = false
  await until('the one that waited', async () => stored.length === 1)
  await until('both to be acknowledged', isAcknowledged)
})

test('a late repeat does not replace the state', async () => {
  scene.router({ ingest })
  for (const seq of [10, 11]) await add(foreign(seq))
  await until('both', async () => scene.routed.new === 2)
  // Its marks have expired: the publisher sets the state to an old event again.
  await redis.remove('router:published:*')
  await scene.link.call((commands) => commands.set(scene.link.keys.state('scan', jobId), JSON.stringify(foreign(10))))
  await add(foreign(10))
  await until('the repeat', async () => scene.routed.new === 3)
  expect(await scene.state('scan', jobId), 'what is missing sends to the store').toBeNull()
})

test('entries that are not events are skipped', async () => {
  scene.router({ ingest })
  const bad = [
    'no json',
    '{}',
    'NaN',
    JSON.stringify({ ...foreign(10), seq: 'ten' }),
    JSON.stringify({ ...foreign(3), stage: 'run' }),
    JSON.stringify({ ...foreign(11), data: 'deep' }).replace('"deep"', '['.repeat(50_000) + ']'.repeat(50_000)),
  ]
  for (const text of bad) await add(text)
  await add(foreign(12))
  await until('all to be acknowledged', isAcknowledged)
  expect(stored.map((event) => event?.seq)).toEqual([12])
  expect(scene.troubles).toEqual([])
})
