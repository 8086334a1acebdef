import type { BackfillShape, ErrorBody, RedriveShape } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { LOCAL_ADMIN } from '../services/access.ts'
import { type Answer, type TestApp, testApp } from '../testing/app.ts'
import { metric } from '../testing/event-streams.ts'
import { ENGINES } from '../testing/services.ts'
import { unique } from '../testing/store.ts'

const errorOf = ({ body }: Answer) => (body as ErrorBody).error

describe.each(ENGINES)('what one user may have on %s', (engine) => {
  let http: TestApp
  beforeAll(async () => {
    http = await testApp(engine)
  })
  afterAll(() => http.close())

  test('redrives and backfills that run: so many together, and each that ends makes room', async () => {
    await http.services.settings.put(LOCAL_ADMIN, 'operations_per_user_max', 2)
    const definition = unique('definition')
    const schedule = { cron: '0 0 * * *' }
    await http.call('POST', '/v1/definitions', { body: { name: definition, kind: 'work', schedule } })
    const redrive = () => http.call('POST', '/v1/dead-letters/redrive', { body: { filter: {} } })
    const path = `/v1/definitions/${definition}`
    const from = new Date(Date.now() - 3 * 86_400_000).toISOString()
    const backfill = () => http.call('POST', `${path}/backfill`, { body: { from } })

    const begun = [await redrive(), await backfill()]
    expect(begun.map(({ status }) => status)).toEqual([202, 202])
    for (const one of [redrive, backfill]) {
      const refused = await one()
      expect(refused).toMatchObject({ status: 409, headers: { 'should-retry': 'false' } })
      expect(errorOf(refused)).toMatchObject({
        code: 'MAXIMUM_REACHED',
        message:
          'local has 2 redrives and backfills running, as many as it may; wait until one has ended, abort one, or have an ' +
          'admin raise the setting operations_per_user_max',
        details: { setting: 'operations_per_user_max', max: 2 },
      })
    }
    expect(await metric(http, 'ichido_maximum_refusals_total{setting="operations_per_user_max"}')).toBe(2)
    const dryRun = { filter: {}, dry_run: true }
    expect((await http.call('POST', '/v1/dead-letters/redrive', { body: dryRun })).status).toBe(200)

    const [first, second] = begun as [Answer, Answer]
    const { redrive_id } = first.body as RedriveShape
    expect((await http.call('POST', `/v1/dead-letters/redrives/${redrive_id}/abort`)).status).toBe(200)
    expect((await backfill()).status).toBe(202)
    const { backfill_id } = second.body as BackfillShape
    expect((await http.call('POST', `${path}/backfills/${backfill_id}/abort`)).status).toBe(200)
    expect((await redrive()).status).toBe(202)
  })
})
