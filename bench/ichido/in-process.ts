import pg from 'pg'
import { defineKind, open } from '../../server/src/library/index.ts'
import {
  type Contestant,
  HANDLERS,
  keyOf,
  numberIn,
  type Pace,
  payload,
  type Settings,
  storageOf,
} from '../contest/contestant.ts'

/** The number of runs that a worker holds. */
export const CONCURRENCY: Record<Pace, number> = { bulk: 1_000, ...HANDLERS }
export const welcome = defineKind('welcome')

/** Ichido as a library: on the application's own pool, or with SQLite in a folder. */
export async function openInProcess({ url }: Settings): Promise<Contestant> {
  const storage = storageOf(url)
  const pool = 'databaseUrl' in storage ? new pg.Pool({ connectionString: url }) : null
  const openStore = () => open(pool === null ? storage : { pool })
  let ichido = await openStore()
  async function submit(n: number, keyed: boolean, user?: string): Promise<void> {
    const options = { ...(keyed ? { key: keyOf(n) } : {}), ...(user === undefined ? {} : { user }) }
    const job = await ichido.submit('welcome', payload(n), options)
    if (job.replayed) throw new Error(`The key of ${n} was used before`)
  }
  return {
    submit: (n, user) => submit(n, true, user),
    async submitMany(first, count, keyed, user) {
      const numbers = Array.from({ length: count }, (_, i) => first + i)
      // A batch belongs to one user, the application itself.
      if (user !== undefined) return void (await Promise.all(numbers.map((n) => submit(n, keyed, user))))
      const item = (n: number) => ({ kind: 'welcome', payload: payload(n), ...(keyed ? { key: keyOf(n) } : {}) })
      for (const outcome of await ichido.batch(numbers.map(item))) {
        if (outcome.status === 'rejected') throw outcome.reason
      }
    },
    async work(pace, handle) {
      const concurrency = CONCURRENCY[pace]
      ichido.handle(welcome, (run) => handle(numberIn(run.payload), run.progress), { concurrency })
      // A handler stays as long as its library is open.
      return async () => {
        await ichido.close()
        ichido = await openStore()
      }
    },
    async close() {
      await ichido.close()
      await pool?.end()
    },
  }
}
