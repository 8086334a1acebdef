import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type TestApp, testApp } from '../../../testing/http/app.ts'
import { ENGINES } from '../../../testing/services/services.ts'

describe.each(ENGINES)('the limits and the health under /api/cloud, on %s', (engine) => {
  let http: TestApp
  beforeAll(async () => {
    http = await testApp(engine)
  })
  afterAll(() => http.close())

  const get = async (path: string) => {
    const { status, body } = await http.call('GET', `/api/cloud${path}`)
    expect(status).toBe(200)
    return body
  }
  const limit = (body: object) => http.call('PUT', '/v1/quotas/local', { body })
  const submit = (body: object = {}) =>
    http.call('POST', '/api/cloud/jobs/submit', { body: { config_name_to_load: 'lora', ...body } })

  test('without limits everything is allowed', async () => {
    expect(await get('/metrics/cost-limit?provider=replicate')).toEqual({
      enabled: false,
      limit_amount: null,
      period: 'monthly',
      action: 'block',
      current_spend: 0,
      percent_used: 0,
      is_exceeded: false,
      is_warning: false,
      message: 'There is no cost limit',
    })
    const free = { user_id: 'local', statuses: [], can_submit: true, blocking_reasons: [] }
    expect(await get('/metrics/quota')).toEqual(free)
  })

  test('a limit is reported as far, near and reached', async () => {
    await limit({ max_concurrent: 5, cost_limit: 10, period: 'day' })
    const jobs = { quota_type: 'concurrent_jobs', limit: 5, action: 'block', source: 'user' }
    const cost = { quota_type: 'cost_daily', limit: 10, action: 'block', source: 'user' }
    await submit({ estimated_cost: 4 })
    const far = { is_exceeded: false, is_warning: false, message: null }
    expect(await get('/metrics/quota')).toEqual({
      user_id: 'local',
      statuses: [
        { ...jobs, current: 1, percent_used: 20, ...far },
        { ...cost, current: 4, percent_used: 40, ...far },
      ],
      can_submit: true,
      blocking_reasons: [],
    })
    for (const estimated_cost of [4.5, 0, 0]) await submit({ estimated_cost })
    expect(await get('/metrics/cost-limit')).toMatchObject({
      enabled: true,
      limit_amount: 10,
      period: 'daily',
      current_spend: 8.5,
      percent_used: 85,
      is_warning: true,
      is_exceeded: false,
      message: 'Cost limit nearly reached: 8.50 of 10.00 per day',
    })
    expect(await get('/metrics/quota')).toMatchObject({
      statuses: [{ current: 4, is_warning: true, message: '4 of 5 concurrent jobs in use' }, { is_warning: true }],
      can_submit: true,
    })
    await submit({ estimated_cost: 1.5 })
    const full = 'Quota exceeded: Maximum 5 concurrent jobs allowed'
    expect(await get('/metrics/quota')).toMatchObject({
      statuses: [
        { current: 5, percent_used: 100, is_exceeded: true, is_warning: false, message: full },
        { current: 10, is_exceeded: true, message: 'Cost limit exceeded: 10.00 of 10.00 per day' },
      ],
      can_submit: false,
      blocking_reasons: [full],
    })
    expect(await get('/metrics/cost-limit')).toMatchObject({ is_exceeded: true, percent_used: 100 })
    expect((await submit()).body).toMatchObject({ success: false, error: full })
  })

  test('a cost limit alone blocks only jobs with a cost', async () => {
    await limit({ cost_limit: 0 })
    expect(await get('/metrics/quota')).toMatchObject({ statuses: [{ is_exceeded: true }], can_submit: true })
    expect((await submit()).body).toMatchObject({ success: true })
    expect((await submit({ estimated_cost: 1 })).body).toMatchObject({ success: false })
  })

  test.each(['/metrics/status', '/health'])('%s reports the health of the server', async (path) => {
    expect(await get(path)).toEqual({
      status: 'healthy',
      version: '0.0.0-test',
      uptime_seconds: expect.any(Number),
      components: [{ name: 'database', status: 'healthy', message: 'The store answers' }],
      timestamp: expect.stringMatching(/Z$/),
    })
  })
})

test('the status is available while the store is down', async () => {
  const http = await testApp('sqlite', {
    alter: (services) => ({
      ...services,
      deps: {
        ...services.deps,
        store: { ...services.deps.store, health: () => Promise.reject(new Error('gone')) },
      },
    }),
  })
  try {
    await http.call('GET', '/api/cloud/jobs')
    expect(await http.call('GET', '/api/cloud/metrics/status')).toMatchObject({
      status: 200,
      body: {
        status: 'unhealthy',
        components: [{ name: 'database', status: 'unhealthy', message: 'The store cannot be reached' }],
      },
    })
  } finally {
    await http.close()
  }
})
