import type { World } from '@ichido/sdk/world'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { FakeWorld, settled } from '../../../../scripts/testing/fake-world.ts'
import { EmbeddedBus } from '../../bus/embedded.ts'
import type { Bus } from '../../bus/port.ts'
import { silentMeter } from '../../services/system/meter.ts'
import { openSqlite } from '../../store/engines/sqlite/sqlite.ts'
import type { Store } from '../../store/port.ts'
import { sql } from '../../testing/store/store.ts'
import { ClockWatch } from './clock-watch.ts'
import { Election, type LeadershipChange, type Leading } from './elect.ts'

const MINUTE_MS = 60_000

/** A node that can be frozen. Its duty counts once a second. */
class Node {
  readonly election: Election
  leading: Leading | null = null
  done = 0
  gauges: [leads: boolean, epoch: number][] = []
  changes: LeadershipChange[] = []
  #stopped = false
  #missed: (() => void)[] = []

  constructor(world: World, store: Store, bus: Bus) {
    const own: World = { ...world, after: (ms, callback) => world.after(ms, () => this.#call(callback)) }
    const meter = {
      ...silentMeter,
      leadership: (leads: boolean, epoch: number) => void this.gauges.push([leads, epoch]),
    }
    const onTrouble = (name: string, error: unknown) => {
      throw new Error(name, { cause: error })
    }
    this.election = new Election({
      world: own,
      store,
      bus,
      meter,
      clock: new ClockWatch(own),
      onTrouble,
      onChange: (change) => void this.changes.push(change),
      duties: (leading) => {
        this.leading = leading
        const tick = async () => {
          this.done++
          return null
        }
        return [{ name: 'count', intervalMs: () => 1_000, tick, wokenBy: 'triggers' }]
      },
    })
    this.election.start()
  }

  #call(callback: () => void): void {
    if (this.#stopped) this.#missed.push(callback)
    else callback()
  }

  pause(): void {
    this.#stopped = true
  }

  async resume(): Promise<void> {
    this.#stopped = false
    for (const callback of this.#missed.splice(0)) callback()
    await settled()
  }
}

let world: FakeWorld
let sqlite: Store
let store: Store
let bus: EmbeddedBus
let nodes: Node[]

beforeEach(() => {
  world = new FakeWorld()
  sqlite = openSqlite({ now: world.now })
  // Two nodes on one SQLite are for tests only; they share it as they would a PostgreSQL.
  store = { ...sqlite, engine: 'postgres' }
  bus = new EmbeddedBus()
  nodes = []
})
afterEach(async () => {
  for (const node of nodes) await node.resume()
  const stopping = Promise.all(nodes.map(({ election }) => election.stop()))
  await world.pass(0)
  await stopping
  await sqlite.close()
})

async function start(changes: Partial<{ store: Store; bus: Bus; world: World }> = {}): Promise<Node> {
  const node = new Node(changes.world ?? world, changes.store ?? store, changes.bus ?? bus)
  nodes.push(node)
  await world.pass(0)
  return node
}
const row = async () => (await sql(sqlite, 'SELECT holder, epoch, expires_at FROM ichido.leadership'))[0]
const epochs = () => nodes.map(({ election }) => election.epoch)

/** How long until this node leads. */
async function untilLed(node: Node): Promise<number> {
  const beganMs = world.monotonic()
  while (node.election.epoch === null) {
    if (world.monotonic() > beganMs + MINUTE_MS) throw new Error('It does not lead after a minute')
    await world.pass(100)
  }
  return world.monotonic() - beganMs
}

test('the first node leads at once and continues; the others do not lead', async () => {
  const a = await start()
  const b = await start()
  expect(epochs()).toEqual([2, null])
  expect(a.done).toBe(1)
  await world.pass(10 * MINUTE_MS)
  expect(epochs()).toEqual([2, null])
  expect([a.done, b.done]).toEqual([601, 0])
  expect([a.gauges.at(-1), b.gauges.at(-1)]).toEqual([
    [true, 2],
    [false, 2],
  ])
})

test('a topic wakes a duty on the leader, and only in its term', async () => {
  const a = await start()
  const b = await start()
  await world.pass(300)
  bus.wake(['triggers'])
  await world.pass(0)
  expect([a.done, b.done]).toEqual([2, 0])
  const stopping = a.election.stop()
  await world.pass(0)
  await stopping
  bus.wake(['triggers'])
  await world.pass(0)
  expect([a.done, b.done]).toEqual([2, 2])
})

test('a node that stops resigns, and the next leads at once in a new epoch', async () => {
  const a = await start()
  const b = await start()
  await world.pass(300)
  const stopping = a.election.stop()
  await world.pass(0)
  await stopping
  expect(epochs()).toEqual([null, 3])
  expect(b.done).toBe(1)
  const done = a.done
  await world.pass(5_000)
  expect(a.done).toBe(done)
})

test('without the wake-up the vacancy is found within a second', async () => {
  const deaf: Bus = { wake() {}, subscribe: () => () => {}, close: async () => {} }
  const a = await start({ bus: deaf })
  const b = await start({ bus: deaf })
  const stopping = a.election.stop()
  await world.pass(0)
  await stopping
  expect(await untilLed(b)).toBeLessThanOrEqual(1_000)
})

test('a killed leader is replaced within ten seconds', async () => {
  await start()
  for (let kill = 0; kill < 20; kill++) {
    const next = await start()
    await world.pass(2_000 + kill * 130)
    nodes.at(-2)?.pause()
    expect(await untilLed(next)).toBeLessThanOrEqual(10_000)
  }
  expect((await row())?.epoch).toBe(22)
})

test('a paused leader does nothing after its term, and notices the new one', async () => {
  const a = await start()
  const b = await start()
  const { done } = a
  a.pause()
  await untilLed(b)
  expect(a.leading?.trusted()).toBe(false)
  await a.resume()
  await world.pass(10_000)
  expect(epochs()).toEqual([null, 3])
  expect(a.done).toBe(done)
  expect(a.gauges.at(-1)).toEqual([false, 3])
})

test('a leader trusts its term from when it sent the renewal', async () => {
  const slow = { ...store }
  const a = await start({ store: slow })
  const held = Promise.withResolvers<void>()
  slow.write = async (command) => {
    const standing = await store.write(command)
    await held.promise
    return standing
  }
  await world.pass(2_000)
  expect(a.leading?.trusted()).toBe(true)
  await world.pass(5_000)
  expect(a.leading?.trusted()).toBe(false)
  // The answer is positive, but too old.
  slow.write = store.write
  held.resolve()
  await settled()
  expect(a.leading?.trusted()).toBe(false)
  await world.pass(2_000)
  expect(a.leading?.trusted()).toBe(true)
  expect(epochs()).toEqual([2])
})

test('after the end of its term no node reports to lead', async () => {
  const silent = { ...store }
  const a = await start({ store: silent })
  await world.pass(2_000)
  const held = Promise.withResolvers<void>()
  silent.write = async (command) => {
    await held.promise
    return store.write(command)
  }
  await world.pass(2_000)
  expect(a.gauges.at(-1)).toEqual([true, 2])
  await world.pass(5_000)
  expect(a.gauges.at(-1)).toEqual([false, 2])
  silent.write = store.write
  held.resolve()
  await world.pass(2_000)
  expect(a.gauges.at(-1)).toEqual([true, 2])
  expect(a.changes).toEqual([
    { leads: true, epoch: 2 },
    { leads: false, epoch: 2, why: 'term lapsed' },
    { leads: true, epoch: 2 },
  ])
})

test('each begin and end of leading is reported once, with the reason', async () => {
  const a = await start()
  const b = await start()
  await world.pass(MINUTE_MS)
  expect(a.changes).toEqual([{ leads: true, epoch: 2 }])
  // For example after a restore: the epoch changes before the term ends.
  await sql(sqlite, 'UPDATE ichido.leadership SET epoch = 7, holder = NULL')
  await world.pass(2_000)
  expect(a.changes.slice(1, 2)).toEqual([{ leads: false, epoch: 2, why: expect.stringMatching(/^epoch [78] began$/) }])
  const next = b.election.epoch === null ? a : b
  const stopping = next.election.stop()
  await world.pass(0)
  await stopping
  expect(next.changes.slice(-2)).toEqual([
    { leads: true, epoch: 8 },
    { leads: false, epoch: 8, why: 'resigned' },
  ])
})

test('a stopped node reports it, and leaves no timer behind', async () => {
  const a = await start()
  const stopping = a.election.stop()
  await world.pass(0)
  await stopping
  expect(a.gauges.at(-1)).toEqual([false, 2])
  expect(world.pendingMs).toEqual([])
})

describe('when the clock', () => {
  test.each([10 * MINUTE_MS, -10 * MINUTE_MS])(
    'jumps by %s ms, there is one leader, and a killed one is replaced',
    async (ms) => {
      await start()
      await start()
      await world.pass(3_000)
      world.jump(ms)
      await world.pass(3_000)
      expect(epochs().filter((epoch) => epoch !== null)).toHaveLength(1)
      const [leader, other] = epochs()[0] === null ? nodes.toReversed() : nodes
      world.jump(ms)
      leader?.pause()
      if (other) expect(await untilLed(other)).toBeLessThanOrEqual(10_000)
    },
  )
})

test('on SQLite the leadership is renewed rarely, and kept', async () => {
  let writes = 0
  const counted: Store = {
    ...sqlite,
    write(command) {
      writes++
      return sqlite.write(command)
    },
  }
  const a = await start({ store: counted })
  await world.pass(60 * MINUTE_MS)
  expect(epochs()).toEqual([2])
  expect(a.leading?.trusted()).toBe(true)
  expect(writes).toBeLessThanOrEqual(20)
})
