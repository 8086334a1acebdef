import { enter } from '../contest.ts'
import { serve } from '../ichido/server-process.ts'
import { interleave } from '../measure.ts'
import type { Comparison } from '../report.ts'
import type { Stage } from '../stage.ts'

const CALLERS = 64

/** Submits with a key, one at a time, by 64 callers: Ichido in process and over HTTP, pg-boss, BullMQ. */
export async function submit({ size, packages, database, redis, say }: Stage): Promise<Comparison[]> {
  const server = await serve(await database('submit_http'))
  const entrants = {
    boss: await enter({ name: 'pg-boss', url: await database('submit_boss'), packages }),
    ours: await enter({ name: 'ichido', url: await database('submit_ours'), packages }),
    http: await enter({ name: 'ichido-http', url: server.url, packages }),
    bull: await enter({ name: 'bullmq', url: await redis(), packages }),
  }
  try {
    say(
      `submit with a key, ${CALLERS} callers: ${Object.values(entrants)
        .map(({ name }) => name)
        .join(', ')}`,
    )
    const round = { callers: CALLERS, durationMs: size.roundMs, batch: 1, keyed: true }
    const found = await interleave(size, {
      boss: () => entrants.boss.run(round),
      ours: () => entrants.ours.run(round),
      http: () => entrants.http.run(round),
      bull: () => entrants.bull.run(round),
    })
    const what = `submit with key, ${CALLERS} callers`
    const [boss, bull] = ['pg-boss send()', 'BullMQ add(), AOF always']
    return [
      {
        what: `${what}, in process`,
        unit: '/s',
        ours: found.ours,
        against: boss,
        theirs: found.boss,
        target: { least: 8 },
      },
      {
        what: `${what}, over HTTP`,
        unit: '/s',
        ours: found.http,
        against: boss,
        theirs: found.boss,
        target: { least: 4 },
      },
      {
        what: `${what}, in process`,
        unit: '/s',
        ours: found.ours,
        against: bull,
        theirs: found.bull,
        target: { least: 1 },
      },
    ]
  } finally {
    for (const entrant of Object.values(entrants)) await entrant.close()
    await server.stop()
  }
}
