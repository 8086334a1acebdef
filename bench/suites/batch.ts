import { type Entrant, enter } from '../contest.ts'
import { serve } from '../ichido/server-process.ts'
import { interleave, median } from '../measure.ts'
import type { Comparison } from '../report.ts'
import type { Size, Stage } from '../stage.ts'

const BATCH = 1_000
const CALLERS = 2

interface Field {
  ours: Entrant
  boss: Entrant
  graphile: Entrant
  bull: Entrant
}

/** 1,000 jobs per call and two concurrent calls: Ichido over HTTP, and the peers' bulk calls; first without keys, then with. */
export async function batch({ size, packages, database, redis, say }: Stage): Promise<Comparison[]> {
  const server = await serve(await database('batch_http'))
  const field: Field = {
    ours: await enter({ name: 'ichido-http', url: server.url, packages }),
    boss: await enter({ name: 'pg-boss', url: await database('batch_boss'), packages }),
    graphile: await enter({ name: 'graphile-worker', url: await database('batch_graphile'), packages }),
    bull: await enter({ name: 'bullmq', url: await redis(), packages }),
  }
  try {
    const names = Object.values(field).map(({ name }) => name)
    say(`batches of ${BATCH}: ${names.join(', ')}`)
    return [...(await compare(field, size, false)), ...(await compare(field, size, true))]
  } finally {
    for (const entrant of Object.values(field)) await entrant.close()
    await server.stop()
  }
}

async function compare(field: Field, size: Size, keyed: boolean): Promise<Comparison[]> {
  const round = { callers: CALLERS, durationMs: size.roundMs, batch: BATCH, keyed }
  const found = await interleave(size, {
    boss: () => field.boss.run(round),
    ours: () => field.ours.run(round),
    graphile: () => field.graphile.run(round),
    bull: () => field.bull.run(round),
  })
  const peers: [string, number[]][] = [
    ['pg-boss insert()', found.boss],
    ['graphile-worker addJobs()', found.graphile],
    ['BullMQ addBulk(), AOF always', found.bull],
  ]
  const best = Math.max(...peers.map(([, values]) => median(values)))
  return peers.map(([against, theirs]) => ({
    what: `batch of ${BATCH.toLocaleString('en-US')} over HTTP, ${keyed ? 'with keys' : 'no keys'}`,
    unit: '/s',
    ours: found.ours,
    against,
    theirs,
    target: median(theirs) === best ? { least: 0.8 } : null,
  }))
}
