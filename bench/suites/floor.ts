import { enter } from '../contest.ts'
import { interleave } from '../measure.ts'
import type { Comparison } from '../report.ts'
import type { Stage } from '../stage.ts'

const BATCH = 1_000
const CALLERS = 2

/** What PostgreSQL alone takes for the rows of a bulk call, beside the peer whose bulk call is fastest. Told, not judged. */
export async function floor({ size, packages, database, say }: Stage): Promise<Comparison[]> {
  const ours = await enter({ name: 'floor', url: await database('floor_ours'), packages })
  const peer = await enter({ name: 'graphile-worker', url: await database('floor_graphile'), packages })
  try {
    say(`the rows alone, ${BATCH} jobs a statement: ${ours.name}, ${peer.name}`)
    const found: Comparison[] = []
    for (const keyed of [false, true]) {
      const round = { callers: CALLERS, durationMs: size.roundMs, batch: BATCH, keyed }
      for (const entrant of [ours, peer]) await entrant.run(round)
      const rates = await interleave(size.rounds, { ours: () => ours.run(round), peer: () => peer.run(round) })
      found.push({
        what: `our rows alone, ${BATCH.toLocaleString('en-US')} a statement, ${keyed ? 'with keys' : 'no keys'}`,
        unit: '/s',
        ours: rates.ours,
        against: 'graphile-worker addJobs()',
        theirs: rates.peer,
        target: null,
      })
    }
    return found
  } finally {
    await ours.close()
    await peer.close()
  }
}
