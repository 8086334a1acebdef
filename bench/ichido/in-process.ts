import pg from 'pg'
import { open } from '../../server/src/open.ts'
import { type Contestant, keyOf, payload, type Settings } from '../contestant.ts'

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
    async close() {
      await ichido.close()
      await pool.end()
    },
  }
}
