import { enter } from '../contest.ts'
import { interleave } from '../measure.ts'
import type { Comparison } from '../report.ts'
import type { Stage } from '../stage.ts'

const BATCH = 1_000
const CALLERS = 2
const DRAINED = 20_000

/** The time that PostgreSQL alone needs for our rows, beside the fastest peer. This is only reported. */
export async function floor(stage: Stage): Promise<Comparison[]> {
  return [...(await bulkFloor(stage)), ...(await drainFloor(stage))]
}

async function bulkFloor({ size, say, ...stage }: Stage): Promise<Comparison[]> {
  const { ours, peer, close } = await enterBoth(stage, 'bulk')
  try {
    say(`the rows alone, ${BATCH} jobs a statement: ${ours.name}, ${peer.name}`)
    const found: Comparison[] = []
    for (const keyed of [false, true]) {
      const round = { callers: CALLERS, durationMs: size.roundMs, batch: BATCH, keyed }
      const rates = await interleave(size, { ours: () => ours.run(round), peer: () => peer.run(round) })
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
    await close()
  }
}

async function drainFloor({ size, say, ...stage }: Stage): Promise<Comparison[]> {
  const { ours, peer, close } = await enterBoth(stage, 'drain')
  try {
    say(`the moves alone of ${DRAINED.toLocaleString('en-US')} runs: ${ours.name}, ${peer.name}`)
    const drain = { jobs: DRAINED }
    const rates = await interleave(size, { ours: () => ours.run(drain), peer: () => peer.run(drain) })
    const what = `our moves alone, ${DRAINED.toLocaleString('en-US')} runs, a lease and a finish each`
    const against = 'graphile-worker, local queue'
    return [{ what, unit: '/s', ours: rates.ours, against, theirs: rates.peer, target: null }]
  } finally {
    await close()
  }
}

async function enterBoth({ packages, database }: Pick<Stage, 'packages' | 'database'>, name: string) {
  const ours = await enter({ name: 'floor', url: await database(`floor_${name}_ours`), packages })
  const peer = await enter({ name: 'graphile-worker', url: await database(`floor_${name}_graphile`), packages })
  return { ours, peer, close: () => Promise.all([ours.close(), peer.close()]) }
}
