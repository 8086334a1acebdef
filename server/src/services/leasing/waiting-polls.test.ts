import { sleep } from '@ichido/sdk/world'
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { FakeWorld, settled } from '../../../../scripts/testing/fake-world.ts'
import { type FreshDatabase, freshDatabase } from '../../../../scripts/testing/services.ts'
import { EmbeddedBus } from '../../bus/embedded.ts'
import { PostgresBus } from '../../bus/postgres.ts'
import { realWorld } from '../../node/world.ts'
import { openSqlite } from '../../store/engines/sqlite/sqlite.ts'
import type { Store } from '../../store/port.ts'
import { openNode, unique, until } from '../../testing/store/store.ts'
import { LOCAL_ADMIN } from '../access/access.ts'
import { DEFAULT_LIMITS, type Deps } from '../deps.ts'
import { createServices, type Services } from '../index.ts'
import { silentMeter } from '../system/meter.ts'

/** Hazard 22: a waiting poll is woken at once, or within a second, and costs almost nothing. */

const WAITING = 100

describe('a hundred waiting polls', () => {
  /** Services with a fake clock, and the number of their looks. */
  function scene(onLook = () => {}) {
    const world = new FakeWorld()
    const sqlite = openSqlite({ now: () => world.now() })
    let looks = 0
    const store: Store = {
      ...sqlite,
      write: (command) => {
        if (command.name === 'lease') {
          looks++
          onLook()
        }
        return sqlite.write(command)
      },
    }
    const bus = new EmbeddedBus()
    const services = createServices({ world, store, bus, meter: silentMeter, limits: DEFAULT_LIMITS })
    const answers = new Map<number, string[]>()
    const wait = (i: number, changes: object = {}) => {
      const request = { queues: ['q'], kinds: ['work'], max: 1, waitMs: 50_000, ...changes }
      void services.runs.lease(`w${i}`, request).then((leases) =>
        answers.set(
          i,
          leases.map(({ job_id }) => job_id),
        ),
      )
    }
    const submit = async (kind = 'work', queue = 'q') => {
      await services.submission.submit(LOCAL_ADMIN, { kind, queue }, { key: null })
      await settled()
    }
    return { world, bus, services, answers, wait, submit, looks: () => looks, close: () => sqlite.close() }
  }

  test('look once a second together, and only a served poll wakes', async () => {
    const { world, answers, wait, submit, looks, close } = scene()
    for (let i = 0; i < WAITING; i++) wait(i)
    await settled()
    const first = looks()
    expect(first).toBeLessThanOrEqual(2)
    await world.pass(10_000)
    expect(looks() - first).toBeLessThanOrEqual(12)
    expect(answers.size).toBe(0)

    const before = looks()
    await submit()
    expect(answers.size).toBe(1)
    expect(answers.get(0), 'who came first').toHaveLength(1)
    expect(looks() - before).toBeLessThanOrEqual(2)
    for (let i = 0; i < 40; i++) await submit()
    expect(answers.size).toBe(41)
    await world.pass(50_000)
    expect(answers.size).toBe(WAITING)
    expect([...answers.values()].flat()).toHaveLength(41)
    await close()
  })

  test('the next look begins before the leases of the last one are handed out', async () => {
    const steps: string[] = []
    const { services, close } = scene(() => steps.push('look'))
    for (let i = 0; i < 2; i++) {
      const request = { queues: ['q'], kinds: ['work'], max: 300, waitMs: 0 }
      void services.runs.lease(`w${i}`, request).then(() => steps.push('answer'))
    }
    await settled()
    expect(steps).toEqual(['look', 'look', 'answer', 'answer'])
    await close()
  })

  test('are served by few looks when much work comes', async () => {
    const { services, answers, wait, looks, close } = scene()
    for (let i = 0; i < WAITING; i++) wait(i)
    await settled()
    const before = looks()
    await Promise.all(
      Array.from({ length: WAITING }, () =>
        services.submission.submit(LOCAL_ADMIN, { kind: 'work', queue: 'q' }, { key: null }),
      ),
    )
    await settled()
    await settled()
    expect(answers.size).toBe(WAITING)
    expect(new Set([...answers.values()].flat()).size).toBe(WAITING)
    expect(looks() - before).toBeLessThanOrEqual(8)
    await close()
  })

  test('of other kinds do not delay the poll of the kind', async () => {
    const { answers, wait, submit, close } = scene()
    for (let i = 0; i < WAITING; i++) wait(i)
    wait(WAITING, { kinds: ['rare'] })
    wait(WAITING + 1, { kinds: [] })
    await settled()
    await submit('rare')
    await submit('rare')
    expect([...answers.keys()].sort()).toEqual([WAITING, WAITING + 1].sort())
    await close()
  })

  test('of several queues get at most their maximum', async () => {
    const { answers, wait, submit, close } = scene()
    wait(0, { queues: ['a', 'b'] })
    wait(1, { queues: ['b', 'a'] })
    await settled()
    await submit('work', 'b')
    await submit('work', 'a')
    await submit('work', 'a')
    expect([...answers.values()].map((leases) => leases.length)).toEqual([1, 1])
    await close()
  })

  test('leave nothing behind after a timeout or a disconnect', async () => {
    const { world, bus, services, answers, wait, submit, close } = scene()
    wait(0, { waitMs: 5_000 })
    const gone = new AbortController()
    const aborted = services.runs.lease('w', { queues: ['q'], kinds: [], max: 1, waitMs: 50_000 }, gone.signal)
    await settled()
    gone.abort()
    expect(await aborted).toEqual([])
    await world.pass(5_000)
    expect(answers.get(0)).toEqual([])
    await submit()
    expect(world.pendingMs, 'no timer runs on').toEqual([])
    let heard = 0
    bus.subscribe('queue:q', () => heard++)
    bus.wake(['queue:q'])
    expect(heard).toBe(1)
    const [lease] = await services.runs.lease('w', { queues: ['q'], kinds: [], max: 1, waitMs: 0 })
    expect(lease?.attempt, 'nobody took it in between').toBe(1)
    await close()
  })

  test('give leases back if their worker disconnects and cannot repeat them', async () => {
    const { services, submit, close } = scene()
    const { store } = services.deps
    const write = store.write.bind(store)
    for (const pollId of [undefined, 'p']) {
      const gone = new AbortController()
      store.write = (command) => {
        if (command.name === 'lease') gone.abort()
        return write(command)
      }
      await submit()
      const request = { queues: ['q'], kinds: [], max: 1, waitMs: 50_000, pollId }
      const leases = await services.runs.lease('w', request, gone.signal)
      store.write = write
      expect(leases).toHaveLength(1)
      const { state } = await services.jobs.get(LOCAL_ADMIN, leases[0]?.job_id ?? '')
      expect(state).toBe(pollId === undefined ? 'ORPHANED' : 'ASSIGNED')
      await services.jobs.cancel(LOCAL_ADMIN, leases[0]?.job_id ?? '')
    }
    await close()
  })

  test('fail with their look, and the next look runs', async () => {
    const { services, wait, answers, submit, close } = scene()
    const write = services.deps.store.write
    services.deps.store.write = () => Promise.reject(new Error('out of reach'))
    await expect(services.runs.lease('w', { queues: ['q'], kinds: [], max: 1, waitMs: 50_000 })).rejects.toThrow(
      'out of reach',
    )
    services.deps.store.write = write
    wait(0)
    await submit()
    expect(answers.get(0)).toHaveLength(1)
    await close()
  })
})

