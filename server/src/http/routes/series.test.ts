import type { ErrorBody, Page, QueueRateShape, SeriesShape } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { series as shape } from '../../contract/system.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import { type TestApp, testApp } from '../../testing/http/app.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { unique } from '../../testing/store/store.ts'

describe.each(ENGINES)('%s', (engine) => {
  let http: TestApp
  beforeAll(async () => {
    http = await testApp(engine)
  })
  afterAll(() => http.close())
  const get = (query: string) => http.call('GET', `/v1/stats/series?${query}`)
  const totals = (points: SeriesShape['points']) => ({
    submitted: points.reduce((sum, point) => sum + point.submitted, 0),
    started: points.reduce((sum, point) => sum + point.started, 0),
    succeeded: points.reduce((sum, point) => sum + point.succeeded, 0),
    failed: points.reduce((sum, point) => sum + point.failed, 0),
    retried: points.reduce((sum, point) => sum + point.retried, 0),
    canceled: points.reduce((sum, point) => sum + point.canceled, 0),
    key_hits: points.reduce((sum, point) => sum + point.key_hits, 0),
    cost: points.reduce((sum, point) => sum + point.cost, 0),
  })

  test('the series of a queue have what its jobs did', async () => {
    const queue = unique('queue')
    const submit = (key?: string) =>
      http.call('POST', '/v1/jobs', {
        body: { kind: 'work', queue },
        ...(key === undefined ? {} : { headers: { 'idempotency-key': key } }),
      })
    const key = unique('key')
    for (const one of [key, key, undefined, undefined]) expect((await submit(one)).status).toBeLessThan(300)
    const { runs, jobs, seriesCounts } = http.services
    const leased = await runs.lease('w', { queues: [queue], kinds: [], max: 2, waitMs: 0, startId: 's' })
    const [first, second] = leased.map(({ lease_id }) => lease_id)
    const none = { summaryText: null, freqsCsv: null, meta: null }
    await runs.finish('w', first ?? '', { verb: 'finish', result: null, ...none, costMicros: 1_250_000 })
    await runs.finish('w', second ?? '', { verb: 'fail', error: { code: 'E', message: 'm' }, retryable: true })
    const listed = (await http.call('GET', `/v1/jobs?queue=${queue}&state=PENDING`)).body as Page<{ job_id: string }>
    for (const { job_id } of listed.data.slice(0, 1)) await jobs.cancel(LOCAL_ADMIN, job_id)
    await seriesCounts.flush()
    const { data } = (await http.call('GET', '/v1/stats/rates')).body as { data: QueueRateShape[] }
    const rate = data.find((one) => one.queue === queue)
    // Three jobs and three ends, over four to five minutes.
    for (const perMinute of [rate?.submitted_per_minute, rate?.ended_per_minute]) {
      expect(perMinute).toBeGreaterThanOrEqual(0.6)
      expect(perMinute).toBeLessThanOrEqual(0.8)
    }
    const { body } = await get(`range=15m&queue=${queue}`)
    const series = shape.parse(body)
    expect(series).toEqual(body)
    expect(series.queues).toContain(queue)
    const counted = {
      submitted: 3,
      started: 2,
      succeeded: 1,
      failed: 1,
      retried: 1,
      canceled: 1,
      key_hits: 1,
      cost: 1.25,
    }
    expect(totals(series.points)).toEqual(counted)
    expect(series.points.some(({ run_ms, wait_ms }) => run_ms.p99 !== null && wait_ms.p50 !== null)).toBe(true)
    expect(totals(shape.parse((await get('range=7d')).body).points)).toMatchObject({ key_hits: 1, cost: 1.25 })
  })

  test('an unknown queue has empty series, and a wrong field is named', async () => {
    const unknown = shape.parse((await get('range=24h&queue=nothing')).body)
    expect(unknown.points).toHaveLength(96)
    expect(totals(unknown.points).submitted).toBe(0)
    for (const [query, field] of [
      ['', 'range'],
      ['range=2h', 'range'],
      ['range=1h&queue=a%20b', 'queue'],
      ['range=1h&user=x', 'user'],
    ] as const) {
      const { status, body } = await get(query)
      expect(status, query).toBe(400)
      expect((body as ErrorBody).error.message, query).toContain(field)
    }
  })
})
