import { once } from 'node:events'
import type { World } from '@ichido/sdk/world'
import pg from 'pg'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { type FreshDatabase, freshDatabase } from '../../../scripts/testing/services.ts'
import { realWorld } from '../node/world.ts'
import { until } from '../testing/store/store.ts'
import type { Topic } from './port.ts'
import { channelOf, LAST_FLUSH_MS, PostgresBus, type PostgresBusOptions } from './postgres.ts'

let database: FreshDatabase
let observer: pg.Client
const buses: PostgresBus[] = []

beforeAll(async () => {
  database = await freshDatabase()
  observer = await connect()
})
afterEach(async () => {
  await Promise.all(buses.splice(0).map((bus) => bus.close()))
})
afterAll(async () => {
  await observer.end()
  await database.leave()
})

async function connect(): Promise<pg.Client> {
  const client = new pg.Client(database.url)
  client.on('error', () => {})
  await client.connect()
  return client
}

let schemas = 0
const newSchema = () => `s${++schemas}`
/** The buses of a schema that are connected and have woken their subscribers because of it. */
const connected = new Map<string, Set<PostgresBus>>()

function bus(schema: string, changes: Partial<PostgresBusOptions> = {}): PostgresBus {
  const opened = new PostgresBus({ world: realWorld, connect, schema, ...changes })
  buses.push(opened)
  const ofSchema = connected.get(schema) ?? new Set()
  connected.set(schema, ofSchema)
  opened.subscribe('queue:connected', () => ofSchema.add(opened))
  return opened
}

async function listeners(schema: string): Promise<number[]> {
  const { rows } = await observer.query<{ pid: number }>('SELECT pid FROM pg_stat_activity WHERE query = $1', [
    `LISTEN ${channelOf(schema)}`,
  ])
  return rows.map(({ pid }) => pid)
}

/**
 * Waits until that many buses listen and have woken their subscribers for the new connection, so that later subscribers
 * hear only wake-ups of the test. A bus that has sent something is not counted, because its last query is another.
 */
async function listening(schema: string, count: number): Promise<number[]> {
  return until(`${count} listeners`, async () => {
    const pids = await listeners(schema)
    return pids.length === count && (connected.get(schema)?.size ?? 0) >= count && pids
  })
}

function counting(on: PostgresBus, topic: Topic): () => number {
  let count = 0
  on.subscribe(topic, () => count++)
  return () => count
}

const heard = (what: string, count: () => number) => until(what, async () => count() > 0)

test('a wake-up reaches other nodes, and this node at once and only once', async () => {
  const schema = newSchema()
  const [a, b] = [bus(schema), bus(schema)]
  await listening(schema, 2)
  const [here, there, back] = [counting(a, 'queue:x'), counting(b, 'queue:x'), counting(a, 'queue:y')]
  a.wake(['queue:x'])
  expect(here()).toBe(1)
  await heard('the wake-up on the other node', there)
  // Notifications arrive in the order of their commits: an echo of the first would be here before this one.
  b.wake(['queue:y'])
  await heard('the answer', back)
  expect(here()).toBe(1)
})

test('nodes of another schema are not woken', async () => {
  const [mine, other] = [newSchema(), newSchema()]
  const [a, b, c] = [bus(mine), bus(mine), bus(other)]
  await listening(mine, 2)
  await listening(other, 1)
  const [ours, theirs] = [counting(b, 'queue:x'), counting(c, 'queue:x')]
  a.wake(['queue:x'])
  await heard('the wake-up', ours)
  expect(theirs()).toBe(0)
})

test('a transaction can carry a wake-up of its own', async () => {
  const schema = newSchema()
  const a = bus(schema)
  await listening(schema, 1)
  const woken = counting(a, 'queue:x')
  const writer = await connect()
  await writer.query('BEGIN')
  await writer.query('SELECT pg_notify($1, $2)', [channelOf(schema), 'queue:x'])
  expect(woken()).toBe(0)
  await writer.query('COMMIT')
  await heard('the wake-up', woken)
  await writer.end()
})

test('behind a pooler a bus notifies other nodes, but does not listen', async () => {
  const schema = newSchema()
  const b = bus(schema)
  await listening(schema, 1)
  const a = bus(schema, { canListen: async () => false })
  const woken = counting(b, 'queue:x')
  a.wake(['queue:x'])
  await heard('the wake-up on the other node', woken)
  expect(await listeners(schema)).toHaveLength(1)
})

test('after a reconnect it listens again, and wakes all subscribers', async () => {
  const schema = newSchema()
  const troubles: unknown[] = []
  const a = bus(schema)
  const [first] = await listening(schema, 1)
  const b = bus(schema, { onTrouble: (error) => troubles.push(error) })
  const pids = await listening(schema, 2)
  const woken = counting(b, 'queue:x')
  const cut = pids.find((pid) => pid !== first)
  await observer.query('SELECT pg_terminate_backend($1)', [cut])
  await heard('the wake-up after the new connection', woken)
  expect(troubles).toMatchObject([{ code: '57P01' }])
  const before = woken()
  a.wake(['queue:x'])
  await until('a wake-up over the new connection', async () => woken() > before)
})

