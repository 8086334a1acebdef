import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Answer, TestApp } from '../../../testing/http/app.ts'
import { finish, lease, WORKER } from '../../../testing/http/cloud-worker.ts'
import { artifactApp } from '../../../testing/services/artifacts.ts'
import { ENGINES } from '../../../testing/services/services.ts'
import { sql } from '../../../testing/store/store.ts'
import { CLOUD_STATUSES, type CloudAnswer, type CloudJob } from './shapes.ts'

interface List {
  jobs: CloudJob[]
  total: number
  total_capped: boolean
  next_cursor: string | null
}

describe.each(ENGINES)('the list of cloud jobs on %s', (engine) => {
  let http: TestApp
  beforeAll(async () => {
    http = await artifactApp(engine)
  })
  afterAll(() => http.close())

  const list = async (query: string) => (await http.call('GET', `/api/cloud/jobs?${query}`)).body as List
  const ids = ({ jobs }: List) => jobs.map((job) => job.job_id)
  async function submit(provider: string, body: object = {}): Promise<string> {
    const path = `/api/cloud/jobs/submit?provider=${provider}`
    const answer: Answer = await http.call('POST', path, { body: { config_name_to_load: 'lora', ...body } })
    return (answer.body as CloudAnswer).job_id ?? ''
  }
  async function submitMany(provider: string, count: number): Promise<string[]> {
    const made: string[] = []
    for (let i = 0; i < count; i++) made.unshift(await submit(provider))
    return made
  }

  test('finds a job by status behind more than a page of other jobs', async () => {
    const uploading = await submit('behind', { artifacts: [{ name: 'a' }] })
    await submitMany('behind', 21)
    for (const provider of ['&provider=behind', '']) {
      const found = await list(`status=uploading&limit=20${provider}`)
      expect(found).toMatchObject({ total: 1, next_cursor: null, jobs: [{ job_id: uploading, status: 'uploading' }] })
    }
    expect(await list('status=queued&limit=20&provider=behind')).toMatchObject({ total: 21 })
  })

  test('has the true total on every page, by offset and by cursor', async () => {
    const made = await submitMany('pages', 7)
    await http.call('POST', '/v1/jobs', { body: { kind: 'work', queue: 'cloud.pages' } })
    for (const [query, slice] of [
      ['limit=3', [0, 3]],
      ['limit=3&offset=3', [3, 6]],
      ['limit=3&offset=6', [6, 7]],
      ['limit=3&offset=7', [7, 7]],
      ['limit=3&offset=90', [7, 7]],
      ['limit=500', [0, 7]],
    ] as const) {
      const page = await list(`provider=pages&${query}`)
      expect(ids(page), query).toEqual(made.slice(...slice))
      expect(page, query).toMatchObject({ total: 7, total_capped: false })
    }
    const first = await list('provider=pages&limit=4')
    const second = await list(`provider=pages&limit=4&cursor=${first.next_cursor}`)
    expect([...ids(first), ...ids(second)]).toEqual(made)
    expect(second).toMatchObject({ total: 7, next_cursor: null })
    const from3 = await list('provider=pages&limit=2&offset=3')
    expect(ids(await list(`provider=pages&limit=2&cursor=${from3.next_cursor}`))).toEqual(made.slice(5))
  })

  test('shows each job under the one status that it has', async () => {
    const delayed = await submit('each')
    const { lease_id } = await lease(http, 'cloud.each')
    const error = { code: 'OOM', message: 'out of memory' }
    await http.services.runs.finish(WORKER, lease_id, { verb: 'fail', error, retryable: true })
    const failed = await submit('each')
    const parked = await lease(http, 'cloud.each')
    await http.services.runs.finish(WORKER, parked.lease_id, { verb: 'fail', error, retryable: false })
    const completed = await submit('each')
    await finish(http, (await lease(http, 'cloud.each')).lease_id)
    const running = await submit('each')
    await lease(http, 'cloud.each')
    const uploading = await submit('each', { artifacts: [{ name: 'a' }] })
    const cancelled = await submit('each')
    await http.call('POST', `/api/cloud/jobs/${cancelled}/cancel`)
    const queued = await submit('each')

    const expected = { pending: delayed, uploading, queued, running, completed, failed, cancelled }
    const all = (await list('provider=each')).jobs
    expect(Object.fromEntries(all.map((job) => [job.status, job.job_id]))).toEqual(expected)
    for (const status of CLOUD_STATUSES) {
      const page = await list(`provider=each&status=${status}`)
      expect(page, status).toMatchObject({ total: 1, jobs: [{ job_id: expected[status], status }] })
    }
    expect(all.find((job) => job.job_id === failed)?.error_message).toBe('out of memory')

    // When it is due, promoted or not, the delayed job waits only for a worker.
    await sql(
      http.services.deps.store,
      'UPDATE ichido.runs SET run_at = now_ms() - 1 WHERE job_id = $1 AND latest',
      delayed,
    )
    expect(await list('provider=each&status=pending')).toMatchObject({ total: 0 })
    expect(ids(await list('provider=each&status=queued'))).toEqual([queued, delayed])
  })

  test('has the duration and the cost of a job', async () => {
    const id = await submit('cost', { estimated_cost: 2 })
    const show = async () => ((await http.call('GET', `/api/cloud/jobs/${id}`)).body as { job: CloudJob }).job
    expect(await show()).toMatchObject({ duration_seconds: null, cost_usd: null, error_message: null })
    const { lease_id } = await lease(http, 'cloud.cost')
    expect((await show()).duration_seconds).toBeGreaterThanOrEqual(0)
    const store = http.services.deps.store
    await sql(store, 'UPDATE ichido.runs SET started_at = started_at - 90500 WHERE job_id = $1', id)
    expect((await show()).duration_seconds).toBeGreaterThanOrEqual(90)
    await http.services.runs.finish(WORKER, lease_id, {
      verb: 'finish',
      result: 'null',
      summaryText: null,
      freqsCsv: null,
      meta: null,
      costMicros: 1_250_000,
    })
    await sql(store, 'UPDATE ichido.runs SET finished_at = started_at + 90500 WHERE job_id = $1', id)
    expect(await show()).toMatchObject({ status: 'completed', duration_seconds: 90.5, cost_usd: 1.25 })
    expect((await list('provider=cost')).jobs).toEqual([await show()])
  })

  test('counts only jobs that the caller may see', async () => {
    const [ann, bob] = [await http.token('ann', 'submitter'), await http.token('bob', 'submitter')]
    const path = '/api/cloud/jobs/submit?provider=own'
    for (let i = 0; i < 3; i++) await http.call('POST', path, { body: { config_name_to_load: 'a' }, token: ann })
    const totals = async (query: string, token: string) =>
      ((await http.call('GET', `/api/cloud/jobs?limit=1&${query}`, { token })).body as List).total
    expect(await totals('provider=own', ann)).toBe(3)
    expect(await totals('', ann)).toBe(3)
    expect(await totals('status=queued', ann)).toBe(3)
    expect(await totals('', bob)).toBe(0)
  })
})
