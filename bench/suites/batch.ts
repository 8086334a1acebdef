import { enter } from '../contest.ts'
import { serve } from '../ichido/server-process.ts'
import { interleave, median } from '../measure.ts'
import type { Comparison } from '../report.ts'
import type { Stage } from '../stage.ts'

const BATCH = 1_000
const CALLERS = 2

/** 1,000 jobs a call, two calls under way: Ichido over HTTP with a key for each job, the peers' bulk calls without. */
export async function batch({ size, packages, database, redis, say }: Stage): Promise<Comparison[]> {
  const server = await serve(await database('batch_http'))
  const entrants = {
    ours: await enter({ name: 'ichido-http', url: server.url, packages }),
    boss: await enter({ name: 'pg-boss', url: await database('batch_boss'), packages }),
    graphile: await enter({ name: 'graphile-worker', url: await database('batch_graphile'), packages }),
    bull: await enter({ name: 'bullmq', url: await redis(), packages }),
  }
  try {
    say(
      `batches of ${BATCH}: ${Object.values(entrants)
        .map(({ name }) => name)
        .join(', ')}`,
    )
    const round = { callers: CALLERS, durationMs: size.roundMs, batch: BATCH }
    for (const entrant of Object.values(entrants)) await entrant.run(round)
    const found = await interleave(size.rounds, {
      boss: () => entrants.boss.run(round),
      ours: () => entrants.ours.run(round),
      graphile: () => entrants.graphile.run(round),
      bull: () => entrants.bull.run(round),
    })
    const peers: [string, number[]][] = [
      ['pg-boss insert()', found.boss],
      ['graphile-worker addJobs()', found.graphile],
      ['BullMQ addBulk(), AOF always', found.bull],
    ]
    const best = Math.max(...peers.map(([, values]) => median(values)))
    return peers.map(([against, theirs]) => ({
      what: `batch of ${BATCH.toLocaleString('en-US')} over HTTP`,
      unit: '/s',
      ours: found.ours,
      against,
      theirs,
      target: median(theirs) === best ? { least: 0.8 } : null,
    }))
  } finally {
    for (const entrant of Object.values(entrants)) await entrant.close()
    await server.stop()
  }
}
