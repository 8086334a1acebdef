import type { SubmitInput } from '../../contract/submit.ts'
import { openCourier } from '../../courier/http-courier.ts'
import type { Courier } from '../../courier/port.ts'
import { createDeliver } from '../../leader/duties/deliver.ts'
import type { Leading } from '../../leader/election/elect.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import type { Services } from '../../services/index.ts'
import { settingsOf } from '../store/retention.ts'
import { finished } from '../store/scene.ts'
import { sql, unique, until } from '../store/store.ts'
import { seize, trusting } from './reaper.ts'
import { fail } from './ticker.ts'

const WORKER = 'local-worker'

/** The real courier. */
export const courier = openCourier()

interface DelivererChanges {
  leading?: Leading
  courier?: Courier
  batchMax?: number
  allowPrivate?: boolean
  world?: Services['deps']['world']
}

/** The duty of a leader, which the test calls. */
export async function deliverer(
  { deps }: Services,
  { leading, allowPrivate = true, batchMax = 100, ...changes }: DelivererChanges = {},
): Promise<() => Promise<number | null>> {
  const settings = settingsOf({ webhooks_allow_private: allowPrivate ? 1 : 0, webhooks_batch_max: batchMax })
  const tick = createDeliver(
    { ...deps, courier, settings, onTrouble: fail, ...changes },
    leading ?? trusting(await seize(deps.store)),
  )
  return async () => {
    let next = await tick()
    while (next === 0) next = await tick()
    return next
  }
}

/** Ticks until `look` finds something. */
export function delivering<T>(
  tick: () => Promise<unknown>,
  what: string,
  look: () => Promise<T | false | null>,
): Promise<T> {
  return until(what, async () => {
    await tick()
    return look()
  })
}

/** Makes all pending deliveries due now. */
export async function waitOver({ deps: { store } }: Services): Promise<void> {
  await sql(store, 'UPDATE ichido.webhook_deliveries SET next_at = 0 WHERE next_at IS NOT NULL')
}

type Ends = 'succeed' | 'fail' | 'fail for good' | 'release'

/** Submits a job, leases it and ends its run. Returns the job's id. */
export async function endJob(
  services: Services,
  how: Ends = 'succeed',
  input: Partial<Pick<SubmitInput, 'kind' | 'queue' | 'labels' | 'callback_url'>> = {},
): Promise<string> {
  const queue = input.queue ?? unique('q')
  const submitted = await services.submission.submit(LOCAL_ADMIN, { kind: 'work', ...input, queue }, { key: null })
  if (submitted.kind === 'refused') throw new Error(submitted.refusal.message)
  await endRun(services, queue, how)
  return submitted.jobId
}

/** Leases the next run of the queue and ends it. */
export async function endRun(services: Services, queue: string, how: Ends): Promise<void> {
  const request = { queues: [queue], kinds: [], max: 1, waitMs: 10_000, startId: 's' }
  const [lease] = await services.runs.lease(WORKER, request)
  if (lease === undefined) throw new Error('There is no run to lease')
  if (how === 'release') await services.runs.release(WORKER, lease.lease_id)
  else if (how === 'succeed') await services.runs.finish(WORKER, lease.lease_id, finished())
  else {
    const error = { code: 'BROKEN', message: 'It broke' }
    await services.runs.finish(WORKER, lease.lease_id, { verb: 'fail', error, retryable: how === 'fail' })
  }
}
