import { compare, type Found } from '../contest/compare.ts'
import { drain } from '../contest/drain.ts'
import type { Entrant } from '../contest/entrant.ts'
import { type Field, inTurns, LIMITS, labelsOf, type Name, PEERS, submissions, withField } from '../contest/field.ts'
import type { Comparison } from '../report/comparison.ts'
import type { Size, Stage } from '../stage.ts'
import { power } from './power.ts'

const OURS: readonly Name[] = ['ours', 'sqlite']
const NAMES: readonly Name[] = [...PEERS, ...OURS, ...LIMITS]
const CALLERS = 64
const TARGET = { least: 1 / 1.3 }

/** Submits and works off while a million jobs are ready, beside the peers with as many, and Ichido with few. */
export function ready(stage: Stage): Promise<Comparison[]> {
  const { size, say } = stage
  return withField(stage, 'ready', NAMES, (many) =>
    withField(stage, 'ready_few', OURS, async (few) => {
      say(`submit and work off, ${power(size.ready)} jobs ready: ${labelsOf(NAMES)}`)
      for (const entrant of Object.values(many)) await entrant.fill(size.ready)
      for (const entrant of Object.values(few)) await entrant.fill(size.few)
      const [withMany, withFew] = [await measure(size, many), await measure(size, few)]
      return (['submit', 'drain'] as const).flatMap((verb) => {
        const what = `${verb === 'submit' ? `submit with key, ${CALLERS} callers` : 'work off'}, ${power(size.ready)} ready`
        const few = { against: `${power(size.few)} ready`, rival: 'self', target: TARGET, unit: '/s' } as const
        const beside = (name: 'ours' | 'sqlite', place: string): Comparison => ({
          ...few,
          what: `${what}, in process${place}`,
          ours: withMany[verb][name] ?? [],
          theirs: withFew[verb][name] ?? [],
        })
        const all = compare({ what, unit: '/s', found: withMany[verb] })
        return [...all, beside('ours', ''), beside('sqlite', ', SQLite')]
      })
    }),
  )
}

/** A round works off the jobs that it has submitted, so the number of ready jobs stays the same. */
async function measure(size: Size, field: Field): Promise<{ submit: Found; drain: Found }> {
  const both = async (entrant: Entrant, name: Name) => {
    const submit = await entrant.run(submissions(name, CALLERS, size.roundMs))
    const jobs = Math.ceil((submit * size.roundMs) / 1000)
    return { submit, drain: await drain([entrant], { jobs, pace: 'bulk', handlerMs: 0, filled: true }) }
  }
  const found = await inTurns(size, field, both)
  const of = (verb: 'submit' | 'drain'): Found =>
    Object.fromEntries(Object.entries(found).map(([name, rounds]) => [name, rounds.map((round) => round[verb])]))
  return { submit: of('submit'), drain: of('drain') }
}
