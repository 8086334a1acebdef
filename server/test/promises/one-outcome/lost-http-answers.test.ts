import type { LeaseShape } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { LOCAL_ADMIN } from '../../../src/services/access/access.ts'
import { type TestApp, testApp } from '../../../src/testing/http/app.ts'
import { type Gate, openGate } from '../../../src/testing/http/http-gate.ts'
import { registeredWorker, type WorkerCalls } from '../../../src/testing/http/worker-calls.ts'
import { ENGINES } from '../../../src/testing/services/services.ts'
import { unique } from '../../../src/testing/store/store.ts'

/** Hazard 17: each response between worker and server is lost once, and no attempt is wasted. */
describe.each(ENGINES)('%s', (engine) => {
  let http: TestApp
  let gate: Gate
  let worker: WorkerCalls
  beforeAll(async () => {
    http = await testApp(engine)
    const url = await http.app.listen({ port: 0, host: '127.0.0.1' })
    gate = await openGate(async () => url)
    worker = await registeredWorker(http)
  })
  afterAll(async () => {
    await gate.close()
    await http.close()
  })

  /** The server processes the first try, but its response is lost. The second try gets through. */
  async function post(path: string, body: object): Promise<unknown> {
    gate.mishaps.push(async () => {})
    const before = gate.count
    const send = () =>
      fetch(`${gate.url}${path}`, {
        method: 'POST',
        headers: { 'content-type': 'application/json', authorization: `Bearer ${worker.token}` },
        body: JSON.stringify(body),
      })
    await expect(send()).rejects.toThrow()
    const response = await send()
    expect(gate.count - before).toBe(2)
    expect(response.status).toBe(200)
    return response.json()
  }

  async function leased(queue: string, fields: object = {}): Promise<LeaseShape> {
    const body = { queues: [queue], poll_id: unique('poll'), ...fields }
    const { leases } = (await post('/v1/leases', body)) as { leases: LeaseShape[] }
    expect(leases).toHaveLength(1)
    const [lease] = leases
    if (lease === undefined) throw new Error('There was a run to lease')
    return lease
  }

  const submit = async (queue: string) => {
    const outcome = await http.services.submission.submit(LOCAL_ADMIN, { kind: 'work', queue }, { key: null })
    if (outcome.kind === 'refused') throw new Error(outcome.refusal.message)
    return outcome.jobId
  }

  test('lost answers to lease, start, heartbeat, logs, events and result cost no attempt', async () => {
    const queue = unique('queue')
    const jobId = await submit(queue)
    await submit(queue)
    const lease = await leased(queue)
    expect(lease).toMatchObject({ job_id: jobId, attempt: 1 })
    const path = `/v1/leases/${lease.lease_id}`
    expect(await post(`${path}/start`, { start_id: 'p', version: lease.version })).toMatchObject({ repeated: true })
    await post(`${path}/heartbeat`, {})
    expect(await post(`${path}/logs`, { chunks: [{ n: 0, stream: 'stdout', text: 'x' }] })).toEqual({ accepted: 0 })
    const events = [{ stage: 'progress', seq: 0, data: 1 }]
    expect(await post(`${path}/events`, { events })).toEqual({ data: [{ accepted: false }] })
    const next = { queues: [queue], start: true, poll_id: unique('poll') }
    const ended = (await post(`${path}/result`, { result: 1, next })) as { leases: LeaseShape[] }
    expect(ended).toMatchObject({ state: 'SUCCEEDED', repeated: true, leases: [{ attempt: 1 }] })
    const job = await http.services.jobs.get(LOCAL_ADMIN, jobId)
    expect(job).toMatchObject({ state: 'SUCCEEDED', attempt: 1, retry_count: 0 })
    expect(job.runs).toHaveLength(1)
    const { events: all } = await http.services.events.read(LOCAL_ADMIN, jobId, 0, 0)
    expect(all.map(({ stage }) => stage)).toEqual(['run', 'run', 'run', 'progress', 'run'])
    const [second] = ended.leases
    expect(await http.services.jobs.get(LOCAL_ADMIN, second?.job_id ?? '')).toMatchObject({ attempt: 1 })
  })

  test('after lost answers, failed and release create one next run each', async () => {
    const queue = unique('queue')
    const jobId = await submit(queue)
    const lease = await leased(queue, { start: true })
    expect(await post(`/v1/leases/${lease.lease_id}/release`, {})).toEqual({ state: 'FAILED' })
    const again = await leased(queue, { start: true })
    expect(again).toMatchObject({ job_id: jobId, attempt: 2 })
    const failure = { error_code: 'C', error_message: 'm' }
    expect(await post(`/v1/leases/${again.lease_id}/failed`, failure)).toMatchObject({
      repeated: true,
      requeued: true,
      retry_count: 1,
    })
    const { runs } = await http.services.jobs.get(LOCAL_ADMIN, jobId)
    expect(runs.map(({ state, retry_count }) => [state, retry_count])).toEqual([
      ['FAILED', 0],
      ['FAILED', 0],
      ['PENDING', 1],
    ])
  })
})
