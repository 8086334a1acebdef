import type { SystemShape } from '@ichido/sdk/protocol'
import { findStoreFacts } from '../../store/system/leadership.ts'
import { iso, isoOrNull } from '../answers.ts'
import type { Deps } from '../deps.ts'

/** A loop of this node, as people see it. */
export interface LoopStatus {
  name: string
  intervalMs: number
  late: boolean
  /** When its last successful tick ended; null before the first. */
  lastEndedAtMs: number | null
  lastTookMs: number | null
}

/** The state of this node's election and loops. */
export interface NodeView {
  /** The epoch in which this node leads; null while it does not lead. */
  epoch: number | null
  leadsSinceMs: number | null
  loops: readonly LoopStatus[]
}

/** Nodes do not record themselves in the store, so an answer is about one node, its store and the leadership. */
export interface SystemService {
  /** The node names its loops when it starts them. */
  watch(view: () => NodeView): void
  read(): Promise<Omit<SystemShape, 'node'> & { node: Pick<SystemShape['node'], 'started_at'> }>
}

type SystemDeps = Pick<Deps, 'world' | 'store' | 'relay' | 'disks'>

export function createSystemService({ world, store, relay, disks }: SystemDeps): SystemService {
  const startedAtMs = world.now()
  let view: () => NodeView = () => ({ epoch: null, leadsSinceMs: null, loops: [] })

  async function redis(): Promise<SystemShape['redis']> {
    if (relay === undefined) return null
    const found = await relay.look()
    return found === 'away' || found === 'full' ? found : 'ok'
  }

  return {
    watch(given) {
      view = given
    },
    async read() {
      const [health, facts, atRedis, used] = await Promise.all([
        store.health(),
        store.read(findStoreFacts()),
        redis(),
        disks?.() ?? [],
      ])
      const { epoch, leadsSinceMs, loops } = view()
      // A former leader may not have noticed yet that another epoch has begun.
      const leads = facts.present && epoch === facts.epoch
      return {
        node: { started_at: iso(startedAtMs) },
        leader: {
          epoch: facts.epoch,
          present: facts.present,
          this_node: leads,
          since: isoOrNull(leads ? leadsSinceMs : null),
        },
        loops: loops.map(({ name, intervalMs, late, lastEndedAtMs, lastTookMs }) => ({
          name,
          interval_seconds: intervalMs / 1_000,
          last_run_at: isoOrNull(lastEndedAtMs),
          last_run_ms: lastTookMs === null ? null : Math.round(lastTookMs * 10) / 10,
          late,
        })),
        store: {
          engine: health.engine,
          engine_version: facts.version,
          location: health.location,
          schema_version: health.schemaVersion,
          bytes: facts.bytes,
          durable: health.durable,
          durability: { ...health.durability },
          pooled: health.pooled,
          clock_skew_ms: health.clockSkewMs,
        },
        redis: atRedis,
        disks: used.map(({ folder, freeRatio }) => ({
          folder,
          free_percent: Math.round(freeRatio * 1_000) / 10,
        })),
      }
    },
  }
}
