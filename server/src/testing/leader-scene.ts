import { FakeWorld } from '../../../scripts/testing/fake-world.ts'
import { EmbeddedBus } from '../bus/embedded.ts'
import type { Bus, Topic } from '../bus/port.ts'
import type { SubmitInput } from '../core/contract/submit.ts'
import { LOCAL_ADMIN } from '../services/access.ts'
import type { Services } from '../services/index.ts'
import { type Meter, silentMeter } from '../services/meter.ts'
import type { Store } from '../store/port.ts'
import { realWorld } from '../world.ts'
import { type Engine, testServices } from './services.ts'
import { sql } from './store.ts'

/** Services without any loop running: the test calls the leader's duties, and lets time pass, as it likes. */
export interface LeaderScene {
  services: Services
  store: Store
  bus: Bus
  meter: Meter
  /** The topics that were woken since the last look. */
  woken(): Topic[]
  /** The states that runs ended in. */
  ended: string[]
  pass(ms: number): Promise<void>
  submit(input?: Partial<SubmitInput>, key?: string): Promise<string>
  /** Forgets everything, for the next test. */
  clear(): Promise<void>
  close(): Promise<void>
}

export async function leaderScene(engine: Engine): Promise<LeaderScene> {
  // PostgreSQL has its own clock: there, what is stored is moved back instead.
  const fake = engine === 'sqlite' ? new FakeWorld() : null
  const woken: Topic[] = []
  const ended: string[] = []
  const bus = new EmbeddedBus()
  const wake = bus.wake.bind(bus)
  bus.wake = (topics) => {
    woken.push(...topics)
    wake(topics)
  }
  const meter = { ...silentMeter, ended: (state: string) => void ended.push(state) }
  const { services, close } = await testServices(engine, { world: fake ?? realWorld, bus, meter })
  const { store } = services.deps
  return {
    services,
    store,
    bus,
    meter,
    ended,
    woken: () => woken.splice(0),
    pass: (ms) => (fake === null ? moveBack(store, ms) : fake.pass(ms)),
    async submit(input = {}, key) {
      const outcome = await services.submission.submit(LOCAL_ADMIN, { kind: 'work', ...input }, { key: key ?? null })
      if (outcome.kind === 'refused') throw new Error(outcome.refusal.message)
      return outcome.jobId
    },
    async clear() {
      for (const table of ['jobs', 'runs', 'events', 'idempotency_keys', 'dead_letters']) {
        await sql(store, `DELETE FROM ichido.${table}`)
      }
      woken.length = 0
      ended.length = 0
    },
    close,
  }
}

async function moveBack(store: Store, ms: number): Promise<void> {
  for (const [table, columns] of [
    ['runs', ['run_at', 'lease_expires_at']],
    ['idempotency_keys', ['expires_at']],
  ] as const) {
    const changes = columns.map((column) => `${column} = ${column} - ${ms}`)
    await sql(store, `UPDATE ichido.${table} SET ${changes.join()}`)
  }
}
