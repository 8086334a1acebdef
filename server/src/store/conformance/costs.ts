import { describe, expect, test } from 'vitest'
import { type CostPeriod, toMicros } from '../../core/limits/quota.ts'
import { retry } from '../../testing/store/dead-letters.ts'
import { failed, finished, Scene } from '../../testing/store/scene.ts'
import { sql } from '../../testing/store/store.ts'
import { findQuota, setQuota } from '../limits/quotas.ts'
import { finishBatch } from '../runs/finish-runs.ts'
import type { Given } from './given.ts'

const DAY_MS = 86_400_000

export function costConformance({ store }: Given): void {
  describe('costs', () => {
    test('are charged at submit, refused beyond the limit, with a warning from 80 %', async () => {
      const scene = await costing(10)
      const outcomes = await scene.submitAll(
        [4, 4, 3, 2, 0].map((cost) => scene.item({ estimatedCostMicros: toMicros(cost) })),
      )
      expect(outcomes.map(({ kind }) => kind)).toEqual(['created', 'created', 'refused', 'created', 'created'])
      expect(outcomes[2]).toMatchObject({
        refusal: {
          code: 'COST_LIMIT_EXCEEDED',
          message: 'Cost limit exceeded: 8.00 of 10.00 per month is spent, this job would add 3.00',
        },
      })
      const warnings = outcomes.map((outcome) => 'body' in outcome && JSON.parse(outcome.body).costLimitWarning)
      expect(warnings).toEqual([
        null,
        '8.00 of 10.00 per month is spent (80 %)',
        false,
        '10.00 of 10.00 per month is spent (100 %)',
        '10.00 of 10.00 per month is spent (100 %)',
      ])
      expect(await spent(scene)).toBe(10)
    })

    test('are corrected up or down by the cost of the result', async () => {
      const scene = await costing(10)
      for (const [estimate, cost, sum] of [
        [4, 1, 1],
        [2, 5, 6],
        [3, null, 9],
      ] as const) {
        const lease = await scene.running({ estimatedCostMicros: toMicros(estimate) })
        const report = finished({ costMicros: cost === null ? null : toMicros(cost) })
        const item = scene.endItem(lease, report)
        await store().write(finishBatch([item]))
        await store().write(finishBatch([item]))
        expect(await spent(scene)).toBe(sum)
      }
      expect(await scene.submit({ estimatedCostMicros: toMicros(2) })).toMatchObject({ kind: 'refused' })
    })

    test('of a retried job are corrected once', async () => {
      const scene = await costing(10)
      const lease = await scene.running({ estimatedCostMicros: toMicros(4) })
      await scene.fail(lease)
      expect(await spent(scene)).toBe(4)
      await scene.age(20_000)
      const second = await scene.leased({ startId: 's' })
      await store().write(finishBatch([scene.endItem(second, finished({ costMicros: toMicros(3) }))]))
      expect(await spent(scene)).toBe(3)
    })

    test('are given back when the job never started, and only then', async () => {
      const scene = await costing(100)
      const estimate = { estimatedCostMicros: toMicros(1) }
      await scene.cancel(await scene.submitted(estimate))
      expect(await spent(scene)).toBe(0)
      const assigned = await scene.submitted(estimate)
      await scene.leased()
      await scene.cancel(assigned)
      await scene.cancel(assigned)
      expect(await spent(scene)).toBe(0)
      const running = await scene.running(estimate)
      await scene.cancel(running.jobId)
      await scene.finish(running)
      expect(await spent(scene), 'it ran').toBe(1)
      const failed = await scene.running(estimate)
      await scene.fail(failed)
      await scene.cancel(failed.jobId)
      expect(await spent(scene), 'its first run ran').toBe(2)
    })

    test('that were given back are charged again on the day of the retry', async () => {
      const scene = await costing(10, 'day')
      const estimate = { estimatedCostMicros: toMicros(10) }
      const jobs: string[] = []
      for (let i = 0; i < 5; i++) {
        jobs.push(await scene.submitted(estimate))
        await scene.cancel(jobs[i] ?? '')
      }
      await scene.age(DAY_MS)
      const retries = async () => {
        const outcomes = []
        for (const jobId of jobs) outcomes.push(await store().write(retry(jobId)))
        return outcomes.filter(({ kind }) => kind === 'retried').map(({ jobId }) => jobId)
      }
      expect(await retries()).toEqual([jobs[0]])
      expect(await store().write(retry(jobs[1] ?? ''))).toMatchObject({ reason: 'COST_LIMIT_EXCEEDED' })
      expect(await spent(scene)).toBe(10)

      await scene.cancel(jobs[0] ?? '')
      expect(await spent(scene), 'a retry that never started costs nothing either').toBe(0)
      expect(await retries(), 'and is charged once more').toEqual([jobs[0]])
      const lease = await scene.leased({ startId: 's' })
      await store().write(finishBatch([scene.endItem(lease, finished({ costMicros: toMicros(3) }))]))
      expect(await spent(scene)).toBe(3)
      const days = `SELECT spent_micros FROM ichido.cost_counters WHERE user_id = $1 AND period = 'day'`
      expect(await sql(store(), days, scene.userId)).toEqual([{ spent_micros: toMicros(3) }])
    })

    test('of a retried job that had run are not charged again, and corrected on their day', async () => {
      const scene = await costing(10, 'day')
      const lease = await scene.running({ estimatedCostMicros: toMicros(4) })
      await store().write(finishBatch([scene.endItem(lease, failed(undefined, false))]))
      expect(await store().write(retry(lease.jobId))).toMatchObject({ kind: 'retried' })
      await scene.cancel(lease.jobId)
      expect(await store().write(retry(lease.jobId))).toMatchObject({ kind: 'retried' })
      expect(await spent(scene)).toBe(4)
      const later = 'UPDATE ichido.runs SET created_at = created_at + $1 WHERE job_id = $2 AND run_no > 1'
      await sql(store(), later, DAY_MS, lease.jobId)
      const last = await scene.leased({ startId: 's' })
      await store().write(finishBatch([scene.endItem(last, finished({ costMicros: toMicros(1) }))]))
      expect(await spent(scene)).toBe(1)
    })

    test('of a job that was canceled while it ran are at least its estimate', async () => {
      const scene = await costing(100)
      const jobId = await scene.submitted({ estimatedCostMicros: toMicros(10) })
      const end = async (cost: number, cancel: boolean) => {
        const lease = await scene.leased({ startId: 's' })
        if (cancel) await scene.cancel(jobId)
        await store().write(finishBatch([scene.endItem(lease, finished({ costMicros: toMicros(cost) }))]))
        return spent(scene)
      }
      for (let i = 0; i < 3; i++) {
        expect(await end(1, true)).toBe(10)
        expect(await store().write(retry(jobId))).toMatchObject({ kind: 'retried' })
      }
      expect(await end(12, true), 'it cost more').toBe(12)
      expect(await store().write(retry(jobId))).toMatchObject({ kind: 'retried' })
      expect(await end(9, false)).toBe(11)
    })

    test('count for the day or month of the quota, in UTC', async () => {
      const scene = await costing(10)
      await scene.submitted({ estimatedCostMicros: toMicros(5) })
      const before = `UPDATE ichido.cost_counters SET period_start = period_start - 86400000 WHERE user_id = $1 AND period = 'day'`
      await sql(store(), before, scene.userId)
      expect(await spent(scene)).toBe(5)
      await store().write(setQuota(scene.userId, { maxConcurrent: null, costLimitMicros: toMicros(10), period: 'day' }))
      expect(await spent(scene), 'yesterday does not count').toBe(0)
      expect(await scene.submit({ estimatedCostMicros: toMicros(10) })).toMatchObject({ kind: 'created' })
      expect(await scene.submit({ estimatedCostMicros: 1 })).toMatchObject({ kind: 'refused' })
    })

    test('without a limit are still counted', async () => {
      const scene = new Scene(store())
      for (let i = 0; i < 12; i++) await scene.submitted({ estimatedCostMicros: toMicros(1_000_000_000) })
      const { spentMicros } = await store().read(findQuota(scene.userId))
      expect(spentMicros).toBeGreaterThanOrEqual(Number.MAX_SAFE_INTEGER)
      await store().write(setQuota(scene.userId, { maxConcurrent: null, costLimitMicros: 0, period: 'month' }))
      expect(await scene.submit({ estimatedCostMicros: 1 })).toMatchObject({ kind: 'refused' })
    })
  })

  async function costing(limit: number, period: CostPeriod = 'month'): Promise<Scene> {
    const scene = new Scene(store())
    const quota = { maxConcurrent: null, costLimitMicros: toMicros(limit), period }
    await store().write(setQuota(scene.userId, quota))
    return scene
  }

  async function spent(scene: Scene): Promise<number> {
    return (await store().read(findQuota(scene.userId))).spentMicros / 1_000_000
  }
}
