import type { SubmitResponse } from '@ichido/sdk/protocol'
import { beforeEach, expect, test } from 'vitest'
import { EmbeddedBus } from '../../bus/embedded.ts'
import type { Topic } from '../../bus/port.ts'
import { callerOf, eachServices } from '../../testing/services/each-services.ts'
import { thrownBy } from '../../testing/services/embedded.ts'
import { sql, unique } from '../../testing/store/store.ts'
import { LOCAL_ADMIN } from '../access/access.ts'
import { DEFAULT_LIMITS } from '../deps.ts'
import { silentMeter } from '../system/meter.ts'
import { refusalError, renderAccepted, type SubmitOptions } from './submit-job.ts'

const PAYLOAD_MAX = 1_000
const woken: Topic[] = []
class HeardBus extends EmbeddedBus {
  override wake(topics: readonly Topic[]): void {
    woken.push(...topics)
    super.wake(topics)
  }
}
const counted: [string, boolean, string | null][] = []
const batches: number[] = []
const meter = {
  ...silentMeter,
  submitted: (...outcome: (typeof counted)[number]) => void counted.push(outcome),
  batch: ({ items }: { items: number }) => void batches.push(items),
}
beforeEach(() => {
  woken.length = 0
  counted.length = 0
  batches.length = 0
})

test.each([
  [[], null],
  [['You use 4 of "5" slots'], 'Spent \\ 90 %'],
])('the answer is the JSON of its fields, warnings %j', (quotaWarnings, costLimitWarning) => {
  const createdAt = '2026-11-18T08:00:00.000Z'
  const accepted = { jobId: 'id', kind: 'a.b:c-d_e', queue: 'q', createdAt, runAt: createdAt }
  const body: SubmitResponse = {
    job_id: 'id',
    kind: 'a.b:c-d_e',
    queue: 'q',
    state: 'PENDING',
    created_at: createdAt,
    run_at: createdAt,
    quota_warnings: quotaWarnings,
    cost_limit_warning: costLimitWarning,
  }
  expect(renderAccepted({ ...accepted, quotaWarnings, costLimitWarning })).toBe(JSON.stringify(body))
})

