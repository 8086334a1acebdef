import type { ErrorBody, Page, QueueShape } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { queue as shape } from '../../contract/queues.ts'
import { type TestApp, testApp } from '../../testing/http/app.ts'
import { registeredWorker, type WorkerCalls } from '../../testing/http/worker-calls.ts'
import { ageJob, JOB, RESULT, submitZpe } from '../../testing/http/zpe.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { unique } from '../../testing/store/store.ts'

describe.each(ENGINES)('%s', (engine) => {
  let http: TestApp
  let worker: WorkerCalls
  beforeAll(async () => {
    http = await testApp(engine)
    worker = await registeredWorker(http)
  })
  afterAll(() => http.close())

  const submit = (queue: string, fields: object = {}) =>
    http.call('POST', '/v1/jobs', { body: { kind: 'work', queue, ...fields } })
  const put = (queue: string, body: object) => http.call('PUT', `/v1/queues/${queue}`, { body })
  const get = async (queue: string) => (await http.call('GET', `/v1/queues/${queue}`)).body

  test('a queue has its settings and the amount of work', async () => {
    const name = unique('queue')
    const empty = await get(name)
    expect(shape.parse(empty)).toEqual(empty)
    expect(empty).toMatchObject({ name, paused: false, max_concurrent: null, ready: 0, oldest_ready_seconds: null })
    for (const fields of [{}, {}, { delay_seconds: 60 }]) await submit(name, fields)
    await worker.lease(name)
    expect(await get(name)).toMatchObject({
      ready: 1,
      delayed: 1,
      running: 1,
      oldest_ready_seconds: expect.any(Number),
    })
    const { data } = (await http.call('GET', '/v1/queues')).body as { data: { name: string }[] }
    expect(data.find((queue) => queue.name === name)).toMatchObject({ ready: 1, delayed: 1, running: 1 })
    expect(data.map((queue) => queue.name)).toEqual(data.map((queue) => queue.name).toSorted())
  })

  test('the list has pages by name, with each queue once', async () => {
    const prefix = unique('paged')
    const names = Array.from({ length: 5 }, (_, i) => `${prefix}-${i}`)
    // Some have settings, some have work, some both.
    for (const [i, name] of names.entries()) await (i % 2 ? put(name, { max_concurrent: 3 }) : submit(name))
    await submit(names[1] ?? '')
    const seen: string[] = []
    let cursor: string | null = null
    do {
      const query = `limit=2${cursor === null ? '' : `&cursor=${cursor}`}`
      const { body } = await http.call('GET', `/v1/queues?${query}`)
      const page = body as Page<QueueShape>
      expect(page.data.length).toBeLessThanOrEqual(2)
      seen.push(...page.data.map(({ name }) => name))
      cursor = page.next_cursor
    } while (cursor !== null)
    expect(seen).toEqual([...new Set(seen)].toSorted())
    expect(seen.filter((name) => name.startsWith(prefix))).toEqual(names)
    for (const wrong of ['limit=201', 'limit=0', 'cursor=queues', 'after=x']) {
      expect((await http.call('GET', `/v1/queues?${wrong}`)).status).toBe(400)
    }
  })

  test('a failure with a fatal code is not retried, and a bad list is refused', async () => {
    const name = unique('queue')
    expect((await put(name, { fatal_error_codes: ['BAD_INPUT'] })).body).toMatchObject({
      fatal_error_codes: ['BAD_INPUT'],
    })
    for (const [code, dead] of [
      ['BAD_INPUT', true],
      ['OUT_OF_MEMORY', false],
    ] as const) {
      await submit(name)
      const [lease] = await worker.lease(name, { start: true })
      const body = { error_code: code, error_message: '' }
      expect((await worker.post(`/v1/leases/${lease?.lease_id}/failed`, body)).body).toMatchObject({ dead })
    }
    for (const wrong of [[''], [7], 'BAD_INPUT']) {
      const field = typeof wrong === 'string' ? 'fatal_error_codes' : 'fatal_error_codes.0'
      expect(await put(name, { fatal_error_codes: wrong })).toMatchObject({
        status: 400,
        body: { error: { details: { field } } },
      })
    }
    expect((await put(name, { fatal_error_codes: null })).body).toMatchObject({ fatal_error_codes: null })
  })

  test('workers obey pause and limit, and a waiting one is woken when there is room', async () => {
    const name = unique('queue')
    for (let i = 0; i < 4; i++) await submit(name)
    expect((await put(name, { paused: true })).body).toMatchObject({ paused: true, paused_at: expect.any(String) })
    expect(await worker.lease(name)).toEqual([])
    const waiting = worker.lease(name, { wait_seconds: 30 })
    expect((await put(name, { paused: false, max_concurrent: 1 })).body).toMatchObject({
      paused: false,
      max_concurrent: 1,
    })
    const [lease] = await waiting
    expect(await worker.lease(name, { max: 5 })).toEqual([])
    const next = worker.lease(name, { wait_seconds: 30 })
    await worker.post(`/v1/leases/${lease?.lease_id}/release`)
    expect(await next, 'there is room again').toHaveLength(1)
    const second = worker.lease(name, { wait_seconds: 30 })
    await put(name, { max_concurrent: 2, lease_ttl_seconds: 33, continuation_seconds: 44 })
    expect(await second).toMatchObject([{ lease_ttl_seconds: 33, continuation_seconds: 44 }])
    expect(lease).toMatchObject({ lease_ttl_seconds: 60, continuation_seconds: 60 })
    expect((await put(name, { max_concurrent: null })).body).toMatchObject({
      max_concurrent: null,
      lease_ttl_seconds: 33,
    })
  })

  test('after result_ttl_seconds status, result and files are 404 in every contract', async () => {
    const { store } = http.services.deps
    const seconds = 3600
    for (const name of ['zpe', 'cloud.lab']) await put(name, { result_ttl_seconds: seconds })
    const zpe = await submitZpe(http, JOB, { headers: { 'idempotency-key': 'zpe-key' } })
    const cloud = () =>
      http.call('POST', '/api/cloud/jobs/submit?provider=lab', {
        body: { config_name_to_load: 'c', idempotency_key: 'cloud-key' },
      })
    const { job_id: trained } = (await cloud()).body as { job_id: string }
    for (const [queue, result] of [
      ['zpe', RESULT],
      ['cloud.lab', { result: 1 }],
    ] as const) {
      const [lease] = await worker.lease(queue, { start: true, start_id: 's' })
      expect((await worker.post(`/v1/leases/${lease?.lease_id}/result`, result)).status).toBe(200)
    }
    const paths = [
      `/calc/zpe/jobs/${zpe}`,
      `/calc/zpe/jobs/${zpe}/result`,
      `/calc/zpe/jobs/${zpe}/files?kind=summary`,
      `/calc/zpe/jobs/${zpe}/files?kind=freqs`,
      `/v1/jobs/${zpe}`,
      `/v1/jobs/${zpe}/result`,
      `/v1/jobs/${zpe}/artifacts`,
      `/v1/jobs/${zpe}/logs`,
      `/api/cloud/jobs/${trained}`,
      `/v1/jobs/${trained}`,
    ]
    const statuses = () => Promise.all(paths.map(async (path) => [path, (await http.call('GET', path)).status]))
    for (const id of [zpe, trained]) await ageJob(store, id, (seconds - 60) * 1000)
    expect(await statuses()).toEqual(paths.map((path) => [path, 200]))
    for (const id of [zpe, trained]) await ageJob(store, id, 60_000)
    expect(await statuses()).toEqual(paths.map((path) => [path, 404]))
    const listed = (await http.call('GET', '/api/cloud/jobs?provider=lab')).body
    expect(listed).toMatchObject({ jobs: [] })

    // The keys still name their jobs.
    expect(await submitZpe(http, JOB, { headers: { 'idempotency-key': 'zpe-key' } })).toBe(zpe)
    expect((await cloud()).body).toMatchObject({ success: true, job_id: trained, idempotent_hit: true, status: null })
    await put('zpe', { result_ttl_seconds: 0 })
    expect((await http.call('GET', `/calc/zpe/jobs/${zpe}/result`)).status).toBe(200)
  })

  test.each<[string, object, string | RegExp]>([
    ['a negative time for results', { result_ttl_seconds: -1 }, 'result_ttl_seconds must be at least 0'],
    ['an unknown field', { pause: true }, 'Unknown field: pause'],
    ['a limit of 0', { max_concurrent: 0 }, 'max_concurrent must be at least 1'],
    ['a lease time of 0', { lease_ttl_seconds: 0 }, 'lease_ttl_seconds must be at least 1'],
    ['a pause that is no yes or no', { paused: 'yes' }, 'paused must be true or false'],
  ])('refused: %s', async (_, body, message) => {
    const answer = await put('q', body)
    expect(answer.status).toBe(400)
    expect((answer.body as ErrorBody).error.message).toMatch(message)
  })

  test('a bad name is not found', async () => {
    expect((await http.call('GET', '/v1/queues/a%20b')).status).toBe(404)
  })
})

test('only operators set a queue, and only readers of all see it', async () => {
  const http = await testApp('sqlite')
  const tokens = { viewer: '', submitter: '', operator: '' }
  for (const role of ['viewer', 'submitter', 'operator'] as const) tokens[role] = await http.token(role, role)
  const put = (token: string) => http.call('PUT', '/v1/queues/q', { body: { paused: true }, token })
  expect((await put(tokens.viewer)).status).toBe(403)
  expect((await put(tokens.submitter)).status).toBe(403)
  expect((await put(tokens.operator)).status).toBe(200)
  expect((await http.call('GET', '/v1/queues/q', { token: tokens.submitter })).status).toBe(403)
  expect((await http.call('GET', '/v1/queues', { token: tokens.viewer })).status).toBe(200)
  await http.close()
})
