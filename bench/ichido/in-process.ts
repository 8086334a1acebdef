import pg from 'pg'
import { defineKind, open } from '../../server/src/library/index.ts'
import { type Contestant, keyOf, numberIn, type Pace, payload, type Settings } from '../contestant.ts'

/** The number of runs that a worker holds. */
export const CONCURRENCY: Record<Pace, number> = { bulk: 500, prompt: 100 }
export const welcome = defineKind('welcome')

/** Ichido as a library, on the application's own pool. */
export async function openInProcess({ url }: Settings): Promise<Contestant> {
  const pool = new pg.Pool({ connectionString: url })
  const ichido = await open({ pool })
  async function submit(n: number, keyed: boolean): Promise<void> {
    const job = await ichido.submit('welcome', payload(n), keyed ? { key: keyOf(n) } : {})
    if (job.replayed) throw new Error(`The key of ${n} was used before`)
  }
  return {
    submit: (n) => submit(n, true),
    async submitMany(first, count, keyed) {
      await Promise.all(Array.from({ length: count }, (_, i) => submit(first + i, keyed)))
    },
    async work(pace, begins) {
      const worker = await open({ pool })
      worker.handle(welcome, (run) => begins(numberIn(run.payload)), { concurrency: CONCURRENCY[pace] })
      return () => worker.close()
    },
    async close() {
      await ichido.close()
      await pool.end()
    },
  }
}
