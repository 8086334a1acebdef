import type { ErrorBody, SubmitResponse } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type TestApp, testApp } from '../../testing/http/app.ts'
import { ENGINES } from '../../testing/services/services.ts'

interface Item {
  status: number
  replayed: boolean
  body?: SubmitResponse
  error?: ErrorBody['error']
}

describe.each(ENGINES)('batches on %s', (engine) => {
  let http: TestApp
  beforeAll(async () => {
    http = await testApp(engine)
  })
  afterAll(() => http.close())

  async function submit(jobs: unknown[]): Promise<Item[]> {
    const answer = await http.call('POST', '/v1/jobs/batch', { body: { jobs } })
    expect(answer).toMatchObject({ status: 200 })
    return (answer.body as { data: Item[] }).data
  }

  const total = async () => Object.values(await http.services.jobs.counts('all')).reduce((sum, n) => sum + n, 0)

  test('1,000 jobs are accepted in their order, and replayed alike', async () => {
    const jobs = Array.from({ length: 1_000 }, (_, i) => ({ kind: `k${i}`, idempotency_key: `batch-${i}` }))
    const first = await submit(jobs)
    expect(first.map(({ body }) => body?.kind)).toEqual(jobs.map(({ kind }) => kind))
    expect(new Set(first.map(({ body }) => body?.job_id)).size).toBe(1_000)
    expect(first.every(({ status, replayed }) => status === 201 && !replayed)).toBe(true)
    const second = await submit(jobs)
    expect(second).toEqual(first.map((item) => ({ ...item, replayed: true })))
    expect(await total()).toBe(1_000)
  })

  test('1,001 jobs are refused as a whole', async () => {
    const before = await total()
    const jobs = Array.from({ length: 1_001 }, () => ({ kind: 'work' }))
    const answer = await http.call('POST', '/v1/jobs/batch', { body: { jobs } })
    expect(answer).toMatchObject({ status: 400, body: { error: { message: 'jobs must have at most 1000 entries' } } })
    expect(await total()).toBe(before)
  })

  test('a refused job does not affect the others', async () => {
    const before = await total()
    const outcomes = await submit([
      { kind: 'good', idempotency_key: 'mixed-1' },
      { kind: 'bad kind' },
      'not a job',
      null,
      { kind: 'good', idempotency_key: 'a b' },
      { kind: 'other', idempotency_key: 'mixed-1' },
      { kind: 'good', idempotency_key: 'mixed-1' },
      { kind: 'good', payload: 'x'.repeat(1024 * 1024) },
      { kind: 'good', run_at: '2001-01-01T00:00:00Z' },
      { kind: 'good', reservation_id: '01900000-0000-7000-8000-000000000000' },
      { kind: 'good' },
    ])
    expect(outcomes.map(({ status, replayed, error }) => [status, replayed, error?.code])).toEqual([
      [201, false, undefined],
      [400, false, 'INVALID_PAYLOAD'],
      [400, false, 'INVALID_PAYLOAD'],
      [400, false, 'INVALID_PAYLOAD'],
      [400, false, 'INVALID_PAYLOAD'],
      [409, false, 'IDEMPOTENCY_KEY_REUSED'],
      [201, true, undefined],
      [413, false, 'PAYLOAD_TOO_LARGE'],
      [400, false, 'INVALID_PAYLOAD'],
      [409, false, 'RESERVATION_NOT_ACTIVE'],
      [201, false, undefined],
    ])
    expect(outcomes[6]?.body).toEqual(outcomes[0]?.body)
    expect(await total()).toBe(before + 2)
  })

  test('a batch does not exceed a quota', async () => {
    await http.call('PUT', '/v1/quotas/local', { body: { max_concurrent: (await total()) + 3 } })
    const outcomes = await submit(Array.from({ length: 10 }, () => ({ kind: 'work' })))
    expect(outcomes.filter(({ status }) => status === 201)).toHaveLength(3)
    const refused = outcomes.filter(({ error }) => error?.code === 'QUOTA_EXCEEDED')
    expect(refused).toHaveLength(7)
    expect(refused[0]?.error?.message).toMatch(/^Quota exceeded: Maximum \d+ concurrent jobs allowed$/)
    await http.call('DELETE', '/v1/quotas/local')
  })

  test('a key for the whole batch is refused', async () => {
    const call = { body: { jobs: [{ kind: 'work' }] }, headers: { 'idempotency-key': 'k' } }
    const answer = await http.call('POST', '/v1/jobs/batch', call)
    expect(answer).toMatchObject({
      status: 400,
      body: { error: { message: expect.stringContaining('idempotency_key') } },
    })
  })
})
