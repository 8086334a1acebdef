import { type Entrant, enter } from '../contest.ts'
import { serve } from '../ichido/server-process.ts'
import { interleave, median } from '../measure.ts'
import type { Comparison } from '../report.ts'
import type { Stage } from '../stage.ts'

const JOBS = 20_000

/** 20,000 empty jobs, worked off by one process each: Ichido in process and over HTTP, and the peers directly. */
export async function drain({ size, packages, database, redis, say }: Stage): Promise<Comparison[]> {
  const server = await serve(await database('drain_http'))
  const entrants = {
    boss: await enter({ name: 'pg-boss', url: await database('drain_boss'), packages }),
    ours: await enter({ name: 'ichido', url: await database('drain_ours'), packages }),
    graphile: await enter({ name: 'graphile-worker', url: await database('drain_graphile'), packages }),
    http: await enter({ name: 'ichido-http', url: server.url, packages }),
    bull: await enter({ name: 'bullmq', url: await redis(), packages }),
  }
  try {
    say(
      `work off ${JOBS.toLocaleString('en-US')} jobs: ${Object.values(entrants)
        .map(({ name }) => name)
        .join(', ')}`,
    )
    const workOff = (entrant: Entrant) => () => entrant.run({ jobs: JOBS })
    const { boss, ours, graphile, http, bull } = await interleave(size, {
      boss: workOff(entrants.boss),
      ours: workOff(entrants.ours),
      graphile: workOff(entrants.graphile),
      http: workOff(entrants.http),
      bull: workOff(entrants.bull),
    })
    const peers: [string, number[]][] = [
      ['pg-boss work()', boss],
      ['graphile-worker, local queue', graphile],
      ['BullMQ, AOF always', bull],
    ]
    const best = Math.max(...peers.map(([, values]) => median(values)))
    const compare = (where: string, found: number[], least: number) =>
      peers.map(([against, theirs]) => ({
        what: `work off ${JOBS.toLocaleString('en-US')} jobs, ${where}`,
        unit: '/s' as const,
        ours: found,
        against,
        theirs,
        target: median(theirs) === best ? { least } : null,
      }))
    return [...compare('over HTTP', http, 0.9), ...compare('in process', ours, 1.2)]
  } finally {
    for (const entrant of Object.values(entrants)) await entrant.close()
    await server.stop()
  }
}
