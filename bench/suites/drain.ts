import { setTimeout as sleep } from 'node:timers/promises'
import { compare, type Found } from '../contest/compare.ts'
import { HANDLERS } from '../contest/contestant.ts'
import { drain as workOff } from '../contest/drain.ts'
import type { Entrant } from '../contest/entrant.ts'
import {
  EVERYONE,
  type Field,
  FORMS,
  inTurns,
  labelsOf,
  type Name,
  NO_LIMITS,
  only,
  withField,
} from '../contest/field.ts'
import { flow } from '../measure.ts'
import type { Comparison } from '../report/comparison.ts'
import type { Stage } from '../stage.ts'

const TARGETS = {
  http: { best: { least: 1 }, bull: { least: 2 } },
  ours: { best: { least: 1.2 }, bull: { least: 3 } },
}
const HANDLER_MS = [1, 10]
/** A folder of SQLite belongs to one process. */
const ALONE: readonly Name[] = ['sqlite']

/** Jobs that wait are worked off: empty ones by one process and by two, and ones that take some milliseconds. */
export async function drain(stage: Stage): Promise<Comparison[]> {
  const what = `work off ${stage.size.drained.toLocaleString('en-US')} jobs`
  return withField(stage, 'drain', EVERYONE, async (field, urls) => {
    const one = await byOne(stage, field)
    const two = await byTwo(stage, field, urls)
    // The limit is the database, not the number of workers.
    const { floor = [], sqliteFloor = [] } = one
    return [
      ...compare({ what, unit: '/s', found: one, targets: TARGETS }),
      ...compare({ what: `${what}, 2 worker processes`, unit: '/s', found: { ...two, floor, sqliteFloor } }),
      ...(await withHandlers(stage, field)),
    ]
  })
}

function byOne({ size, say }: Stage, field: Field): Promise<Found> {
  say(`work off ${size.drained} jobs: ${labelsOf(EVERYONE)}`)
  const load = { jobs: size.drained, pace: 'bulk', handlerMs: 0 } as const
  return inTurns(size, field, (entrant) => workOff([entrant], load))
}

async function byTwo(stage: Stage, field: Field, urls: Partial<Record<Name, string>>): Promise<Found> {
  const { size, say, packages } = stage
  const second: Field = {}
  const names = NO_LIMITS.filter((name) => field[name] !== undefined && !ALONE.includes(name))
  try {
    for (const name of names) {
      const { program } = FORMS[name]
      second[name] = await stage.enter({ program, url: urls[name] ?? '', packages })
    }
    say(`work off ${size.drained} jobs with two processes: ${labelsOf(names)}`)
    const pair = (entrant: Entrant, name: Name) => [entrant, second[name]].filter((each) => each !== undefined)
    const load = { jobs: size.drained, pace: 'bulk', handlerMs: 0 } as const
    return await inTurns(size, only(field, names), (entrant, name) => workOff(pair(entrant, name), load))
  } finally {
    for (const entrant of Object.values(second)) await entrant.close()
  }
}

/** Everyone has 100 handlers. Their limit is a loop of as many timers. */
async function withHandlers({ size, say }: Stage, field: Field): Promise<Comparison[]> {
  const rows: Comparison[] = []
  const jobs = Math.ceil(size.drained / 2)
  const entrants = only(field, NO_LIMITS)
  for (const handlerMs of HANDLER_MS) {
    say(`work off ${jobs} jobs of ${handlerMs} ms: ${labelsOf(NO_LIMITS)}`)
    const found = await inTurns(size, entrants, (entrant) => workOff([entrant], { jobs, pace: 'wide', handlerMs }))
    const { calls, elapsedMs } = await flow({ callers: HANDLERS.wide, durationMs: size.roundMs }, () =>
      sleep(handlerMs),
    )
    const limit = [(calls * 1000) / elapsedMs]
    const what = `work off jobs of ${handlerMs} ms, ${HANDLERS.wide} handlers`
    const timers = { floor: limit, sqliteFloor: limit }
    const compared = compare({ what, unit: '/s', found: { ...found, ...timers } })
    rows.push(...compared.map((row) => (row.rival === 'limit' ? { ...row, against: 'limit: timers alone' } : row)))
  }
  return rows
}
