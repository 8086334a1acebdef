import { randomUUID } from 'node:crypto'
import type { JobDetail } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Answer, type TestApp, testApp } from '../../../testing/http/app.ts'
import { finish, lease, WORKER } from '../../../testing/http/cloud-worker.ts'
import { ENGINES } from '../../../testing/services/services.ts'
import type { CloudAnswer, CloudError, CloudJob } from './shapes.ts'

const SUBMIT = '/api/cloud/jobs/submit?provider=replicate'

const said = (answer: Answer) => answer.body as CloudAnswer
const jobId = (answer: Answer) => said(answer).job_id ?? ''
const fieldOf = (answer: Answer) => (answer.body as CloudError).details.field

describe.each(ENGINES)('cloud jobs on %s', (engine) => {
  let http: TestApp
  beforeAll(async () => {
    http = await testApp(engine)
  })
  afterAll(() => http.close())

  const post = (path: string, body?: unknown) => http.call('POST', path, { body })
  const submit = (body: object) => post(SUBMIT, { config_name_to_load: 'lora', ...body })

  test('are listed newest first, by provider and status, page by page', async () => {
    const path = '/api/cloud/jobs/submit?provider=list'
    const made: string[] = []
    for (let i = 0; i < 3; i++) made.unshift(jobId(await post(path, { config_name_to_load: `c${i}` })))
    const list = async (query: string) =>
      (await http.call('GET', `/api/cloud/jobs?provider=list${query}`)).body as {
        jobs: CloudJob[]
        total: number
        next_cursor: string | null
      }
    const all = await list('')
    expect(all.jobs.map((job) => job.job_id)).toEqual(made)
    expect(all).toMatchObject({ total: 3, next_cursor: null })
    expect(all.jobs[0]).toMatchObject({
      job_type: 'cloud',
      provider: 'list',
      config_name: 'c2',
      status: 'queued',
      user_id: 'local',
      started_at: null,
      completed_at: null,
      error_message: null,
    })

    const { lease_id } = await lease(http, 'cloud.list')
    const ids = async (query: string) => (await list(query)).jobs.map((job) => job.job_id)
    expect(await ids('&status=running')).toEqual([made[2]])
    expect(await ids('&status=queued')).toEqual([made[0], made[1]])
    expect(await ids('&status=uploading')).toEqual([])
    expect(await ids('&status=pending')).toEqual([])
    await http.services.runs.finish(WORKER, lease_id, {
      verb: 'fail',
      error: { code: 'OOM', message: 'out of memory' },
      retryable: true,
    })
    expect(await ids('&status=pending')).toEqual([made[2]])

    const page = await list('&limit=2')
    expect(page.jobs.map((job) => job.job_id)).toEqual(made.slice(0, 2))
    expect(await ids(`&limit=2&cursor=${page.next_cursor}`)).toEqual(made.slice(2))
  })

  test('a list accepts the parameters of real clients, and refuses misleading ones', async () => {
    const list = (query: string) => http.call('GET', `/api/cloud/jobs?${query}`)
    expect(await list('job_type=cloud&sync_active=true&offset=0&limit=500')).toMatchObject({ status: 200 })
    expect(await list('job_type=local')).toMatchObject({ status: 200, body: { jobs: [], total: 0 } })
    for (const [query, field] of [
      ['offset=-1', 'offset'],
      ['offset=10001', 'offset'],
      ['offset=1&cursor=x', 'offset'],
      ['limit=501', 'limit'],
      ['job_type=remote', 'job_type'],
      ['status=done', 'status'],
      ['limit=0', 'limit'],
      ['provider=a%20b', 'provider'],
      ['cursor=x', 'cursor'],
    ] as const) {
      const answer = await list(query)
      expect(answer.status).toBe(400)
      expect(fieldOf(answer)).toBe(field)
    }
  })

  test('a cloud job is shown, and another job is not found', async () => {
    const id = jobId(await submit({ config_name_to_load: 'shown' }))
    const { status, body } = await http.call('GET', `/api/cloud/jobs/${id}`)
    expect({ status, body }).toMatchObject({ status: 200, body: { job: { job_id: id, config_name: 'shown' } } })
    const { body: native } = await post('/v1/jobs', { kind: 'work' })
    const { job_id } = native as { job_id: string }
    for (const other of [job_id, randomUUID(), 'xyz789abc']) {
      const answer = await http.call('GET', `/api/cloud/jobs/${other}`)
      expect(answer).toMatchObject({ status: 404, body: { success: false, code: 'NOT_FOUND' } })
      expect(await post(`/api/cloud/jobs/${other}/cancel`)).toMatchObject({ status: 404 })
    }
    expect((await http.call('GET', `/v1/jobs/${job_id}`)).body as JobDetail).toMatchObject({ state: 'PENDING' })
  })

  test('a waiting job is cancelled, also twice, and an ended one is not', async () => {
    const path = '/api/cloud/jobs/submit?provider=cancel'
    const waiting = jobId(await post(path, { config_name_to_load: 'a' }))
    for (let i = 0; i < 2; i++) {
      expect(await post(`/api/cloud/jobs/${waiting}/cancel`)).toMatchObject({
        status: 200,
        body: { success: true, job_id: waiting, status: 'cancelled', error: null },
      })
    }
    const ended = jobId(await post(path, { config_name_to_load: 'b' }))
    const { lease_id } = await lease(http, 'cloud.cancel')
    await finish(http, lease_id)
    expect(await post(`/api/cloud/jobs/${ended}/cancel`)).toMatchObject({
      status: 200,
      body: { success: false, job_id: ended, status: 'completed', error: expect.stringContaining(ended) },
    })
  })
})

