import { type ServerProcess, serve } from '../ichido/server-process.ts'
import { interleave } from '../measure.ts'
import type { Stage } from '../stage.ts'
import type { Round, Settings } from './contestant.ts'
import type { Entrant } from './entrant.ts'

interface Form {
  program: Settings['program']
  store: 'postgres' | 'sqlite' | 'redis'
  /** The name in the report. */
  label: string
  /** A feature of Ichido that it lacks in every workload. */
  lacks?: string
}

export const OURS = ['ours', 'http'] as const
export const OURS_SQLITE = ['sqlite', 'sqliteHttp'] as const
export const LIMITS = ['floor', 'sqliteFloor'] as const
export const PEERS = ['boss', 'graphile', 'bull', 'bee'] as const
export type Name = (typeof OURS | typeof OURS_SQLITE | typeof LIMITS | typeof PEERS)[number]
export const NO_LIMITS: readonly Name[] = [...PEERS, ...OURS, ...OURS_SQLITE]
export const EVERYONE: readonly Name[] = [...NO_LIMITS, ...LIMITS]

/** Ichido in its four forms, the limit on each engine, and the peers. */
export const FORMS: Readonly<Record<Name, Form>> = {
  http: { program: 'ichido-http', store: 'postgres', label: 'Ichido over HTTP' },
  ours: { program: 'ichido', store: 'postgres', label: 'Ichido in process' },
  sqliteHttp: { program: 'ichido-http', store: 'sqlite', label: 'Ichido over HTTP, SQLite' },
  sqlite: { program: 'ichido', store: 'sqlite', label: 'Ichido in process, SQLite' },
  floor: { program: 'floor', store: 'postgres', label: 'limit: our rows alone, PostgreSQL' },
  sqliteFloor: { program: 'floor', store: 'sqlite', label: 'limit: our rows alone, SQLite' },
  boss: { program: 'pg-boss', store: 'postgres', label: 'pg-boss' },
  graphile: { program: 'graphile-worker', store: 'postgres', label: 'graphile-worker', lacks: 'removes ended jobs' },
  bull: { program: 'bullmq', store: 'redis', label: 'BullMQ' },
  bee: { program: 'bee-queue', store: 'redis', label: 'bee-queue', lacks: 'keeps no history' },
}

export type Field = Partial<Record<Name, Entrant>>

/** Opens contestants, each on an empty store of its own, and closes them after `use`. `suite` names the stores. */
export async function withField<T>(
  stage: Stage,
  suite: string,
  names: readonly Name[],
  use: (field: Field, urls: Partial<Record<Name, string>>) => Promise<T>,
): Promise<T> {
  const field: Field = {}
  const urls: Partial<Record<Name, string>> = {}
  const servers: ServerProcess[] = []
  try {
    for (const name of names.filter((each) => !stage.absent.has(each))) {
      const { program } = FORMS[name]
      let url = await storeFor(stage, suite, name)
      if (program === 'ichido-http') {
        const server = await serve(url, {}, stage.program)
        servers.push(server)
        url = server.url
      }
      urls[name] = url
      field[name] = await stage.enter({ program, url, packages: stage.packages })
    }
    return await use(field, urls)
  } finally {
    for (const entrant of Object.values(field)) await entrant.close()
    for (const server of servers) await server.stop()
  }
}

export async function storeFor(stage: Stage, suite: string, name: Name): Promise<string> {
  const { store } = FORMS[name]
  if (store === 'redis') return `${await stage.redis()}#${suite}`
  return store === 'sqlite' ? stage.folder(`${suite}-${name}`) : stage.database(`${suite}_${name.toLowerCase()}`)
}

/** Lets all contestants run the same measure in turns. Resolves with the values of each. */
export async function inTurns<Value>(
  rounds: { warmUps: number; rounds: number },
  field: Field,
  measure: (entrant: Entrant, name: Name) => Promise<Value>,
): Promise<Partial<Record<Name, Value[]>>> {
  const entries = Object.entries(field) as [Name, Entrant][]
  const measures = entries.map(([name, entrant]) => [name, () => measure(entrant, name)] as const)
  return interleave<Name, Value>(rounds, Object.fromEntries(measures) as Record<Name, () => Promise<Value>>)
}

export const labelsOf = (names: readonly Name[]): string => names.map((name) => FORMS[name].label).join(', ')

/** A round of single submissions with keys. A limit writes in one statement what so many callers submit at the same time. */
export function submissions(name: string, callers: number, durationMs: number): Round {
  const isLimit = LIMITS.some((limit) => limit === name)
  return { ...(isLimit ? { callers: 1, batch: callers } : { callers, batch: 1 }), durationMs, keyed: true }
}

/** A part of a field. */
export function only(field: Field, names: readonly Name[]): Field {
  return Object.fromEntries(Object.entries(field).filter(([name]) => names.some((each) => each === name)))
}
