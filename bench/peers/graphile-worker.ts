import { z } from 'zod'
import { type Contestant, HANDLERS, keyOf, type Pace, payload, type Settings } from '../contest/contestant.ts'
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
const BULK = { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 }
/** Without a local queue each handler asks the database for its own job, and more than 24 start a job later. */
const SETTINGS: Record<Pace, { concurrency: number } & Partial<typeof BULK>> = {
  bulk: { concurrency: 24, ...BULK },
  wide: { concurrency: HANDLERS.wide, ...BULK },
  prompt: { concurrency: 24 },
  narrow: { concurrency: HANDLERS.narrow },
}

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
    async work(pace, handle) {
      const { concurrency, ...worker } = SETTINGS[pace]
      const runner = await run({
        connectionString: url,
        concurrency,
        noHandleSignals: true,
        taskList: { welcome: async ({ n }) => handle(n, null) },
        logger: new Logger(() => () => {}),
        preset: { worker: { concurrentJobs: concurrency, ...worker } },
      })
      return () => runner.stop()
    },
    close: () => utils.release(),
  }
}
