import type { World } from '@ichido/sdk/world'
import type { Bus } from '../bus/port.ts'
import { DEFAULT_CONTINUATION_SECONDS } from '../core/job.ts'
import type { Meter } from '../services/meter.ts'
import { reapRuns } from '../store/commands/reap-runs.ts'
import type { Store } from '../store/port.ts'

const BATCH_MAX = 200

/** Hands on the work of workers that are gone. */
export function createReap({
  world,
  store,
  bus,
  meter,
}: {
  world: World
  store: Store
  bus: Bus
  meter: Meter
}): () => Promise<number | null> {
  return async () => {
    const spares = Array.from({ length: BATCH_MAX }, () => ({ nextRunId: world.uuid(), random: world.random() }))
    const reaped = await store.write(reapRuns({ continuationMs: DEFAULT_CONTINUATION_SECONDS * 1000, spares }))
    for (const { state } of reaped.ended) meter.ended(state)
    bus.wake([
      ...reaped.queues.map((queue) => `queue:${queue}` as const),
      ...reaped.ended.map(({ jobId }) => `job:${jobId}` as const),
    ])
    return reaped.ended.length === BATCH_MAX ? 0 : null
  }
}
