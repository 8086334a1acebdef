import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import { finishBatch } from '../../store/runs/finish-runs.ts'
import { finishLate } from '../../store/runs/late-reports.ts'
import { DELIVERIES_MAX, deriveDeliveries } from '../../store/webhooks/derive-deliveries.ts'
import { ENGINES, type TestServices, testServices } from '../../testing/services/services.ts'
import { lead } from '../../testing/store/dead-letters.ts'
import { lapsedRun } from '../../testing/store/lapsed.ts'
import { finished, Scene } from '../../testing/store/scene.ts'
import { sql, unique, until } from '../../testing/store/store.ts'

describe.each(ENGINES)('%s', (engine) => {
  let opened: TestServices
  beforeAll(async () => {
    opened = await testServices(engine)
  })
  afterAll(() => opened.close())
  const store = () => opened.services.deps.store

  /** The types of all deliveries of a webhook, once the end of the job is among them. */
  async function told(webhookId: string): Promise<string[]> {
    const term = await lead(store())
    return until('the end of the job', async () => {
      await store().write(deriveDeliveries(term, 100))
      const { data } = await opened.services.webhooks.deliveries(webhookId, null, 10, null)
      return data.some(({ type }) => type === 'job.succeeded') && data.map(({ type }) => type)
    })
  }

  test('a run that timed out is no end if its worker adopted the next run', async () => {
    const scene = new Scene(store())
    const url = 'https://192.0.1.1/'
    const { webhook_id } = await opened.services.webhooks.create(LOCAL_ADMIN, { url })
    const lease = await lapsedRun(scene)
    await store().write(finishLate({ ...scene.endItem(lease, finished()), token: 'adopted' }))
    expect(await told(webhook_id)).toEqual(['job.succeeded'])
  })
  test('with many webhooks a transaction adds a bounded number of deliveries, and each comes once', async () => {
    const [hooks, jobs] = [50, 90]
    for (const table of ['webhooks', 'webhook_deliveries']) await sql(store(), `DELETE FROM ichido.${table}`)
    const kind = unique('kind')
    const url = 'https://192.0.1.1/'
    for (let n = 0; n < hooks; n++) await opened.services.webhooks.create(LOCAL_ADMIN, { url, kind })
    const scene = new Scene(store())
    await scene.submitAll(Array.from({ length: jobs }, () => scene.item({ kind })))
    const leases = await scene.lease({ max: jobs, startId: 'start', kinds: [kind] })
    await store().write(finishBatch(leases.map((lease) => scene.endItem(lease, finished()))))
    const term = await lead(store())
    const added: number[] = []
    const total = () => added.reduce((sum, count) => sum + count, 0)
    await until('all deliveries', async () => {
      const derived = await store().write(deriveDeliveries(term, 500))
      added.push(derived?.deliveries ?? 0)
      return derived?.caughtUp && total() >= hooks * jobs
    })
    expect(total()).toBe(hooks * jobs)
    expect(Math.max(...added)).toBeLessThan(DELIVERIES_MAX + hooks)
  })
})
