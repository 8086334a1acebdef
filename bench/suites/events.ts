import { startRedis } from '../../scripts/services/redis.ts'
import { fanOut } from '../events/fan-out.ts'
import { publishing } from '../events/publish.ts'
import { reach } from '../events/reach.ts'
import { relaying } from '../events/relay.ts'
import type { Comparison } from '../report.ts'
import type { Stage } from '../stage.ts'

/** What the event bus costs on top of what it cannot do without. */
export async function events(stage: Stage): Promise<Comparison[]> {
  // The store is what is durable: Redis need not be, and people run it like this.
  const redis = await startRedis({ appendfsync: 'everysec' })
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
