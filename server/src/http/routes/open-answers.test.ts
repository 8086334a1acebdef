import type { ErrorBody } from '@ichido/sdk/protocol'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import type { SettingName } from '../../core/limits/settings.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import { type Answer, type TestApp, testApp } from '../../testing/http/app.ts'
import { metric, pathOf, streamClients } from '../../testing/http/event-streams.ts'
import { registeredWorker, type WorkerCalls } from '../../testing/http/worker-calls.ts'
import { beginPublishing } from '../../testing/services/publishing.ts'
import { unique, until } from '../../testing/store/store.ts'

/** Long answers have a maximum for each user and worker. */

let http: TestApp
let url: string
const { open } = streamClients()
beforeAll(async () => {
  http = await testApp('sqlite')
  url = await http.app.listen({ host: '127.0.0.1', port: 0 })
})
/** Closes the open answers. */
const over = new AbortController()
afterAll(async () => {
  over.abort()
  http.app.startDraining()
  await http.close()
})
afterEach(async () => {
  for (const name of ['event_streams_per_user_max', 'log_streams_per_user_max', 'polls_per_worker_max'])
    await http.services.settings.reset(LOCAL_ADMIN, name)
})

const set = (name: SettingName, value: number) => http.services.settings.put(LOCAL_ADMIN, name, value)
const errorOf = ({ body }: Answer) => (body as ErrorBody).error
const SSE = { accept: 'text/event-stream' }

test('the event streams of a user have a maximum, and an ended one makes room', async () => {
  await set('event_streams_per_user_max', 2)
  const run = await beginPublishing(http.services)
  const path = pathOf(run.jobId)
  const [first] = [await open(url + path), await open(url + path)]
  const refused = await http.call('GET', path, { headers: SSE })
  expect(refused).toMatchObject({ status: 429, headers: { 'retry-after': '5' } })
  expect(errorOf(refused)).toMatchObject({
    code: 'RATE_LIMITED',
    message:
      'local has 2 streams open on this node, which is the maximum; close one, try again later, or have an admin raise the ' +
      'setting event_streams_per_user_max',
    details: { setting: 'event_streams_per_user_max', max: 2 },
  })
  expect(await metric(http, 'ichido_maximum_refusals_total{setting="event_streams_per_user_max"}')).toBe(1)
  // Pages of events and streams of logs are counted separately.
  expect((await http.call('GET', path)).status).toBe(200)
  expect((await http.call('GET', `/v1/jobs/${run.jobId}/logs`, { headers: { accept: 'text/plain' } })).status).toBe(200)
  first.close()
  await until('room for another', async () => (await fetch(url + path, { headers: SSE, signal: over.signal })).ok)
})

test('streams of logs and of all events share a maximum', async () => {
  await set('log_streams_per_user_max', 1)
  const all = await open(`${url}/v1/events`)
  const refused = await http.call('GET', '/v1/events', { headers: SSE })
  expect(errorOf(refused)).toMatchObject({ details: { setting: 'log_streams_per_user_max', max: 1 } })
  all.close()
})

/** Waiting calls of a worker, for leases or cancels. */
async function waiting(worker: WorkerCalls, count: number, queue: string): Promise<Promise<Response>[]> {
  const post = (path: string, body: object) =>
    fetch(url + path, {
      method: 'POST',
      headers: { authorization: `Bearer ${worker.token}`, 'content-type': 'application/json' },
      body: JSON.stringify({ ...body, wait_seconds: 20 }),
      signal: over.signal,
    })
  const calls: Promise<Response>[] = []
  for (let i = 0; i < count; i++) {
    const arrived = new Promise((resolve) => http.app.server.once('request', resolve))
    const call = i === 0 ? post('/v1/leases/cancels', {}) : post('/v1/leases', { queues: [queue] })
    call.catch(() => {})
    calls.push(call)
    await arrived
  }
  return calls
}

test('the waiting calls of a worker have a maximum, before a report is recorded', async () => {
  await set('polls_per_worker_max', 2)
  const worker = await registeredWorker(http)
  const queue = unique('queue')
  await http.call('POST', '/v1/jobs', { body: { kind: 'work', queue } })
  const [lease] = await worker.lease(queue, { start: true })
  const [, waits] = await waiting(worker, 2, queue)
  const briefly = () => worker.post('/v1/leases', { queues: [queue], wait_seconds: 0.01 })
  await until('both to wait', async () => (await briefly()).status === 429)
  const polled = await worker.post('/v1/leases', { queues: [queue] })
  expect(polled).toMatchObject({ status: 429, headers: { 'retry-after': '5' } })
  expect(errorOf(polled).message).toContain(`${worker.workerId} has 2 waiting calls open on this node`)
  expect((await worker.post('/v1/leases/cancels', {})).status).toBe(429)
  // Calls that do not wait are not counted.
  expect(await worker.lease(queue)).toEqual([])
  const result = (next: object) => worker.post(`/v1/leases/${lease?.lease_id}/result`, { result: 1, next })
  expect((await result({ queues: [queue], wait_seconds: 1 })).status).toBe(429)
  expect(await result({ queues: [queue] })).toMatchObject({ status: 200, body: { repeated: false } })
  // Another worker has its own count, and a leased poll makes room again.
  const other = await registeredWorker(http)
  expect((await other.post('/v1/leases', { queues: [queue], wait_seconds: 0.01 })).status).toBe(204)
  await http.call('POST', '/v1/jobs', { body: { kind: 'work', queue } })
  expect((await waits)?.status).toBe(200)
  await until('room for another', async () => (await briefly()).status === 204)
})