eachServices(
  ({ services }) => {
    const submission = () => services().submission
    const NO_KEY: SubmitOptions = { key: null }

    test('a replay has the same bytes as the first answer', async () => {
      const caller = callerOf('submitter')
      const queue = unique('queue')
      const submit = () => submission().submit(caller, { kind: 'work', queue }, { key: 'k' })
      const first = await submit()
      if (first.kind === 'refused') throw refusalError(first.refusal)
      const body = JSON.parse(first.body) as SubmitResponse
      expect(first).toEqual({ kind: 'created', jobId: body.job_id, status: 201, body: first.body, queue, due: true })
      expect(body).toEqual({
        job_id: expect.any(String),
        kind: 'work',
        queue,
        state: 'PENDING',
        created_at: body.run_at,
        run_at: expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/),
        quota_warnings: [],
        cost_limit_warning: null,
      })
      await services().jobs.cancel(caller, body.job_id)
      expect(await submit()).toMatchObject({ kind: 'replayed', jobId: body.job_id, status: 201, body: first.body })
    })

    test('a queue is woken if a job is due now', async () => {
      const caller = callerOf('submitter')
      const [a, b, c] = [unique('a'), unique('b'), unique('c')]
      const submit = (queue: string, delay_seconds = 0, key: string | null = null) =>
        submission().submit(caller, { kind: 'work', queue, delay_seconds }, { key })
      await Promise.all([submit(a), submit(a), submit(b), submit(c, 60), submit(a, 0, 'k')])
      await submit(a, 0, 'k')
      expect(new Set(woken)).toEqual(new Set([`queue:${a}`, `queue:${b}`]))
      // One wake-up for each batch.
      expect(woken.length).toBeLessThanOrEqual(2 * batches.length)
    })

    test('jobs that arrive together are committed together', async () => {
      const caller = callerOf('submitter')
      await Promise.all(Array.from({ length: 500 }, () => submission().submit(caller, { kind: 'work' }, NO_KEY)))
      expect(batches.reduce((sum, items) => sum + items, 0)).toBe(500)
      expect(batches.length).toBeLessThan(20)
    })

    test.each([
      ['traceparent', { traceparent: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01' }],
      ['key_ttl_hours', { key_ttl_hours: 99 }],
      ['idempotency_key', { idempotency_key: 'k' }],
      ['reservation_id', { reservation_id: '01890000-0000-7000-8000-000000000000' }],
    ])('a retry with another %s is the same request', async (_, changes) => {
      const caller = callerOf('submitter')
      const first = await submission().submit(caller, { kind: 'work' }, { key: 'k' })
      const again = await submission().submit(caller, { kind: 'work', ...changes }, { key: 'k' })
      expect([first.kind, again.kind]).toEqual(['created', 'replayed'])
    })

    test.each([
      ['payload', { payload: 1 }],
      ['queue', { queue: 'other' }],
      ['priority', { priority: 1 }],
      ['labels', { labels: { a: 'b' } }],
      ['estimated_cost', { estimated_cost: 1 }],
      ['delay_seconds', { delay_seconds: 1 }],
      ['timeout_seconds', { timeout_seconds: 1 }],
    ])('a retry with another %s is another request', async (_, changes) => {
      const caller = callerOf('submitter')
      await submission().submit(caller, { kind: 'work' }, { key: 'k' })
      const outcome = await submission().submit(caller, { kind: 'work', ...changes }, { key: 'k' })
      expect(outcome).toMatchObject({ kind: 'refused', refusal: { code: 'IDEMPOTENCY_KEY_REUSED' } })
    })

    test('keys of different operations are separate', async () => {
      const caller = callerOf('submitter')
      const submit = (payload: number, options: Partial<SubmitOptions> = {}) =>
        submission().submit(caller, { kind: 'work', payload }, { key: 'k', ...options })
      expect((await submit(1)).kind).toBe('created')
      const cloud = { operation: 'cloud', hashOver: { name: 'config' } }
      expect((await submit(2, cloud)).kind).toBe('created')
      expect((await submit(3, cloud)).kind).toBe('replayed')
      expect((await submit(3, { ...cloud, hashOver: { name: 'other' } })).kind).toBe('refused')
    })

    test('the policy of an adapter fills missing fields', async () => {
      const caller = callerOf('submitter')
      const policy = { max_attempts: 9, lease_ttl_seconds: 3600 }
      const input = { kind: 'work', max_attempts: 2, backoff: { cap_seconds: 5 } }
      const outcome = await submission().submit(caller, input, { key: null, policy })
      if (outcome.kind === 'refused') throw refusalError(outcome.refusal)
      expect((await services().jobs.get(caller, outcome.jobId)).policy).toEqual({
        max_attempts: 2,
        lease_ttl_seconds: 3600,
        backoff: { base_seconds: 10, cap_seconds: 5, jitter: 0.1 },
      })
    })

    test('a consumed reservation is stored beside the job', async () => {
      const caller = callerOf('submitter')
      const outcome = await submission().submit(caller, { kind: 'work' }, { key: null, consumedReservation: true })
      if (outcome.kind === 'refused') throw refusalError(outcome.refusal)
      const all = { userId: null, activeOnly: false, limit: 10, cursor: null }
      expect((await services().reservations.list(caller, all)).data).toMatchObject([
        { state: 'consumed', job_id: outcome.jobId },
      ])
      expect(await services().quotas.get(caller, caller.userId)).toMatchObject({
        active_jobs: 1,
        active_reservations: 0,
      })
    })

    test('every outcome is counted', async () => {
      const caller = callerOf('submitter')
      await services().quotas.put(LOCAL_ADMIN, caller.userId, { max_concurrent: 2, cost_limit: null, period: 'day' })
      const submit = (payload: number, key: string | null) =>
        submission().submit(caller, { kind: 'work', payload }, { key })
      await submit(1, 'k')
      await submit(1, 'k')
      await submit(2, 'k')
      await submit(1, null)
      await submit(1, null)
      expect(counted).toEqual([
        ['created', true, null, 'default'],
        ['replayed', true, null, 'default'],
        ['refused', true, 'IDEMPOTENCY_KEY_REUSED', 'default'],
        ['created', false, null, 'default'],
        ['refused', false, 'QUOTA_EXCEEDED', 'default'],
      ])
    })

    test('a payload is limited in bytes, and a large one does not affect others', async () => {
      const caller = callerOf('submitter')
      const submit = (payload: string) => submission().submit(caller, { kind: 'work', payload }, NO_KEY)
      const large = thrownBy(submit('é'.repeat(PAYLOAD_MAX / 2)))
      expect(await submit('é'.repeat(PAYLOAD_MAX / 2 - 1))).toMatchObject({ kind: 'created' })
      expect(await large).toMatchObject({ code: 'PAYLOAD_TOO_LARGE', details: { field: 'payload' } })
      const jobs = await sql(services().deps.store, 'SELECT id FROM ichido.jobs WHERE user_id = $1', caller.userId)
      expect(jobs).toHaveLength(1)
    })

    test('a refusal is an error with its reason', () => {
      const refusal = { code: 'IDEMPOTENCY_KEY_REUSED', message: 'used', jobId: 'j' } as const
      expect(refusalError(refusal)).toMatchObject({ code: refusal.code, message: 'used', details: { job_id: 'j' } })
      expect(refusalError({ code: 'QUOTA_EXCEEDED', message: 'full' })).toMatchObject({ message: 'full', details: {} })
    })
  },
  { bus: new HeardBus(), meter, limits: { ...DEFAULT_LIMITS, payloadBytesMax: PAYLOAD_MAX } },
)
