import { sleep, type World } from '@ichido/sdk/world'
import { FakeWorld } from '../../../../scripts/testing/fake-world.ts'
import { freshDatabase } from '../../../../scripts/testing/services.ts'
import { EmbeddedBus } from '../../bus/embedded.ts'
import type { Bus, Topic } from '../../bus/port.ts'
import type { SubmitInput } from '../../contract/submit.ts'
import { realWorld } from '../../node/world.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import type { Services } from '../../services/index.ts'
import { type Meter, silentMeter } from '../../services/system/meter.ts'
import { openPostgres } from '../../store/engines/postgres/postgres.ts'
import { openSqlite } from '../../store/engines/sqlite/sqlite.ts'
import type { Store } from '../../store/port.ts'
import { type Engine, testServices } from '../services/services.ts'
import { shiftedClock } from '../store/shifted-clock.ts'
import { sql } from '../store/store.ts'

/** Services without running loops: the test calls the leader's duties and lets time pass. */
export interface LeaderScene extends Omit<Place, 'remove'> {
  services: Services
  bus: Bus
  meter: Meter
  fairTags: Services['fairTags']
  settings: Services['settings']
  /** The topics that were woken since the last call. */
  woken(): Topic[]
  /** The states that runs ended in. */
  ended: string[]
  submit(input?: Partial<SubmitInput>, key?: string): Promise<string>
  /** Deletes everything, for the next test. */
  clear(): Promise<void>
  close(): Promise<void>
}

/** A store with a clock that the test controls, and a node's own clock beside it. */
interface Place {
  store: Store
  world: World
  /** Moves all clocks. */
  pass(ms: number): Promise<void>
  /** Moves only the store's clock. */
  jump(ms: number): Promise<void>
  remove(): Promise<void>
}

export async function leaderScene(engine: Engine): Promise<LeaderScene> {
  const place = await (engine === 'sqlite' ? onSqlite() : onPostgres())
  const woken: Topic[] = []
  const ended: string[] = []
  const bus = new EmbeddedBus()
  const wake = bus.wake.bind(bus)
  bus.wake = (topics) => {
    woken.push(...topics)
    wake(topics)
  }
  const meter = { ...silentMeter, ended: (state: string) => void ended.push(state) }
  const { store, world } = place
  const { services, close } = await testServices(engine, { world, bus, meter }, { store, remove: place.remove })
  return {
    ...place,
    services,
    close,
    bus,
    meter,
    fairTags: services.fairTags,
    settings: services.settings,
    ended,
    woken: () => woken.splice(0),
    async submit(input = {}, key) {
      const outcome = await services.submission.submit(LOCAL_ADMIN, { kind: 'work', ...input }, { key: key ?? null })
      if (outcome.kind === 'refused') throw new Error(outcome.refusal.message)
      return outcome.jobId
    },
    async clear() {
      for (const table of ['jobs', 'ready', 'held', 'ended', 'events', 'idempotency_keys', 'dead_letters']) {
        await sql(store, `DELETE FROM ichido.${table}`)
      }
      woken.length = 0
      ended.length = 0
    },
  }
}

async function onSqlite(): Promise<Place> {
  const world = new FakeWorld()
  const store = openSqlite({ now: world.now })
  return { store, world, pass: world.pass.bind(world), jump: async (ms) => world.jump(ms), remove: async () => {} }
}

async function onPostgres(): Promise<Place> {
  const { url, leave } = await freshDatabase()
  const { pool, shift } = await shiftedClock(url)
  let passedMs = 0
  const world: World = { ...realWorld, monotonic: () => realWorld.monotonic() + passedMs }
  const store = await openPostgres({
    pool,
    now: world.now,
    monotonic: world.monotonic,
    sleep: (ms) => sleep(world, ms),
  })
  return {
    store,
    world,
    async pass(ms) {
      passedMs += ms
      await shift(ms)
    },
    jump: shift,
    async remove() {
      await pool.end()
      await leave()
    },
  }
}