test('many topics at once are split into notifications that PostgreSQL takes', async () => {
  const schema = newSchema()
  const a = bus(schema)
  await listening(schema, 1)
  const raw = await connect()
  const payloads: string[] = []
  raw.on('notification', ({ payload = '' }) => payloads.push(payload))
  await raw.query(`LISTEN ${channelOf(schema)}`)
  const topics = Array.from({ length: 1_000 }, (_, i): Topic => `queue:${i}-${'x'.repeat(100)}`)
  a.wake(topics)
  const lines = () => payloads.flatMap((payload) => payload.split('\n')).filter((line) => line.startsWith('queue:'))
  await until('all of them', async () => lines().length === topics.length)
  expect(lines()).toEqual(topics)
  expect(Math.max(...payloads.map((payload) => Buffer.byteLength(payload)))).toBeLessThan(8_000)
  // One notification for the first topics, then as few as possible.
  expect(payloads.length).toBeLessThan(20)
  await raw.end()
})

test('wake-ups just before closing are sent, and closing twice is fine', async () => {
  const schema = newSchema()
  const [a, b] = [bus(schema), bus(schema)]
  await listening(schema, 2)
  const woken = counting(b, 'queue:last')
  // More than one notification holds.
  a.wake([...Array.from({ length: 500 }, (_, i): Topic => `queue:${i}-${'x'.repeat(100)}`), 'queue:last'])
  await Promise.all([a.close(), a.close()])
  await heard('the last wake-up', woken)
  expect(await listeners(schema)).toHaveLength(1)
  a.wake(['queue:last'])
})

test('a closing bus sends its wake-ups first, and reports no trouble', async () => {
  const schema = newSchema()
  const troubles: unknown[] = []
  // On a busy machine the time for the last wake-ups may end before they are sent; here it does not end.
  const world: World = {
    ...realWorld,
    after: (ms, call) => (ms === LAST_FLUSH_MS ? () => {} : realWorld.after(ms, call)),
  }
  const [a, b] = [bus(schema, { world, onTrouble: (error) => troubles.push(error) }), bus(schema)]
  await listening(schema, 2)
  const topics = Array.from({ length: 10_000 }, (_, i): Topic => `job:${i}-${'x'.repeat(100)}`)
  const woken = counting(b, topics.at(-1) ?? 'job:')
  a.wake(topics)
  await a.close()
  await heard('the last wake-up', woken)
  expect(troubles).toEqual([])
})

test('a database that does not answer does not delay closing', async () => {
  const schema = newSchema()
  const troubles: unknown[] = []
  const asked = Promise.withResolvers<void>()
  const connected = Promise.withResolvers<pg.Client>()
  const a = bus(schema, {
    async connect() {
      const client = await connect()
      connected.resolve(client)
      return client
    },
    onTrouble: (error) => troubles.push(error),
  })
  await listening(schema, 1)
  const client = await connected.promise
  const query = client.query.bind(client)
  client.query = () => {
    asked.resolve()
    return new Promise<never>((_, reject) => void query('SELECT pg_sleep(600)').catch(reject))
  }
  a.wake(['queue:x'])
  await asked.promise
  await a.close()
  expect(troubles).toEqual([])
})

test('wake-ups of queues are sent before wake-ups of jobs', async () => {
  const schema = newSchema()
  const gate = Promise.withResolvers<void>()
  const a = bus(schema, { connect: () => gate.promise.then(connect) })
  const b = bus(schema)
  await listening(schema, 1)
  const told: string[] = []
  for (const topic of ['job:0', 'queue:x', 'worker:w'] as const) b.subscribe(topic, () => told.push(topic))
  a.wake(Array.from({ length: 5_000 }, (_, i): Topic => `job:${i}`))
  a.wake(['queue:x', 'worker:w'])
  gate.resolve()
  await until('all of them', async () => told.length === 3)
  expect(told).toEqual(['queue:x', 'worker:w', 'job:0'])
})

test('a bus that is closed before it connects leaves no connection behind', async () => {
  const gate = Promise.withResolvers<void>()
  const connected = Promise.withResolvers<pg.Client>()
  const a = bus(newSchema(), {
    async connect() {
      await gate.promise
      const client = await connect()
      connected.resolve(client)
      return client
    },
  })
  a.wake(['queue:x'])
  const closing = a.close()
  gate.resolve()
  const ended = once(await connected.promise, 'end')
  await closing
  await ended
})

test('a connection that cannot listen is closed, and the next one is tried', async () => {
  const schema = newSchema()
  const ended: Promise<unknown>[] = []
  const troubles: unknown[] = []
  bus(schema, {
    async connect() {
      if (troubles.length === 0) throw new Error('refused')
      const client = await connect()
      if (ended.length === 0) {
        ended.push(once(client, 'end'))
        client.query = () => Promise.reject(new Error('cannot listen'))
      }
      return client
    },
    onTrouble: (error) => troubles.push(error),
  })
  await listening(schema, 1)
  await Promise.all(ended)
  expect(troubles).toEqual([new Error('refused'), new Error('cannot listen')])
})

test('without a connection the pending wake-ups are bounded', async () => {
  const schema = newSchema()
  const gate = Promise.withResolvers<void>()
  const a = bus(schema, { connect: () => gate.promise.then(connect) })
  const b = bus(schema)
  await listening(schema, 1)
  const woken = ['job:0', 'job:9999', 'job:10000'].map((topic) => counting(b, topic as Topic))
  const after = counting(b, 'job:after')
  a.wake(Array.from({ length: 10_001 }, (_, i): Topic => `job:${i}`))
  gate.resolve()
  await until('the last one that was kept', async () => woken[1]?.() === 1)
  a.wake(['job:after'])
  await heard('the one after', after)
  expect(woken.map((count) => count())).toEqual([1, 1, 0])
})
