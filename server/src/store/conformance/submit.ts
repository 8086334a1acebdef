import { v7 } from 'uuid'
import { describe, expect, test } from 'vitest'
import { text } from '../../testing/store/rows.ts'
import { KEY_TTL_MS, only, renderForTest, Scene } from '../../testing/store/scene.ts'
import { sql } from '../../testing/store/store.ts'
import { findJob } from '../jobs/read-jobs.ts'
import { setQuota } from '../limits/quotas.ts'
import type { SubmitItem, SubmitOutcome } from '../submission/submission.ts'
import { submitJobs } from '../submission/submit-jobs.ts'
import type { Given } from './given.ts'

export function submitConformance({ store }: Given): void {
  describe('submit', () => {
    test('stores job, first run and first event, and answers with them', async () => {
      const scene = new Scene(store())
      const item = scene.item({ priority: 7, labels: { team: 'a' }, estimatedCostMicros: 5, traceparent: 't' })
      const outcome = only(await scene.submitAll([item]))
      expect(outcome).toMatchObject({ kind: 'created', jobId: item.jobId, status: 201, queue: scene.queue, due: true })
      const found = await store().read(findJob(item.jobId))
      expect(found?.job).toMatchObject({
        kind: 'work',
        queue: scene.queue,
        user_id: scene.userId,
        payload: '{"n":1}',
        priority: 7,
        labels: { team: 'a' },
        estimated_cost_micros: 5,
        traceparent: 't',
        state: 'PENDING',
      })
      expect(found?.runs).toMatchObject([{ run_id: item.jobId, run_no: 1, attempt: 0, retry_count: 0, version: 1 }])
      expect(await scene.events(item.jobId)).toEqual([{ state: 'PENDING' }])
      expect(JSON.parse(body(outcome))).toEqual({
        jobId: item.jobId,
        kind: 'work',
        queue: scene.queue,
        createdAt: new Date(found?.job.created_at ?? 0).toISOString(),
        runAt: new Date(found?.job.run_at ?? 0).toISOString(),
        quotaWarnings: [],
        costLimitWarning: null,
      })
    })

    test('a delayed job is not in the queue, and a late run_at counts as now', async () => {
      const scene = new Scene(store())
      const delayed = await scene.submit({ delayMs: 60_000 })
      const late = await scene.submit({ runAtMs: Date.now() - 1_000 })
      expect([delayed, late]).toMatchObject([{ due: false }, { due: true }])
      expect(JSON.parse(body(delayed))).toMatchObject({ runAt: expect.any(String) })
      expect((await scene.lease({ max: 5 })).map((lease) => lease.jobId)).toEqual([jobOf(late)])
    })

    test.each([
      [-3_600_000, /past/],
      [400 * 86_400_000, /366 days/],
    ])('run_at %d ms from now is refused, and nothing is stored', async (offsetMs, problem) => {
      const scene = new Scene(store())
      const item = scene.item({ runAtMs: Date.now() + offsetMs, key: 'k' })
      expect(only(await scene.submitAll([item]))).toMatchObject({
        kind: 'refused',
        refusal: { code: 'INVALID_PAYLOAD', message: expect.stringMatching(problem), field: 'run_at' },
      })
      expect(await store().read(findJob(item.jobId))).toBeNull()
    })

    test('any text is stored unchanged', async () => {
      const scene = new Scene(store())
      const payload = JSON.stringify({ a: '一度 ü 😀 \u2028 \\ " \' $1 ichido.jobs now_ms()', b: '\u0000\ud800' })
      const jobId = await scene.submitted({ payload, labels: { ümlaut: "it's" }, key: 'a"b\\c/$1' })
      const found = await store().read(findJob(jobId))
      expect(found).toMatchObject({ job: { payload, labels: { ümlaut: "it's" } }, key: 'a"b\\c/$1' })
    })
  })

  describe('the same key', () => {
    test('with the same request replays the first answer byte for byte', async () => {
      const scene = new Scene(store())
      const first = await scene.submit({ key: 'k' })
      const again = await scene.submit({ key: 'k', payload: 'anything', traceparent: 'other' })
      expect(first).toMatchObject({ kind: 'created' })
      expect(again).toEqual({ ...first, kind: 'replayed', due: false })
      expect(await jobCount(scene)).toBe(1)
    })

    test('replays after the job has ended, too', async () => {
      const scene = new Scene(store())
      const first = await scene.submit({ key: 'k' })
      await scene.finish(await scene.leased({ startId: 's' }))
      expect(await scene.submit({ key: 'k' })).toMatchObject({ kind: 'replayed', body: body(first) })
    })

    test('with another request is refused and names the first job', async () => {
      const scene = new Scene(store())
      const jobId = await scene.submitted({ key: 'k' })
      expect(await scene.submit({ key: { key: 'k', requestHash: 'other' } })).toMatchObject({
        kind: 'refused',
        refusal: { code: 'IDEMPOTENCY_KEY_REUSED', jobId, message: expect.stringContaining(jobId) },
      })
      expect(await jobCount(scene)).toBe(1)
    })

    test('with a hash of another version cannot be compared: the key alone decides', async () => {
      const scene = new Scene(store())
      const jobId = await scene.submitted({ key: 'k' })
      await sql(store(), 'UPDATE ichido.idempotency_keys SET hash_version = 0 WHERE job_id = $1', jobId)
      expect(await scene.submit({ key: { key: 'k', requestHash: 'other' } })).toMatchObject({ kind: 'replayed', jobId })
    })

    test('of another user or operation is another key', async () => {
      const [scene, stranger] = [new Scene(store()), new Scene(store())]
      const outcomes = [
        await scene.submit({ key: 'k' }),
        await scene.submit({ key: { key: 'k', operation: 'other' } }),
        await stranger.submit({ key: 'k' }),
      ]
      expect(new Set(outcomes.map(jobOf)).size).toBe(3)
    })

    test('differs from a longer key and from another case', async () => {
      const scene = new Scene(store())
      const outcomes = await scene.submitAll(['k', 'K', 'k ', 'k1'].map((key) => scene.item({ key })))
      expect(new Set(outcomes.map(jobOf)).size).toBe(4)
    })
  })

  describe('a batch', () => {
    test('makes one job of equal keys, in any order, and replays it to the others', async () => {
      const scene = new Scene(store())
      const items = ['a', 'b', 'a', null, 'a', 'b', null].map((key) => scene.item({ key }))
      const outcomes = await scene.submitAll(items)
      expect(outcomes.map(({ kind }) => kind)).toEqual([
        'created',
        'created',
        'replayed',
        'created',
        'replayed',
        'replayed',
        'created',
      ])
      expect([2, 4].map((i) => body(outcomes[i]))).toEqual([body(outcomes[0]), body(outcomes[0])])
      expect(body(outcomes[5])).toBe(body(outcomes[1]))
      expect(await jobCount(scene)).toBe(4)
    })

    test('refuses the second of two different requests with one key', async () => {
      const scene = new Scene(store())
      const items = [scene.item({ key: 'k' }), scene.item({ key: { key: 'k', requestHash: 'other' } })]
      expect(await scene.submitAll(items)).toMatchObject([
        { kind: 'created' },
        { kind: 'refused', refusal: { code: 'IDEMPOTENCY_KEY_REUSED', jobId: items[0]?.jobId } },
      ])
    })

    test('replays the stored answer to a repeat, also behind a misuse of its key', async () => {
      const scene = new Scene(store())
      const jobId = await scene.submitted({ key: 'k' })
      const misuse = { key: 'k', requestHash: 'other' }
      const outcomes = await scene.submitAll([misuse, 'k', misuse, 'k'].map((key) => scene.item({ key })))
      const reused = { kind: 'refused', refusal: { code: 'IDEMPOTENCY_KEY_REUSED', jobId } }
      const replayed = { kind: 'replayed', jobId }
      expect(outcomes).toMatchObject([reused, replayed, reused, replayed])
      expect(await jobCount(scene)).toBe(1)
    })

    test.each<[string, Partial<SubmitItem>, string]>([
      ['costs too much', { estimatedCostMicros: 11 }, 'COST_LIMIT_EXCEEDED'],
      ['has an unknown reservation', { reservationId: v7() }, 'RESERVATION_NOT_ACTIVE'],
      ['is due in the past', { runAtMs: 0 }, 'INVALID_PAYLOAD'],
      ['replaces an unknown job', { replacesJobId: v7() }, 'NOT_FOUND'],
    ])('admits the second item of a key whose first item %s', async (_, refused, code) => {
      const scene = new Scene(store())
      await store().write(setQuota(scene.userId, { maxConcurrent: 1, costLimitMicros: 10, period: 'day' }))
      const key = { key: 'k', requestHash: 'other' }
      const items = [
        scene.item({ ...refused, key }),
        scene.item({ key: 'k' }),
        scene.item({ ...refused, key }),
        scene.item({ key: 'k' }),
      ]
      const jobId = items[1]?.jobId
      expect(await scene.submitAll(items)).toMatchObject([
        { kind: 'refused', refusal: { code } },
        { kind: 'created', jobId },
        { kind: 'refused', refusal: { code: 'IDEMPOTENCY_KEY_REUSED', jobId } },
        { kind: 'replayed', jobId },
      ])
      expect(await jobCount(scene)).toBe(1)
    })

    test('refuses each item of a key when none can be admitted', async () => {
      const scene = new Scene(store())
      await store().write(setQuota(scene.userId, { maxConcurrent: 0, costLimitMicros: null, period: 'day' }))
      const full = { kind: 'refused', refusal: { code: 'QUOTA_EXCEEDED' } }
      const outcomes = await scene.submitAll([1, 2, 3].map(() => scene.item({ key: 'k' })))
      expect(outcomes).toMatchObject([full, full, full])
    })

    test('admits the items beside a refused item, and counts each user alone', async () => {
      const [scene, stranger] = [new Scene(store()), new Scene(store())]
      const items = [
        scene.item(),
        scene.item({ runAtMs: 0 }),
        stranger.item(),
        scene.item({ reservationId: v7() }),
        scene.item({ key: 'k' }),
      ]
      expect((await scene.submitAll(items)).map(({ kind }) => kind)).toEqual([
        'created',
        'refused',
        'created',
        'refused',
        'created',
      ])
      expect([await jobCount(scene), await jobCount(stranger)]).toEqual([2, 1])
    })

    test('of no items has an empty answer', async () => {
      expect(await store().write(submitJobs([], renderForTest))).toEqual([])
    })

    test('that runs again finds its own jobs by their ids', async () => {
      const scene = new Scene(store())
      const items = [scene.item({ key: 'a' }), scene.item(), scene.item({ key: 'a' }), scene.item({ runAtMs: 0 })]
      const command = submitJobs(items, renderForTest)
      const first = await store().write(command)
      const again = await store().write({ name: command.name, work: () => command.work(true) })
      const said = (outcomes: SubmitOutcome[]) =>
        outcomes.map(({ kind, ...rest }) => [kind, 'body' in rest && rest.body])
      expect(said(again)).toEqual(said(first))
      expect(await jobCount(scene)).toBe(2)
    })
  })

  describe('a key that has expired', () => {
    test('makes a new job after its job has ended', async () => {
      const scene = new Scene(store())
      const first = await scene.submitted({ key: 'k' })
      await scene.finish(await scene.leased({ startId: 's' }))
      await scene.age(KEY_TTL_MS - 5_000)
      expect(await scene.submit({ key: 'k' })).toMatchObject({ kind: 'replayed', jobId: first })
      await scene.age(10_000)
      const second = await scene.submit({ key: { key: 'k', requestHash: 'other' } })
      expect(second).toMatchObject({ kind: 'created' })
      expect(await scene.submit({ key: { key: 'k', requestHash: 'other' } })).toEqual({
        ...second,
        kind: 'replayed',
        due: false,
      })
      expect(await jobCount(scene)).toBe(2)
    })

    test.each(['PENDING', 'ASSIGNED', 'RUNNING', 'ORPHANED', 'waiting for its retry'])(
      'still names its job while the job is %s',
      async (state) => {
        const scene = new Scene(store())
        const jobId = await scene.submitted({ key: 'k' })
        if (state !== 'PENDING') {
          const lease = await scene.leased({ startId: state === 'RUNNING' || state.startsWith('wait') ? 's' : null })
          if (state === 'ORPHANED')
            await sql(store(), `UPDATE ichido.runs SET state = $2 WHERE job_id = $1`, jobId, state)
          if (state.startsWith('wait')) await scene.fail(lease)
        }
        await scene.age(KEY_TTL_MS + 1_000)
        expect(await scene.submit({ key: 'k' })).toMatchObject({ kind: 'replayed', jobId })
        expect(await scene.submit({ key: { key: 'k', requestHash: 'other' } })).toMatchObject({ kind: 'refused' })
      },
    )

    test('makes a new job after its job became a dead letter', async () => {
      const scene = new Scene(store())
      const first = await scene.submitted({ key: 'k', policy: { max_attempts: 1 } })
      expect(await scene.fail(await scene.leased({ startId: 's' }))).toMatchObject({ dead: true })
      await scene.age(KEY_TTL_MS + 1_000)
      const second = await scene.submit({ key: 'k' })
      expect(second).toMatchObject({ kind: 'created' })
      expect(jobOf(second)).not.toBe(first)
    })

    test('makes one new job for a batch of equal keys', async () => {
      const scene = new Scene(store())
      const first = await scene.submitted({ key: 'k' })
      await scene.cancel(first)
      await scene.age(KEY_TTL_MS + 1_000)
      const outcomes = await scene.submitAll([scene.item({ key: 'k' }), scene.item({ key: 'k' })])
      expect(outcomes.map(({ kind }) => kind)).toEqual(['created', 'replayed'])
      expect(new Set([first, ...outcomes.map(jobOf)]).size).toBe(2)
    })
  })
}

export function body(outcome: SubmitOutcome | undefined): string {
  if (outcome === undefined || outcome.kind === 'refused') throw new Error('Only an accepted submission has a body')
  return outcome.body
}

export function jobOf(outcome: SubmitOutcome): string {
  if (outcome.kind === 'refused') throw new Error(`Refused: ${outcome.refusal.message}`)
  return outcome.jobId
}

export async function jobCount(scene: Scene): Promise<number> {
  const rows = await sql(scene.store, 'SELECT id FROM ichido.jobs WHERE user_id = $1', scene.userId)
  return new Set(rows.map((row) => text(row, 'id'))).size
}
