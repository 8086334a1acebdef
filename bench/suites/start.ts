import { enter } from '../contest.ts'
import { serve } from '../ichido/server-process.ts'
import type { Comparison } from '../report.ts'
import type { Stage } from '../stage.ts'

const EVERY_MS = 20

/** From a submit until its handler begins, at 50 jobs per second: Ichido over HTTP both ways, and the peers directly. */
export async function start({ size, packages, database, redis, say }: Stage): Promise<Comparison[]> {
  const server = await serve(await database('start_http'))
  const entrants = {
    http: await enter({ name: 'ichido-http', url: server.url, packages }),
    bull: await enter({ name: 'bullmq', url: await redis(), packages }),
    graphile: await enter({ name: 'graphile-worker', url: await database('start_graphile'), packages }),
  }
  try {
    say(
      `from submit to handler, ${1000 / EVERY_MS} jobs a second: ${Object.values(entrants)
        .map(({ name }) => name)
        .join(', ')}`,
    )
    const order = { calls: size.calls, everyMs: EVERY_MS }
    for (const entrant of Object.values(entrants)) await entrant.starts({ ...order, calls: 50 })
    const http = await entrants.http.starts(order)
    const bull = await entrants.bull.starts(order)
    const graphile = await entrants.graphile.starts(order)
    const what = 'from submit to handler, over HTTP, p50'
    return [
      { what, unit: 'ms', ours: http, against: 'BullMQ, AOF always', theirs: bull, target: { most: 2 } },
      { what, unit: 'ms', ours: http, against: 'graphile-worker', theirs: graphile, target: null },
    ]
  } finally {
    for (const entrant of Object.values(entrants)) await entrant.close()
    await server.stop()
  }
}
