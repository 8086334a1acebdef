import { randomUUID } from 'node:crypto'
import type { LeaseShape } from '@ichido/sdk/protocol'
import type { TestApp } from './app.ts'

/** A worker of cloud jobs, for tests. */

export const WORKER = 'cloud-worker'

/** Leases and starts the next job of the queue. */
export async function lease({ services }: TestApp, queue: string): Promise<LeaseShape> {
  const request = { queues: [queue], kinds: ['cloud.train'], max: 1, waitMs: 0, startId: randomUUID() }
  const [leased] = await services.runs.lease(WORKER, request)
  if (leased === undefined) throw new Error(`${queue} has nothing to lease`)
  return leased
}

export async function finish({ services }: TestApp, leaseId: string): Promise<void> {
  await services.runs.finish(WORKER, leaseId, {
    verb: 'finish',
    result: 'null',
    summaryText: null,
    freqsCsv: null,
    meta: null,
    costMicros: null,
  })
}
