import { compare, type Found } from '../contest/compare.ts'
import { inTurns, labelsOf, type Name, PEERS, withField } from '../contest/field.ts'
import { quantile } from '../measure.ts'
import type { Comparison } from '../report/comparison.ts'
import type { Stage } from '../stage.ts'

/** The users of the library. Over HTTP each user would need a token. */
const NAMES: readonly Name[] = [...PEERS, 'ours', 'sqlite']
const EVERY_MS = 20
const HANDLER_MS = 10
const CALLS = 50
const NO_USERS = 'has no fair share for users'
const NOTES = Object.fromEntries(PEERS.map((peer) => [peer, NO_USERS]))

/** One user has thousands of jobs in the queue. Each of 50 others submits one. How long do these wait, with 10 handlers? */
export function noisy(stage: Stage): Promise<Comparison[]> {
  const { size, say } = stage
  return withField(stage, 'noisy', NAMES, async (field) => {
    say(`one noisy user against many: ${labelsOf(NAMES)}`)
    const order = {
      calls: Math.min(CALLS, size.calls),
      everyMs: EVERY_MS,
      pace: 'narrow',
      handlerMs: HANDLER_MS,
      tells: false,
      long: 0,
    } as const
    // Ten handlers take two seconds or longer for these.
    const backlog = Math.ceil(size.drained / 5)
    const quiet = await inTurns(size, field, (entrant) => entrant.paced({ ...order, backlog: 0 }))
    const loud = await inTurns(size, field, (entrant) => entrant.paced({ ...order, backlog }))
    return [0.5, 0.99].flatMap((q) => {
      const of = (found: typeof quiet): Found =>
        Object.fromEntries(
          Object.entries(found).map(([name, rounds]) => [name, rounds.map((r) => quantile(r.startsMs, q))]),
        )
      const what = `wait beside a user with ${backlog.toLocaleString('en-US')} jobs, p${q * 100}`
      const alone = (name: 'ours' | 'sqlite', place: string): Comparison => ({
        what: `${what}, in process${place}`,
        unit: 'ms',
        ours: of(loud)[name] ?? [],
        against: 'limit: without that user',
        rival: 'limit',
        theirs: of(quiet)[name] ?? [],
        target: null,
      })
      return [
        ...compare({ what, unit: 'ms', found: of(loud), notes: NOTES }),
        alone('ours', ''),
        alone('sqlite', ', SQLite'),
      ]
    })
  })
}
