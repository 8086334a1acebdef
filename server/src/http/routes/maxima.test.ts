import type { BackfillShape, ErrorBody, LeaseShape, RedriveShape } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import { type Answer, type TestApp, testApp } from '../../testing/http/app.ts'
import { metric } from '../../testing/http/event-streams.ts'
import { registeredWorker } from '../../testing/http/worker-calls.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { unique } from '../../testing/store/store.ts'

const errorOf = ({ body }: Answer) => (body as ErrorBody).error

describe.each(ENGINES)('maxima of one user on %s', (engine) => {
  let http: TestApp
  beforeAll(async () => {
    http = await testApp(engine)
  })
  afterAll(() => http.close())

  test('running redrives and backfills share a maximum', async () => {
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
          'local has 2 operations and backfills running, which is the maximum; wait until one has ended, abort one, or have an ' +
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
  test('a worker gets the leases that are left, and then a refusal', async () => {
    await http.services.settings.put(LOCAL_ADMIN, 'leases_per_worker_max', 3)
    const worker = await registeredWorker(http)
    const queue = unique('queue')
    const jobs = Array.from({ length: 6 }, () => ({ kind: 'work', queue }))
    await http.call('POST', '/v1/jobs/batch', { body: { jobs } })
    const [first] = await worker.lease(queue, { max: 2, start: true })
    const poll = { queues: [queue], max: 5, wait_seconds: 20, poll_id: 'second' }
    const second = await worker.post('/v1/leases', poll)
    expect((second.body as { leases: LeaseShape[] }).leases).toHaveLength(1)
    const refused = await worker.post('/v1/leases', { queues: [queue], wait_seconds: 20 })
    expect(refused).toMatchObject({ status: 429, headers: { 'retry-after': '5' } })
    expect(errorOf(refused)).toMatchObject({
      message:
        `${worker.workerId} holds 3 leases or has asked for them, which is the maximum; finish or release some, or ` +
        'have an admin raise the setting leases_per_worker_max',
      details: { setting: 'leases_per_worker_max', max: 3 },
    })
    // A lost answer can be repeated.
    expect((await worker.post('/v1/leases', poll)).body).toMatchObject(second.body as object)
    // A report counts even if the worker may hold no more leases.
    const report = (leaseId = '') => worker.post(`/v1/leases/${leaseId}/result`, { next: { queues: [queue], max: 3 } })
    const reported = await report(first?.lease_id)
    expect(reported).toMatchObject({ status: 200, body: { repeated: false, leases: [{}] } })
    expect(await report(first?.lease_id)).toMatchObject({ status: 200, body: { repeated: true, leases: [] } })
    const other = await registeredWorker(http)
    expect(await other.lease(queue, { max: 5 })).toHaveLength(2)
  })

  test('concurrent polls of a worker do not exceed the maximum', async () => {
    await http.services.settings.put(LOCAL_ADMIN, 'leases_per_worker_max', 10)
    const worker = await registeredWorker(http)
    const queue = unique('queue')
    const jobs = Array.from({ length: 50 }, () => ({ kind: 'work', queue }))
    await http.call('POST', '/v1/jobs/batch', { body: { jobs } })
    const ask = () => worker.post('/v1/leases', { queues: [queue], max: 4, wait_seconds: 0 })
    const held = (answers: Answer[]) =>
      answers.flatMap(({ body }) => (body as { leases?: LeaseShape[] } | undefined)?.leases ?? [])
    const answers = await Promise.all(Array.from({ length: 12 }, ask))
    expect(held(answers)).toHaveLength(10)
    expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([200, 429]))
    // Only an ended operation makes room, however often the call comes.
    for (const { lease_id } of held(answers).slice(0, 3)) await worker.post(`/v1/leases/${lease_id}/release`)
    expect(held(await Promise.all([ask(), ask()]))).toHaveLength(3)
  })
  test('a new queue, domain or label beyond the maximum is refused', async () => {
    const names = { queues_per_user_max: 2, domains_per_user_max: 3, labels_per_user_max: 1 }
    for (const [name, value] of Object.entries(names)) await http.services.settings.put(LOCAL_ADMIN, name, value)
    const [amy, bob] = [await http.token(unique('amy'), 'operator'), await http.token(unique('bob'), 'submitter')]
    const submit = (token: string, body: object) =>
      http.call('POST', '/v1/jobs', { token, body: { kind: 'a', ...body } })
    const accepted = [
      { queue: 'q1', labels: { env: 'x' } },
      { queue: 'q2', labels: { env: 'y' } },
      { queue: 'q1', domain: 'd1' },
      { queue: 'q1', kind: 'b' },
      { queue: 'q1', idempotency_key: unique('key') },
    ]
    for (const body of accepted) expect((await submit(amy, body)).status).toBe(201)
    const tooMany = [
      [{ queue: 'q3' }, 'queue', 'q3', 'queues_per_user_max', 2],
      [{ queue: 'q1', kind: 'c' }, 'domain', 'c', 'domains_per_user_max', 3],
      [{ queue: 'q1', labels: { env: 'x', team: 'x' } }, 'label', 'team', 'labels_per_user_max', 1],
    ] as const
    for (const [body, sort, name, setting, max] of tooMany) {
      const refused = await submit(amy, body)
      expect(refused.status).toBe(409)
      expect(errorOf(refused)).toMatchObject({
        code: 'MAXIMUM_REACHED',
        message:
          `The ${sort} ${name} would exceed the maximum of ${max} that one user may name in a day; use a ${sort} that you ` +
          `have used before, or have an admin raise the setting ${setting}`,
        details: { setting, max },
      })
    }
    // A definition counts for its owner, a batch counts by item, and a refused name takes no place.
    const definition = unique('definition')
    const define = (method: string, path: string, body: object) =>
      http.call(method, path, { token: amy, body: { kind: 'a', queue: 'q1', ...body } })
    expect((await define('POST', '/v1/definitions', { name: definition, queue: 'q3' })).status).toBe(409)
    expect((await define('POST', '/v1/definitions', { name: definition })).status).toBe(201)
    expect((await define('PUT', `/v1/definitions/${definition}`, { queue: 'q3' })).status).toBe(409)
    const jobs = ['q1', 'q3', 'q2', 'q1'].map((queue) => ({ kind: 'a', queue }))
    const batch = (token: string) => http.call('POST', '/v1/jobs/batch', { token, body: { jobs } })
    const statuses = async (token: string) =>
      ((await batch(token)).body as { data: { status: number }[] }).data.map(({ status }) => status)
    expect(await statuses(amy)).toEqual([201, 409, 201, 201])
    // A node may store a batch in two parts at once, so either new queue can be refused.
    const [known, ...others] = await statuses(bob)
    expect([known, ...others.sort()]).toEqual([201, 201, 201, 409])
    for (const body of accepted) expect((await submit(amy, body)).status).toBe(201)
    await http.services.settings.put(LOCAL_ADMIN, 'queues_per_user_max', 3)
    expect((await submit(amy, { queue: 'q3' })).status).toBe(201)
  })
})
