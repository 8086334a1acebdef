import type { World } from '@ichido/sdk/world'
import type { Bus } from '../bus/port.ts'
import type { NodeRole } from '../core/node/node.ts'
import type { Deps } from '../services/deps.ts'
import type { Services } from '../services/index.ts'
import type { Meter } from '../services/system/meter.ts'
import type { Store } from '../store/port.ts'

/** Redis beside the store. The library works without it, so only the server brings the adapters. */
export interface Redis {
  /** Rejects if this node would not find the streams of the other nodes. */
  prepare(world: World, store: Store): Promise<(options: RedisOptions) => RedisAdapters>
}

export interface RedisOptions {
  /** The bus of the store. */
  bus: Bus
  world: World
  roles: ReadonlySet<NodeRole>
  meter: Meter
  ttls(): { stateMs: number; markMs: number }
  ingest: Services['foreignEvents']['ingest']
  onTrouble(where: string, error: unknown): void
}

/** The adapters that use Redis. Without them the store does everything. */
export interface RedisAdapters {
  relay: NonNullable<Deps['relay']>
  /** Replaces the bus of the options. */
  bus: Bus
  /** Call it before closing the bus. */
  close(): Promise<void>
}