describe('on PostgreSQL', () => {
  let database: FreshDatabase
  const opened: Store[] = []
  beforeAll(async () => {
    database = await freshDatabase()
  })
  afterAll(async () => {
    for (const store of opened) await store.close()
    await database.leave()
  })

  async function node(bus: Deps['bus']): Promise<Services> {
    const store = await openNode(database.url)
    opened.push(store)
    return createServices({ world: realWorld, store, bus, meter: silentMeter, limits: DEFAULT_LIMITS })
  }

  /** The times in ms from the answer to a submission on one node to the lease on the other, sorted. */
  async function waits(at: Services, from: Services, times: number): Promise<number[]> {
    const found: number[] = []
    for (let i = 0; i < times; i++) {
      const queue = unique('queue')
      const waiting = at.runs.lease('w', { queues: [queue], kinds: [], max: 1, waitMs: 30_000 })
      // At varying times relative to the polling of the node.
      await sleep(realWorld, 20 + Math.random() * 100)
      await submit(from, queue)
      const began = performance.now()
      expect(await waiting).toHaveLength(1)
      found.push(performance.now() - began)
    }
    return found.sort((a, b) => a - b)
  }

  const submit = (services: Services, queue: string) =>
    services.submission.submit(LOCAL_ADMIN, { kind: 'work', queue }, { key: null })

  /** The same for existing work: the time of a lease on this machine right now. */
  async function plainLeases(services: Services, times: number): Promise<number[]> {
    const found: number[] = []
    for (let i = 0; i < times; i++) {
      const queue = unique('queue')
      await submit(services, queue)
      const began = performance.now()
      await services.runs.lease('w', { queues: [queue], kinds: [], max: 1, waitMs: 0 })
      found.push(performance.now() - began)
    }
    return found.sort((a, b) => a - b)
  }

  /** A busy machine delays some, so a quarter must be in time in one of three rounds. Polling alone would get none. */
  async function expectWoken(at: Services, from: Services, withinMs: number): Promise<void> {
    const rounds: number[] = []
    while (rounds.length < 3 && !rounds.some((ms) => ms < withinMs)) {
      const [plain, woken] = [await plainLeases(at, 12), await waits(at, from, 12)]
      rounds.push((woken[2] ?? 0) - (plain[2] ?? 0))
    }
    expect(Math.min(...rounds)).toBeLessThan(withinMs)
  }

  test('work is found within a second without notifications', async () => {
    const [a, b] = [await node(new EmbeddedBus()), await node(new EmbeddedBus())]
    const all = (await Promise.all(Array.from({ length: 8 }, () => waits(a, b, 1)))).flat()
    const [plain = 0] = (await plainLeases(a, 12)).slice(-1)
    expect(Math.max(...all)).toBeLessThan(1_000 + plain)
  })

  test('a submission on the same node wakes a worker within 20 ms', async () => {
    const services = await node(new EmbeddedBus())
    await expectWoken(services, services, 20)
  })

  test('a submission on another node wakes a worker within 50 ms', async () => {
    const buses = [0, 1].map(
      () => new PostgresBus({ world: realWorld, schema: 'ichido', connect: () => connected(database.url) }),
    )
    const [a, b] = await Promise.all(buses.map(node))
    if (a === undefined || b === undefined) throw new Error('Two nodes')
    await until('both to listen', async () => {
      const [lease] = await waits(a, b, 1)
      return (lease ?? 1_000) < 300
    })
    await expectWoken(a, b, 50)
    for (const bus of buses) await bus.close()
  })
})

async function connected(url: string): Promise<pg.Client> {
  const client = new pg.Client(url)
  await client.connect()
  return client
}
