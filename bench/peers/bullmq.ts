import { z } from 'zod'
import {
  type Contestant,
  HANDLERS,
  keyOf,
  type Pace,
  payload,
  probe,
  queueIn,
  type Settings,
} from '../contest/contestant.ts'
import { importPeer } from './packages.ts'

interface Queue {
  add(name: string, data: object, options: { jobId: string }): Promise<unknown>
  addBulk(jobs: { name: string; data: object; opts?: { jobId: string } }[]): Promise<unknown>
  count(): Promise<number>
  close(): Promise<void>
}
interface Job {
  data: { n: number }
  updateProgress(step: number): Promise<void>
}
interface Worker {
  on(event: 'error', listener: (error: Error) => void): void
  waitUntilReady(): Promise<unknown>
  close(): Promise<void>
}
interface Connection {
  connection: { host: string; port: number; password: string }
}
type WorkerClass = new (
  name: string,
  processor: (job: Job) => Promise<void>,
  options: Connection & { concurrency: number },
) => Worker
type QueueClass = new (name: string, options: Connection) => Queue

const isClass = (value: unknown) => typeof value === 'function'
const exported = z.object({ Queue: z.custom<QueueClass>(isClass), Worker: z.custom<WorkerClass>(isClass) })

/** A higher value empties a queue no faster. */
const CONCURRENCY: Record<Pace, number> = { bulk: 100, ...HANDLERS }

export async function openBullmq({ url, packages }: Settings): Promise<Contestant> {
  const { Queue, Worker } = exported.parse(await importPeer(packages, 'bullmq/dist/cjs/index.js'))
  const { hostname, port, password } = new URL(url)
  const connection = { host: hostname, port: Number(port), password }
  const name = queueIn(url)
  const queue = new Queue(name, { connection })
  const add = (n: number) => queue.add('welcome', payload(n), { jobId: keyOf(n) })

  const unused = probe()
  await add(unused)
  const before = await queue.count()
  await add(unused)
  if ((await queue.count()) !== before) throw new Error('jobId does not keep a second job out')
  return {
    async submit(n) {
      await add(n)
    },
    async submitMany(first, count, keyed) {
      const job = (n: number) => ({
        name: 'welcome',
        data: payload(n),
        ...(keyed ? { opts: { jobId: keyOf(n) } } : {}),
      })
      await queue.addBulk(Array.from({ length: count }, (_, i) => job(first + i)))
    },
    async work(pace, handle) {
      const processor = async (job: Job) => handle(job.data.n, (step) => job.updateProgress(step))
      const worker = new Worker(name, processor, { connection, concurrency: CONCURRENCY[pace] })
      worker.on('error', (error) => process.stderr.write(`BullMQ: ${error.message}\n`))
      await worker.waitUntilReady()
      return () => worker.close()
    },
    close: () => queue.close(),
  }
}
