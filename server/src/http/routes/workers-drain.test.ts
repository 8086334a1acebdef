import type { ErrorBody, LeaseShape, RegisteredShape, WorkerShape } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import { type Answer, type TestApp, testApp } from '../../testing/http/app.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { registered } from '../../testing/services/workers.ts'
import { sql, unique, until } from '../../testing/store/store.ts'

const code = (answer: Answer) => (answer.body as ErrorBody).error.code

describe.each(ENGINES)('draining a worker over HTTP on %s', (engine) => {
  let http: TestApp
  beforeAll(async () => {
    http = await testApp(engine)
  })
  afterAll(() => http.close())

  interface Known extends RegisteredShape {
    queue: string
  }
  async function newWorker(queue = unique('q')): Promise<Known> {
    return { ...(await registered(http.services, { queues: [queue] })), queue }
  }
  const post = (path: string, { worker_token: token }: Known, body: object = {}) =>
    http.call('POST', path, { token, body })
  const submit = async (queue: string): Promise<string> => {
    const body = { kind: 'work', queue }
    return ((await http.call('POST', '/v1/jobs', { body })).body as { job_id: string }).job_id
  }
  const lease = (worker: Known) => post('/v1/leases', worker, { queues: [worker.queue], start: true, wait_seconds: 0 })
  const change = async ({ worker_id }: Known, verb: string) =>
    (await http.call('POST', `/v1/workers/${worker_id}/${verb}`)) as Answer & { body: WorkerShape }
  const why = async (jobId: string) => (await http.services.jobs.get(LOCAL_ADMIN, jobId)).waiting_for

  test('it keeps what it holds to the end, and gets nothing new until it is resumed', async () => {
    const worker = await newWorker()
    const [held, waiting] = [await submit(worker.queue), await submit(worker.queue)]
    const [run] = ((await lease(worker)).body as { leases: [LeaseShape] }).leases
    const drained = await change(worker, 'drain')
    expect(drained).toMatchObject({
      status: 200,
      body: {
        worker_id: worker.worker_id,
        state: 'online',
        draining_since: expect.stringMatching(/Z$/),
        live_leases: 1,
        holds: [
          {
            job_id: held,
            kind: 'work',
            queue: worker.queue,
            attempt: 1,
            assigned_at: expect.stringMatching(/Z$/),
            started_at: expect.stringMatching(/Z$/),
          },
        ],
      },
    })
    expect((await change(worker, 'drain')).body.draining_since).toBe(drained.body.draining_since)
    expect(await lease(worker)).toMatchObject({ status: 200, body: { leases: [], draining: true } })

    const of = `/v1/leases/${run.lease_id}`
    expect((await post(`${of}/heartbeat`, worker)).status).toBe(200)
    const events = [{ stage: 'progress', seq: 0, data: 1 }]
    expect((await post(`${of}/events`, worker, { events })).status).toBe(200)
    const next = { queues: [worker.queue] }
    expect(await post(`${of}/result`, worker, { result: 1, next })).toMatchObject({
      status: 200,
      body: { state: 'SUCCEEDED', leases: [] },
    })
    expect(await http.call('GET', `/v1/workers/${worker.worker_id}`)).toMatchObject({
      body: { live_leases: 0, holds: [], draining_since: drained.body.draining_since },
    })

    expect(await change(worker, 'resume')).toMatchObject({ status: 200, body: { draining_since: null } })
    expect(await change(worker, 'resume')).toMatchObject({ status: 200, body: { draining_since: null } })
    expect(await lease(worker)).toMatchObject({ status: 200, body: { leases: [{ job_id: waiting }] } })
    const audit = await http.call('GET', `/v1/audit?subject=${worker.worker_id}`)
    expect((audit.body as { data: { action: string; after: unknown }[] }).data.slice(0, 2)).toMatchObject([
      { action: 'worker.resume', before: { draining: true }, after: { draining: false } },
      { action: 'worker.drain', before: { draining: false }, after: { draining: true } },
    ])
  })

  test('it drains on after it registers again', async () => {
    const worker = await newWorker()
    await change(worker, 'drain')
    const enrollment = { workerId: worker.worker_id }
    const again = await registered(http.services, { queues: [worker.queue] }, enrollment)
    expect(again.worker_id).toBe(worker.worker_id)
    await submit(worker.queue)
    expect((await lease({ ...worker, ...again })).body).toEqual({ leases: [], draining: true })
    expect(await http.call('GET', `/v1/workers/${worker.worker_id}`)).toMatchObject({ body: { live_leases: 0 } })
  })

  test('a renewal replaces what the worker says of its machine, or leaves it', async () => {
    const worker = await newWorker()
    const meta = { version: '9.9.9' }
    const renewed = await post('/v1/workers/renew', worker, { meta })
    expect(renewed.status).toBe(200)
    const { worker_token } = renewed.body as { worker_token: string }
    expect((await http.call('POST', '/v1/workers/renew', { token: worker_token })).status).toBe(200)
    expect(await http.call('GET', `/v1/workers/${worker.worker_id}`)).toMatchObject({ body: { meta } })
    const large = await post('/v1/workers/renew', worker, { meta: { text: 'x'.repeat(20_000) } })
    expect([large.status, code(large)]).toEqual([400, 'INVALID_PAYLOAD'])
  })

  test('a job says that it waits for draining workers', async () => {
    const worker = await newWorker()
    const [first, second] = [await submit(worker.queue), await submit(worker.queue)]
    await lease(worker)
    expect(await why(second)).toMatchObject({ reason: 'workers_busy' })
    await change(worker, 'drain')
    expect(await why(second)).toMatchObject({ reason: 'draining', command: 'ichido workers resume NAME' })
    await lease(worker)
    expect(await why(second), 'after it asked for work').toMatchObject({ reason: 'draining' })
    const other = await newWorker(worker.queue)
    expect(await why(second)).toMatchObject({ reason: 'workers_busy' })
    await http.services.workers.revoke(LOCAL_ADMIN, other.worker_id)
    await change(worker, 'resume')
    expect(await why(second)).toMatchObject({ reason: 'workers_busy' })
    expect(first).not.toBe(second)
  })

  test('a node that has not drained the worker itself hears of it when the worker calls', async () => {
    const worker = await newWorker()
    const drain = 'UPDATE ichido.workers SET draining_since = now_ms() WHERE worker_id = $1'
    await sql(http.services.deps.store, drain, worker.worker_id)
    expect((await lease(worker)).status).toBe(204)
    await until('the word', async () => http.services.workers.drains(worker.worker_id))
    expect((await lease(worker)).body).toEqual({ leases: [], draining: true })
  })

  test.each(['drain', 'resume'])('%s refuses an unknown worker, a revoked one and a name', async (verb) => {
    const worker = await newWorker()
    await http.services.workers.revoke(LOCAL_ADMIN, worker.worker_id)
    const revoked = await change(worker, verb)
    expect([revoked.status, code(revoked)]).toEqual([403, 'FORBIDDEN'])
    const unknown = await http.call('POST', `/v1/workers/01a1e12b-0000-7000-8000-000000000000/${verb}`)
    expect([unknown.status, code(unknown)]).toEqual([404, 'NOT_FOUND'])
    expect((await http.call('POST', `/v1/workers/nobody/${verb}`)).status).toBe(404)
  })
})
