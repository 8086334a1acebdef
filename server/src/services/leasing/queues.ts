import type { Page, QueueShape } from '@ichido/sdk/protocol'
import type { Caller } from '../../core/limits/roles.ts'
import {
  findQueue,
  findQueues,
  putQueue,
  type QueueRows,
  type QueueSettings,
  toSettings,
} from '../../store/leasing/queues.ts'
import { isoOrNull, renderPage } from '../answers.ts'
import type { Deps } from '../deps.ts'

export interface QueueService {
  /** An unused queue is empty. */
  get(name: string): Promise<QueueShape>
  /** In the order of names. */
  list(limit: number, after: string | null): Promise<Page<QueueShape>>
  /** Fields that are left out stay. */
  put(caller: Caller, name: string, changes: Partial<QueueSettings>): Promise<QueueShape>
}

export function createQueueService({ world, store, bus }: Deps): QueueService {
  return {
    async get(name) {
      const { settings, counts } = await store.read(findQueue(name))
      return render(name, settings, counts)
    },
    async list(limit, after) {
      return renderPage(await store.read(findQueues(limit, after)), (row) => render(row.name, row, row))
    },
    async put(caller, name, changes) {
      const audit = { id: world.uuid(), actor: caller.userId }
      const { settings, counts } = await store.write(putQueue(name, changes, audit))
      // The queue may be resumed or have room now.
      bus.wake([`queue:${name}`])
      return render(name, settings, counts)
    },
  }
}

function render(name: string, settings: QueueRows['settings'], counts: QueueRows['counts']): QueueShape {
  const set = toSettings(settings)
  const { oldest_ms: oldestMs } = counts
  return {
    name,
    paused: set.paused,
    paused_at: isoOrNull(settings?.paused_at ?? null),
    max_concurrent: set.maxConcurrent,
    lease_ttl_seconds: set.leaseTtlSeconds,
    continuation_seconds: set.continuationSeconds,
    result_ttl_seconds: set.resultTtlSeconds,
    fatal_error_codes: set.fatalErrorCodes === null ? null : [...set.fatalErrorCodes],
    ready: counts.ready,
    delayed: counts.delayed,
    running: counts.running,
    oldest_ready_seconds: oldestMs === null ? null : Math.max(0, oldestMs / 1000),
  }
}
