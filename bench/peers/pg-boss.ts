import { z } from 'zod'
import { type Contestant, HANDLERS, keyOf, type Pace, payload, probe, type Settings } from '../contest/contestant.ts'
import { importPeer } from './packages.ts'

interface PgBoss {
  start(): Promise<unknown>
  createQueue(name: string, options: { policy: string; notify: boolean }): Promise<unknown>
  /** Returns null if the key existed. */
  send(name: string, data: object, options: { singletonKey: string }): Promise<string | null>
  insert(name: string, jobs: { data: object; singletonKey?: string }[]): Promise<unknown>
  work(
    name: string,
    options: {
      batchSize: number
      localConcurrency: number
      burstWhenBatchFull: boolean
      pollingIntervalSeconds: number
    },
    handler: (jobs: { data: { n: number } }[]) => Promise<void>,
  ): Promise<string>
  offWork(name: string): Promise<unknown>
  on(event: 'error', listener: (error: Error) => void): void
  stop(options: { graceful: boolean }): Promise<unknown>
}
type PgBossClass = new (options: { connectionString: string; useListenNotify: boolean }) => PgBoss

const exported = z.object({ PgBoss: z.custom<PgBossClass>((value) => typeof value === 'function') })

const PLAIN = 'plain'
const KEYED = 'keyed'
/** A notification wakes its worker at once, and makes a submission half as fast. */
const PROMPT = 'prompt'
/**
 * 1,000 is the fastest at emptying a queue, of the values tried (64 to 1,000). A worker takes its next jobs when all of its last
 * batch have ended. So several workers share the prompt jobs: a long job then delays the other nine of its batch alone.
 */
const WORKERS: Record<Pace, { batchSize: number; localConcurrency: number }> = {
  bulk: { batchSize: 1_000, localConcurrency: 1 },
  wide: { batchSize: HANDLERS.wide, localConcurrency: 1 },
  prompt: { batchSize: HANDLERS.prompt / 10, localConcurrency: 10 },
  narrow: { batchSize: HANDLERS.narrow, localConcurrency: 1 },
}

export async function openPgBoss({ url, packages }: Settings): Promise<Contestant> {
  const { PgBoss } = exported.parse(await importPeer(packages, 'pg-boss/dist/index.js'))
  const boss = new PgBoss({ connectionString: url, useListenNotify: true })
  boss.on('error', (error) => process.stderr.write(`pg-boss: ${error.message}\n`))
  await boss.start()
  // Under this policy a singletonKey prevents a second job while the first one waits or runs.
  await boss.createQueue(KEYED, { policy: 'exclusive', notify: false })
  await boss.createQueue(PROMPT, { policy: 'exclusive', notify: true })
  await boss.createQueue(PLAIN, { policy: 'standard', notify: false })
  let target = KEYED
  const send = (n: number) => boss.send(target, payload(n), { singletonKey: keyOf(n) })

  const unused = probe()
  const twice = [await send(unused), await send(unused)]
  if (twice[0] === null || twice[1] !== null) throw new Error('singletonKey does not keep a second job out')
  return {
    async submit(n) {
      if ((await send(n)) === null) throw new Error(`The key of ${n} was used before`)
    },
    async submitMany(first, count, keyed, user) {
      // The jobs of a noisy user must wait in the queue of the others.
      const name = user !== undefined ? PROMPT : keyed ? KEYED : PLAIN
      const job = (n: number) => ({ data: payload(n), ...(name === PLAIN ? {} : { singletonKey: keyOf(n) }) })
      await boss.insert(
        name,
        Array.from({ length: count }, (_, i) => job(first + i)),
      )
    },
    async work(pace, handle) {
      const isPrompt = pace === 'prompt' || pace === 'narrow'
      const queues = isPrompt ? [PLAIN, PROMPT] : [PLAIN, KEYED]
      target = isPrompt ? PROMPT : KEYED
      const options = { ...WORKERS[pace], burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 }
      for (const name of queues) {
        await boss.work(name, options, async (jobs) => {
          await Promise.all(jobs.map(({ data }) => handle(data.n, null)))
        })
      }
      return async () => {
        await Promise.all(queues.map((name) => boss.offWork(name)))
        target = KEYED
      }
    },
    async close() {
      await boss.stop({ graceful: false })
    },
  }
}
