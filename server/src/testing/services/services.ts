import { mkdtempSync, rmSync } from 'node:fs'
import { isIP } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { sleep } from '@ichido/sdk/world'
import { freshDatabase } from '../../../../scripts/testing/services.ts'
import { EmbeddedBus } from '../../bus/embedded.ts'
import type { Courier } from '../../courier/port.ts'
import { realWorld } from '../../node/world.ts'
import { DEFAULT_LIMITS, type Deps } from '../../services/deps.ts'
import { createServices, type Services } from '../../services/index.ts'
import { silentMeter } from '../../services/system/meter.ts'
import { openPostgres } from '../../store/engines/postgres/postgres.ts'
import { openSqlite } from '../../store/engines/sqlite/sqlite.ts'
import type { Store } from '../../store/port.ts'

export const ENGINES = ['sqlite', 'postgres'] as const
export type Engine = (typeof ENGINES)[number]

/** Knows addresses and no names, and sends nothing. */
const stayingHome: Courier = {
  async resolve(host) {
    if (isIP(host) === 0) throw Object.assign(new Error(`There is no ${host}`), { code: 'ENOTFOUND' })
    return [host]
  },
  post: () => Promise.reject(new Error('Nothing is sent')),
}

export interface TestServices {
  services: Services
  /** Closes the store and deletes its data. */
  close(): Promise<void>
}

/** Services on their own empty store: a SQLite file in a new folder, or a new PostgreSQL database. */
export async function testServices(
  engine: Engine,
  changes: Partial<Omit<Deps, 'store'>> = {},
  opened?: Opened,
): Promise<TestServices> {
  const world = changes.world ?? realWorld
  const { store, remove } = opened ?? (await (engine === 'sqlite' ? onSqlite(world) : onPostgres(world)))
  const bus = changes.bus ?? new EmbeddedBus()
  const services = createServices({
    meter: silentMeter,
    limits: DEFAULT_LIMITS,
    courier: stayingHome,
    ...changes,
    world,
    bus,
    store,
  })
  return {
    services,
    async close() {
      await bus.close()
      await store.close()
      await remove()
    },
  }
}

export type Opened = { store: Store; remove: () => Promise<void> }

async function onSqlite(world: Deps['world']): Promise<Opened> {
  const dataDir = mkdtempSync(join(tmpdir(), 'ichido-store-'))
  const store = openSqlite({ dataDir, now: () => world.now() })
  return { store, remove: async () => rmSync(dataDir, { recursive: true }) }
}

async function onPostgres(world: Deps['world']): Promise<Opened> {
  const { url, leave } = await freshDatabase()
  const store = await openPostgres({
    url,
    now: () => world.now(),
    monotonic: () => world.monotonic(),
    sleep: (ms) => sleep(world, ms),
  })
  return { store, remove: leave }
}
