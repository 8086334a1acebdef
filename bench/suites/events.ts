import { startRedis } from '../../scripts/services/redis.ts'
import { fanOut } from '../events/fan-out.ts'
import { publishing } from '../events/publish.ts'
import { reach } from '../events/reach.ts'
import { relaying } from '../events/relay.ts'
import type { Comparison } from '../report/comparison.ts'
import type { Stage } from '../stage.ts'

/** The cost of the event bus beyond its necessary minimum. */
export async function events(stage: Stage): Promise<Comparison[]> {
  // The store is durable, so Redis need not be: it runs with its default, snapshots.
  const redis = await startRedis({ settings: { save: '3600 1 300 100 60 10000' } })
  try {
    const rows = [await publishing(stage, redis.url), await reach(stage, redis.url)]
    for (const subscribers of stage.size.subscribers) rows.push(await fanOut(stage, subscribers))
    return [...rows, await relaying(stage, redis.url)]
  } finally {
    await redis.stop()
  }
}
