import type { ErrorBody, LeaseShape } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import * as contract from '../../contract/leases.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import { type Answer, type TestApp, testApp } from '../../testing/http/app.ts'
import { registeredWorker, type WorkerCalls } from '../../testing/http/worker-calls.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { sql, unique } from '../../testing/store/store.ts'

const errorOf = ({ body }: Answer) => (body as ErrorBody).error

describe.each(ENGINES)('%s', (engine) => {
  let http: TestApp
  let worker: WorkerCalls
  beforeAll(async () => {
    http = await testApp(engine)
    worker = await registeredWorker(http)
  })
  afterAll(() => http.close())

  async function submit(fields: object = {}): Promise<{ queue: string; jobId: string }> {
    const queue = unique('queue')
    const { body } = await http.call('POST', '/v1/jobs', { body: { kind: 'work', queue, ...fields } })
    return { queue, jobId: (body as { job_id: string }).job_id }
  }

  async function leased(fields: object = {}, changes: object = { start: true }): Promise<LeaseShape> {
    const { queue } = await submit(fields)
    const [lease] = await worker.lease(queue, changes)
    if (lease === undefined) throw new Error('There was a run to lease')
    return lease
  }

  const report = (lease: LeaseShape, verb: string, body: object = {}) =>
    worker.post(`/v1/leases/${lease.lease_id}/${verb}`, body)
  const state = async (jobId: string) => (await http.services.jobs.get(LOCAL_ADMIN, jobId)).state

  test('lease, start, heartbeat, logs, events, result: the way of a run', async () => {
    const { queue, jobId } = await submit({ payload: { n: 1 } })
    const answer = await worker.post('/v1/leases', { queues: [queue] })
    expect(answer.status).toBe(200)
    const { leases } = contract.leasesResponse.parse(answer.body)
    expect({ leases }).toEqual(answer.body)
    const [lease] = leases
    expect(lease).toMatchObject({ job_id: jobId, attempt: 1, payload: { n: 1 }, leader_epoch: null, artifacts: [] })
    const path = `/v1/leases/${lease?.lease_id}`

    const start = { start_id: 'p', version: lease?.version }
    const started = await worker.post(`${path}/start`, start)
    expect(started).toMatchObject({ status: 200, body: { version: 3, leader_epoch: 1, repeated: false } })
    expect((await worker.post(`${path}/start`, start)).body).toEqual({ version: 3, leader_epoch: 1, repeated: true })
    const beat = await worker.post(`${path}/heartbeat`)
    expect(contract.heartbeatResponse.parse(beat.body)).toEqual(beat.body)
    expect(beat.body).toMatchObject({ lease_ttl_seconds: 60, cancel_requested: false })

    const chunks = [{ n: 0, stream: 'stdout', text: 'one\n' }]
    expect((await worker.post(`${path}/logs`, { chunks })).body).toEqual({ accepted: 1 })
    expect((await worker.post(`${path}/logs`, { chunks })).body).toEqual({ accepted: 0 })
    const events = [
      { stage: 'progress', seq: 1, data: { percent: 5 } },
      { stage: 'progress', seq: 1, data: { percent: 6 } },
    ]
    expect((await worker.post(`${path}/events`, { events })).body).toEqual({
      data: [{ accepted: true }, { accepted: false }],
    })

    const result = { result: { energy: 1.5 }, summary_text: 's', cost: 2, version: 3, leader_epoch: 1 }
    expect((await worker.post(`${path}/result`, result)).body).toEqual({ state: 'SUCCEEDED', repeated: false })
    expect((await worker.post(`${path}/result`, { ...result, meta: { at: 2 } })).body).toEqual({
      state: 'SUCCEEDED',
      repeated: true,
    })
    expect((await http.call('GET', `/v1/jobs/${jobId}/result`)).body).toMatchObject({
      result: { energy: 1.5 },
      cost: 2,
    })
    expect((await http.call('GET', `/v1/jobs/${jobId}/logs`)).body).toMatchObject({
      data: [{ run_no: 1, n: 0, stream: 'stdout', text: 'one\n' }],
      next_cursor: null,
    })
    expect(await worker.post('/v1/leases', { queues: [queue], wait_seconds: 0 })).toMatchObject({
      status: 204,
      text: '',
    })
  })

  test('failed says what comes next, and a repeat says the same', async () => {
    const lease = await leased()
    const failure = { error_code: 'BROKEN', error_message: 'it broke', traceback: 'here' }
    const first = await report(lease, 'failed', failure)
    const next = expect.stringMatching(/Z$/)
    const expected = { state: 'FAILED', requeued: true, retry_count: 1, next_run_at: next, dead: false }
    expect(first).toMatchObject({ status: 200, body: { ...expected, repeated: false } })
    const again = await report(lease, 'failed', { ...failure, traceback: 'there' })
    expect(again.body).toEqual({ ...(first.body as object), repeated: true })
    const fatal = await leased()
    const dead = { state: 'FAILED', requeued: false, retry_count: 1, next_run_at: null, dead: true }
    expect((await report(fatal, 'failed', { ...failure, retryable: false })).body).toEqual({ ...dead, repeated: false })
    expect((await report(fatal, 'failed', { ...failure, retryable: false })).body).toEqual({ ...dead, repeated: true })
  })

  test('release frees an assigned run or makes the next run, without a retry', async () => {
    const assigned = await leased({ max_attempts: 1 }, {})
    expect((await report(assigned, 'release')).body).toEqual({ state: 'ORPHANED' })
    expect((await report(assigned, 'release')).body).toEqual({ state: 'ORPHANED' })
    const [second] = await worker.lease(assigned.queue, { start: true })
    expect(second).toMatchObject({ job_id: assigned.job_id, run_id: assigned.run_id, attempt: 2 })
    expect(errorOf(await report(assigned, 'release')).code).toBe('LEASE_LOST')
    if (second === undefined) throw new Error('There was a run to lease')
    expect((await report(second, 'release')).body).toEqual({ state: 'FAILED' })
    const [third] = await worker.lease(assigned.queue)
    expect(third).toMatchObject({ job_id: assigned.job_id, attempt: 3 })
    expect(third?.run_id).not.toBe(assigned.run_id)
    const job = await http.services.jobs.get(LOCAL_ADMIN, assigned.job_id)
    expect(job.retry_count).toBe(0)
    expect(job.runs[0]?.error?.code).toBe('RELEASED')
  })

  test('finish and lease in one call can be repeated after a lost answer', async () => {
    const first = await leased()
    await http.services.submission.submit(LOCAL_ADMIN, { kind: 'work', queue: first.queue }, { key: null })
    const next = { queues: [first.queue], start: true, poll_id: unique('poll') }
    const answer = await report(first, 'result', { result: 1, next })
    expect(answer.body).toMatchObject({ state: 'SUCCEEDED', repeated: false, leases: [{ attempt: 1 }] })
    const again = await report(first, 'result', { result: 1, next })
    expect(again.body).toEqual({ ...(answer.body as object), repeated: true })
    const [second] = (answer.body as { leases: LeaseShape[] }).leases
    if (second === undefined) throw new Error('There was a run to lease')
    const failure = { error_code: 'C', error_message: 'm', next: { queues: [first.queue] } }
    expect((await report(second, 'failed', failure)).body).toMatchObject({ state: 'FAILED', leases: [] })
  })

  test('a refused lease of the next runs records nothing', async () => {
    const { queue, jobId } = await submit()
    const bound = await registeredWorker(http, [queue])
    const [own] = await bound.lease(queue, { start: true })
    const next = { queues: ['elsewhere'] }
    for (const [path, body] of [
      [`/v1/leases/${own?.lease_id}/result`, { result: 1, next }],
      [`/v1/leases/${own?.lease_id}/failed`, { error_code: 'C', error_message: 'm', next }],
      ['/v1/leases/report', { reports: [{ lease_id: own?.lease_id, result: 1 }], next }],
    ] as const) {
      expect(await bound.post(path, body)).toMatchObject({ status: 403 })
    }
    expect(await state(jobId)).toBe('RUNNING')
  })

  test('a report on a run that has not started is refused', async () => {
    const lease = await leased({}, {})
    for (const [verb, body] of [
      ['result', { result: 1 }],
      ['failed', { error_code: 'C', error_message: 'm' }],
    ] as const) {
      expect(await report(lease, verb, body)).toMatchObject({ status: 409, body: { error: { code: 'NOT_STARTED' } } })
    }
    expect((await report(lease, 'start', { start_id: 'p' })).status).toBe(200)
    expect((await report(lease, 'result', { result: 1 })).body).toMatchObject({ state: 'SUCCEEDED' })
  })

  test('each report of a batch has its own outcome', async () => {
    const { queue } = await submit()
    for (let i = 0; i < 3; i++) await http.call('POST', '/v1/jobs', { body: { kind: 'work', queue } })
    const [a, b, c] = await worker.lease(queue, { max: 3, start: true })
    const forged = `${a?.lease_id.split('.')[0]}.AAAAAAAAAAAAAAAAAAAAAA`
    const answer = await worker.post('/v1/leases/report', {
      reports: [
        { lease_id: a?.lease_id, result: [1] },
        { lease_id: b?.lease_id, error_code: 'C', error_message: 'm' },
        { lease_id: forged, result: 1 },
        { lease_id: c?.lease_id, reslt: 1 },
        { lease_id: 'x', result: 1 },
        7,
        { lease_id: a?.lease_id, result: [1] },
        { lease_id: a?.lease_id, result: [2] },
      ],
      next: { queues: [queue], max: 5 },
    })
    expect(answer.status).toBe(200)
    expect(contract.reportResponse.parse(answer.body)).toEqual(answer.body)
    expect(answer.body).toMatchObject({
      data: [
        { lease_id: a?.lease_id, status: 200, state: 'SUCCEEDED', repeated: false },
        { status: 200, state: 'FAILED', requeued: true, retry_count: 1 },
        { lease_id: forged, status: 409, error: { code: 'LEASE_LOST' } },
        { status: 400, error: { code: 'INVALID_PAYLOAD', message: 'Unknown field: reslt' } },
        { lease_id: 'x', status: 400, error: { message: 'lease_id is not a lease_id' } },
        { lease_id: null, status: 400, error: { message: 'The body must be a JSON object' } },
        { status: 200, repeated: true },
        { status: 409, error: { code: 'OUTCOME_ALREADY_RECORDED' } },
      ],
      leases: [{ queue }],
    })
  })

  test('a batch of heartbeats extends held leases and refuses others', async () => {
    const [held, lost] = [await leased(), await leased()]
    await report(lost, 'result')
    await http.services.jobs.cancel(LOCAL_ADMIN, held.job_id)
    const unknown = '01890000-0000-7000-8000-000000000000.AAAAAAAAAAAAAAAAAAAAAA'
    const lease_ids = [held.lease_id, lost.lease_id, unknown]
    const answer = await worker.post('/v1/leases/heartbeat', { lease_ids })
    expect(contract.heartbeatsResponse.parse(answer.body)).toEqual(answer.body)
    expect(answer.body).toMatchObject({
      data: [
        { lease_id: held.lease_id, held: true, cancel_requested: true, code: null },
        { held: false, cancel_requested: false, lease_expires_at: null, code: 'ALREADY_ENDED' },
        { held: false, code: 'NOT_FOUND' },
      ],
    })
  })

  test('a worker waits for the runs that must stop', async () => {
    const cancels = async (body: object) => {
      const answer = await worker.post('/v1/leases/cancels', body)
      expect(answer.status).toBe(200)
      return contract.cancelsResponse.parse(answer.body).lease_ids
    }
    const held = await leased()
    const before = await cancels({ wait_seconds: 0 })
    const waiting = cancels({ known: before })
    await http.services.jobs.cancel(LOCAL_ADMIN, held.job_id)
    const known = await waiting
    expect(known).toEqual([...before, held.lease_id])
    expect(await cancels({ known, wait_seconds: 0 })).toEqual([])

    // The leader ends the lease of a run after its timeout, and the run a little later.
    await sql(http.services.deps.store, 'UPDATE ichido.runs SET lease_id = NULL WHERE lease_id = $1', held.lease_id)
    expect(await cancels({ known: before, wait_seconds: 0 })).toEqual([])
    for (const [body, message] of [
      [{ wait_seconds: 1e9 }, 'wait_seconds'],
      [{ known: ['x'] }, 'known'],
      [{ lease_ids: known }, 'lease_ids'],
    ] as const) {
      expect(await worker.post('/v1/leases/cancels', body)).toMatchObject({
        status: 400,
        body: { error: { message: expect.stringContaining(message) } },
      })
    }
  })

  test('a lease covers any kind, queues in order, and only allowed queues', async () => {
    const [a, b] = [unique('queue'), unique('queue')]
    const bodies = [
      { kind: 'x', queue: b },
      { kind: 'y', queue: a },
      { kind: 'z', queue: b },
    ]
    for (const body of bodies) await http.call('POST', '/v1/jobs', { body })
    const some = await worker.lease(a, { queues: [a, b], max: 2 })
    expect(some.map(({ queue, kind }) => [queue, kind])).toEqual([
      [a, 'y'],
      [b, 'x'],
    ])
    const narrow = await registeredWorker(http, [a])
    const refused = await narrow.post('/v1/leases', { queues: [a, b], wait_seconds: 0 })
    expect(refused.status).toBe(403)
    expect(errorOf(refused)).toMatchObject({ code: 'FORBIDDEN', details: { queue: b } })
    const lease = await leased()
    const next = { queues: [b] }
    expect((await narrow.post(`/v1/leases/${lease.lease_id}/result`, { next })).status).toBe(403)
  })

  const MALFORMED: [string, string, unknown, number, string | RegExp][] = [
    ['no queues', '', {}, 400, 'Missing required field: queues'],
    ['an empty list of queues', '', { queues: [] }, 400, 'queues must have at least 1 entry'],
    ['max 0', '', { queues: ['q'], max: 0 }, 400, 'max must be at least 1'],
    ['max 1001', '', { queues: ['q'], max: 1001 }, 400, 'max must be at most 1000'],
    ['wait_seconds 1e9', '', { queues: ['q'], wait_seconds: 1e9 }, 400, 'wait_seconds must be at most 50'],
    ['a negative wait', '', { queues: ['q'], wait_seconds: -1 }, 400, 'wait_seconds must be at least 0'],
    ['an unknown field', '', { queues: ['q'], maxx: 1 }, 400, 'Unknown field: maxx'],
    ['a queue with a space', '', { queues: ['a b'] }, 400, /^queues.0 must be 1 to 128 letters/],
    ['a poll_id with a space', '', { queues: ['q'], poll_id: 'a b' }, 400, /^poll_id must be 1 to 128 visible ASCII/],
    ['a lease_id that is none', '/x/heartbeat', {}, 404, 'lease_id is not a lease_id'],
    ['a lease_id of capitals', `/${'A'.repeat(36)}.t/result`, {}, 404, 'lease_id is not a lease_id'],
    ['a start without its id', '/LEASE/start', {}, 400, 'Missing required field: start_id'],
    ['a heartbeat with a body', '/LEASE/heartbeat', { x: 1 }, 400, 'Unknown field: x'],
    ['a malformed lease among many', '/heartbeat', { lease_ids: ['x'] }, 400, 'lease_ids.0 is not a lease_id'],
    ['no lease among many', '/heartbeat', { lease_ids: [] }, 400, 'lease_ids must have at least 1 entry'],
    ['an unknown field of a result', '/LEASE/result', { reslt: 1 }, 400, 'Unknown field: reslt'],
    [
      'an unknown field of what is next',
      '/LEASE/result',
      { next: { x: 1 } },
      400,
      'Missing required field: next.queues',
    ],
    ['a failure without a code', '/LEASE/failed', { error_message: 'm' }, 400, 'Missing required field: error_code'],
    ['a failure without words', '/LEASE/failed', { error_code: 'C' }, 400, 'Missing required field: error_message'],
    [
      'the stage run',
      '/LEASE/events',
      { events: [{ stage: 'run', seq: 1 }] },
      400,
      /^events.0.stage is not for workers/,
    ],
    [
      'a seq that is too high',
      '/LEASE/events',
      { events: [{ stage: 's', seq: 1e6 }] },
      400,
      /^events.0.seq must be at most/,
    ],
    ['a stream of another name', '/LEASE/logs', { chunks: [{ n: 0, stream: 'x', text: '' }] }, 400, /^chunks.0.stream/],
    ['a chunk of nothing', '/LEASE/logs', { chunks: [{ n: 0, stream: 'stdout', text: '' }] }, 400, /^chunks.0.text/],
    ['a batch without reports', '/report', { reports: [] }, 400, 'reports must have at least 1 entry'],
    ['invalid JSON', '/LEASE/result', '{"result":', 400, /^The body is not valid JSON/],
    [
      'a result that is too large',
      '/LEASE/result',
      { result: 'x'.repeat(4 * 1024 * 1024) },
      413,
      /^The result is larger/,
    ],
  ]
  test.each(MALFORMED)('refused: %s', async (_, path, body, status, message) => {
    const lease = await leased()
    const answer = await worker.post(`/v1/leases${path.replace('LEASE', lease.lease_id)}`, body)
    expect(answer.status, answer.text).toBe(status)
    expect(errorOf(answer).message).toMatch(message)
    expect(await state(lease.job_id)).toBe('RUNNING')
  })

  test('refused: a wrong media type, no token, and a bad token', async () => {
    const { token } = worker
    const headers = { 'content-type': 'text/plain' }
    const call = { headers, token, body: 'queues' }
    expect((await http.call('POST', '/v1/leases', call)).status).toBe(415)
    const body = { queues: ['q'] }
    expect(errorOf(await http.call('POST', '/v1/leases', { body })).code).toBe('UNAUTHENTICATED')
    expect((await http.call('POST', '/v1/leases', { body, token: 'x' })).status).toBe(401)
  })

  test('an empty body is accepted if no field is required', async () => {
    const lease = await leased()
    const { token } = worker
    const beat = await http.call('POST', `/v1/leases/${lease.lease_id}/heartbeat`, { token })
    expect(beat.status, beat.text).toBe(200)
    expect((await http.call('POST', `/v1/leases/${lease.lease_id}/result`, { token })).body).toMatchObject({
      state: 'SUCCEEDED',
    })
  })
})
