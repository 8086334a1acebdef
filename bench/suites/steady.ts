import { compare } from '../contest/compare.ts'
import type { Latencies } from '../contest/contestant.ts'
import { EVERYONE, inTurns, labelsOf, type Name, withField } from '../contest/field.ts'
import { quantile } from '../measure.ts'
import type { Comparison } from '../report/comparison.ts'
import type { Stage } from '../stage.ts'

const EVERY_MS = 5
const HANDLER_MS = 20
/** Few enough that they leave handlers to the other jobs, for every contestant. */
const LONG_JOBS = 5
const NO_EVENTS = 'publishes no progress'
const NOTES = { boss: NO_EVENTS, graphile: NO_EVENTS, bee: 'does not store progress' }

const PARTS: Record<string, keyof Latencies> = {
  submission: 'submitsMs',
  'from submission to handler': 'startsMs',
  'publishing progress': 'tellsMs',
}

/**
 * A steady mixed load: 200 jobs a second with a key, whose handlers publish progress and take 20 ms, beside long jobs, which
 * heartbeats keep alive. All contestants get it one after the other, for a minute each.
 */
export function steady(stage: Stage): Promise<Comparison[]> {
  const { size, say } = stage
  return withField(stage, 'steady', EVERYONE, async (field) => {
    say(`steady load, ${1000 / EVERY_MS} jobs a second: ${labelsOf(EVERYONE)}`)
    const calls = Math.ceil(size.steadyMs / EVERY_MS)
    const load = { everyMs: EVERY_MS, pace: 'prompt', handlerMs: HANDLER_MS, tells: true, backlog: 0 } as const
    const found = await inTurns({ warmUps: 0, rounds: 1 }, field, (entrant) =>
      entrant.paced({ ...load, calls, long: LONG_JOBS }),
    )
    return Object.entries(PARTS).flatMap(([part, of]) =>
      [0.5, 0.99].flatMap((q) => {
        const values = (Object.entries(found) as [Name, Latencies[]][])
          .map(([name, [round]]) => [name, round?.[of] ?? []] as const)
          .filter(([, each]) => each.length > 0)
          .map(([name, each]) => [name, [quantile(each, q)]])
        const what = `steady load: ${part}, p${q * 100}`
        return compare({ what, unit: 'ms', found: Object.fromEntries(values), notes: NOTES })
      }),
    )
  })
}