describe.each(ENGINES)('limits and callers of compat/cloud on %s', (engine) => {
  let http: TestApp
  beforeAll(async () => {
    http = await testApp(engine)
  })
  afterAll(() => http.close())

  test('quota and cost refusals are a 200 with an error, and store nothing', async () => {
    const submit = (body: object = {}) => http.call('POST', SUBMIT, { body: { config_name_to_load: 'lora', ...body } })
    await http.call('PUT', '/v1/quotas/local', { body: { max_concurrent: 2, cost_limit: 10 } })
    expect(said(await submit({ estimated_cost: 9 }))).toMatchObject({
      success: true,
      quota_warnings: [],
      cost_limit_warning: expect.stringContaining('90 %'),
    })
    const cost = await submit({ estimated_cost: 2, idempotency_key: 'dear' })
    expect(cost).toMatchObject({ status: 200, body: { success: false, error: expect.stringMatching(/^Cost limit/) } })
    const warned = said(await submit())
    expect(warned).toMatchObject({ success: true, quota_warnings: [expect.stringContaining('2 of 2')] })
    const full = await submit({ idempotency_key: 'full' })
    expect(full).toMatchObject({
      status: 200,
      body: { success: false, job_id: null, error: 'Quota exceeded: Maximum 2 concurrent jobs allowed' },
    })

    await http.call('POST', `/api/cloud/jobs/${warned.job_id}/cancel`)
    expect(said(await submit({ idempotency_key: 'full' }))).toMatchObject({ success: true, idempotent_hit: false })
    await http.call('PUT', '/v1/quotas/local', { body: {} })
  })

  test('each role may do what it should', async () => {
    const [viewer, mine, other] = [
      await http.token('eve', 'viewer'),
      await http.token('ann', 'submitter'),
      await http.token('bob', 'submitter'),
    ]
    const body = { config_name_to_load: 'lora', idempotency_key: 'shared' }
    expect(await http.call('POST', SUBMIT, { body })).toMatchObject({ status: 401 })
    expect(await http.call('POST', SUBMIT, { body, token: viewer })).toMatchObject({ status: 403 })
    const first = await http.call('POST', SUBMIT, { body, token: mine })
    const second = await http.call('POST', SUBMIT, { body, token: other })
    expect([first, second].map((answer) => said(answer).idempotent_hit)).toEqual([false, false])

    const listed = async (token: string) => {
      const answer = await http.call('GET', '/api/cloud/jobs', { token })
      return (answer.body as { jobs: CloudJob[] }).jobs.map((job) => job.job_id)
    }
    expect(await listed(mine)).toEqual([jobId(first)])
    expect(await listed(other)).toEqual([jobId(second)])
    expect(await http.call('GET', `/api/cloud/jobs/${jobId(first)}`, { token: other })).toMatchObject({ status: 404 })
    const cancel = (token: string) => http.call('POST', `/api/cloud/jobs/${jobId(first)}/cancel`, { token })
    expect(await cancel(other)).toMatchObject({ status: 404 })
    expect(await cancel(viewer)).toMatchObject({ status: 403 })
    expect(await cancel(mine)).toMatchObject({ status: 200, body: { success: true, status: 'cancelled' } })
  })
})
