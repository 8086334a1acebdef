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

interface Job {
  /** Null after `save` if the id existed. */
  id: string | null
  data: { n: number }
  setId(id: string): Job
  save(): Promise<Job>
  reportProgress(step: number): Promise<unknown>
}
interface Queue {
  ready(): Promise<unknown>
  createJob(data: object): Job
  /** The errors by job. */
  saveAll(jobs: Job[]): Promise<Map<Job, Error>>
  process(concurrency: number, handler: (job: Job) => Promise<void>): void
  on(event: 'error', listener: (error: Error) => void): void
  close(timeoutMs: number): Promise<void>
}
interface Options {
  redis: { host: string; port: number; password: string }
  isWorker: boolean
  /** The three are for applications that listen to the events of jobs, which costs time. */
  getEvents: false
  sendEvents: false
  storeJobs: false
}
type QueueClass = new (name: string, options: Options) => Queue

const exported = z.object({ default: z.custom<QueueClass>((value) => typeof value === 'function') })
const CONCURRENCY: Record<Pace, number> = { bulk: 100, ...HANDLERS }
const CLOSE_MS = 5_000

export async function openBeeQueue({ url, packages }: Settings): Promise<Contestant> {
  const { default: BeeQueue } = exported.parse(await importPeer(packages, 'bee-queue/index.js'))
  const { hostname, port, password } = new URL(url)
  const redis = { host: hostname, port: Number(port), password }
  const name = queueIn(url)
  async function open(isWorker: boolean): Promise<Queue> {
    const queue = new BeeQueue(name, { redis, isWorker, getEvents: false, sendEvents: false, storeJobs: false })
    queue.on('error', (error) => process.stderr.write(`bee-queue: ${error.message}\n`))
    await queue.ready()
    return queue
  }
  const queue = await open(false)
  const keyed = (n: number) => queue.createJob(payload(n)).setId(keyOf(n))

  const unused = probe()
  const twice = [await keyed(unused).save(), await keyed(unused).save()]
  if (twice[0]?.id === null || twice[1]?.id !== null) throw new Error('setId does not keep a second job out')
  return {
    async submit(n) {
      if ((await keyed(n).save()).id === null) throw new Error(`The key of ${n} was used before`)
    },
    async submitMany(first, count, isKeyed) {
      const job = (n: number) => (isKeyed ? keyed(n) : queue.createJob(payload(n)))
      const errors = await queue.saveAll(Array.from({ length: count }, (_, i) => job(first + i)))
      for (const error of errors.values()) throw error
    },
    async work(pace, handle) {
      const worker = await open(true)
      worker.process(CONCURRENCY[pace], async (job) => handle(job.data.n, (step) => job.reportProgress(step)))
      return () => worker.close(CLOSE_MS)
    },
    close: () => queue.close(CLOSE_MS),
  }
}
