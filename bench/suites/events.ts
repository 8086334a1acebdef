import { startRedis } from '../../scripts/services/redis.ts'
import { fanOut } from '../events/fan-out.ts'
import { publishing } from '../events/publish.ts'
import { reach } from '../events/reach.ts'
import { relaying } from '../events/relay.ts'
import type { Comparison } from '../report.ts'
import type { Stage } from '../stage.ts'

/** What the event bus costs on top of what it cannot do without. */
export async function events(stage: Stage): Promise<Comparison[]> {
  // The store is what is durable, so Redis need not be: it runs as it comes, with snapshots.
  const redis = await startRedis({ settings: { save: '3600 1 300 100 60 10000' } })
  try {
    return [
      await publishing(stage, redis.url),
      await reach(stage, redis.url),
      await fanOut(stage, 1_000),
      await fanOut(stage, 5_000),
      await relaying(stage, redis.url),
    ]
  } finally {
    await redis.stop()
  }
}
