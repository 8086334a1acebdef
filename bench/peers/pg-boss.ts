import { z } from 'zod'
import { type Contestant, keyOf, payload, type Settings } from '../contestant.ts'
import { importPeer } from './packages.ts'

interface PgBoss {
  start(): Promise<unknown>
  createQueue(name: string, options: { policy: string; notify: boolean }): Promise<unknown>
  /** Returns null if the key existed. */
  send(name: string, data: object, options: { singletonKey: string }): Promise<string | null>
  insert(name: string, jobs: { data: object; singletonKey?: string }[]): Promise<unknown>
  work(
    name: string,
    options: { batchSize: number; burstWhenBatchFull: boolean; pollingIntervalSeconds: number },
    handler: (jobs: { data: { n: number } }[]) => Promise<void>,
  ): Promise<string>
  offWork(name: string): Promise<unknown>
  on(event: 'error', listener: (error: Error) => void): void
  stop(options: { graceful: boolean }): Promise<unknown>
}
type PgBossClass = new (options: { connectionString: string }) => PgBoss

const exported = z.object({ PgBoss: z.custom<PgBossClass>((value) => typeof value === 'function') })

const KEYED = 'keyed'
const PLAIN = 'plain'
/** The fastest at emptying a queue, of the values tried (64 to 1,000). */
const BATCH = 1_000

export async function openPgBoss({ url, packages }: Settings): Promise<Contestant> {
  const { PgBoss } = exported.parse(await importPeer(packages, 'pg-boss/dist/index.js'))
  const boss = new PgBoss({ connectionString: url })
  boss.on('error', (error) => process.stderr.write(`pg-boss: ${error.message}\n`))
  await boss.start()
  // Under this policy a singletonKey prevents a second job while the first one waits or runs.
  await boss.createQueue(KEYED, { policy: 'exclusive', notify: false })
  await boss.createQueue(PLAIN, { policy: 'standard', notify: false })
  const send = (n: number) => boss.send(KEYED, payload(n), { singletonKey: keyOf(n) })

  const twice = [await send(-1), await send(-1)]
  if (twice[0] === null || twice[1] !== null) throw new Error('singletonKey does not keep a second job out')
  return {
    async submit(n) {
      if ((await send(n)) === null) throw new Error(`The key of ${n} was used before`)
    },
    async submitMany(first, count, keyed) {
      const job = (n: number) => ({ data: payload(n), ...(keyed ? { singletonKey: keyOf(n) } : {}) })
      await boss.insert(
        keyed ? KEYED : PLAIN,
        Array.from({ length: count }, (_, i) => job(first + i)),
      )
    },
    async work(pace, begins) {
      const options = { batchSize: pace === 'bulk' ? BATCH : 1, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 }
      for (const name of [PLAIN, KEYED]) {
        await boss.work(name, options, async (jobs) => {
          for (const { data } of jobs) begins(data.n)
        })
      }
      return async () => void (await Promise.all([PLAIN, KEYED].map((name) => boss.offWork(name))))
    },
    async close() {
      await boss.stop({ graceful: false })
    },
  }
}
