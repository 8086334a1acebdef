import { z } from 'zod'
import { type Contestant, keyOf, payload, type Settings } from '../contestant.ts'
import { importPeer } from './packages.ts'

interface WorkerUtils {
  migrate(): Promise<void>
  addJob(identifier: string, payload: object, spec: { jobKey: string }): Promise<unknown>
  addJobs(specs: { identifier: string; payload: object; jobKey?: string }[]): Promise<unknown>
  release(): Promise<void>
}
interface Runner {
  stop(): Promise<void>
}
type Run = (options: {
  connectionString: string
  concurrency: number
  noHandleSignals: boolean
  taskList: Record<string, (payload: { n: number }) => Promise<void>>
  logger: unknown
  preset: { worker: Record<string, unknown> }
}) => Promise<Runner>
type MakeWorkerUtils = (options: { connectionString: string }) => Promise<WorkerUtils>

const isFunction = (value: unknown) => typeof value === 'function'
const exported = z.object({
  makeWorkerUtils: z.custom<MakeWorkerUtils>(isFunction),
  run: z.custom<Run>(isFunction),
  Logger: z.custom<new (factory: () => () => void) => unknown>(isFunction),
})

// The tuning for throughput that its documentation describes.
const BULK = { concurrency: 24, localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 }
const PROMPT = { concurrency: 24 }

export async function openGraphileWorker({ url, packages }: Settings): Promise<Contestant> {
  const { makeWorkerUtils, run, Logger } = exported.parse(await importPeer(packages, 'graphile-worker/dist/index.js'))
  const utils = await makeWorkerUtils({ connectionString: url })
  await utils.migrate()
  return {
    async submit(n) {
      await utils.addJob('welcome', payload(n), { jobKey: keyOf(n) })
    },
    async submitMany(first, count, keyed) {
      const job = (n: number) => ({
        identifier: 'welcome',
        payload: payload(n),
        ...(keyed ? { jobKey: keyOf(n) } : {}),
      })
      await utils.addJobs(Array.from({ length: count }, (_, i) => job(first + i)))
    },
    async work(pace, begins) {
      const { concurrency, ...worker } = pace === 'bulk' ? BULK : PROMPT
      const runner = await run({
        connectionString: url,
        concurrency,
        noHandleSignals: true,
        taskList: { welcome: async ({ n }) => begins(n) },
        logger: new Logger(() => () => {}),
        preset: { worker: { concurrentJobs: concurrency, ...worker } },
      })
      return () => runner.stop()
    },
    close: () => utils.release(),
  }
}
