import { z } from 'zod'
import { type Contestant, keyOf, payload, type Settings } from '../contestant.ts'
import { importPeer } from './packages.ts'

interface WorkerUtils {
  migrate(): Promise<void>
  addJob(identifier: string, payload: object, spec: { jobKey: string }): Promise<unknown>
  addJobs(specs: { identifier: string; payload: object; jobKey?: string }[]): Promise<unknown>
  release(): Promise<void>
}
type MakeWorkerUtils = (options: { connectionString: string }) => Promise<WorkerUtils>

const exported = z.object({ makeWorkerUtils: z.custom<MakeWorkerUtils>((value) => typeof value === 'function') })

export async function openGraphileWorker({ url, packages }: Settings): Promise<Contestant> {
  const { makeWorkerUtils } = exported.parse(await importPeer(packages, 'graphile-worker/dist/index.js'))
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
    close: () => utils.release(),
  }
}
