import type { ErrorBody, EventsOfAllShape, LeaseShape } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { eventsOfAll, jobState } from '../../contract/events.ts'
import { type Answer, type TestApp, testApp } from '../../testing/http/app.ts'
import { registeredWorker, type WorkerCalls } from '../../testing/http/worker-calls.ts'
import { unique, until } from '../../testing/store/store.ts'

let http: TestApp
let worker: WorkerCalls
let tokens: { owner: string; other: string; viewer: string; operator: string }
beforeAll(async () => {
  http = await testApp('sqlite')
  worker = await registeredWorker(http)
  tokens = {
    owner: await http.token('owner', 'submitter'),
    other: await http.token('other', 'submitter'),
    viewer: await http.token('viewer', 'viewer'),
    operator: await http.token('operator', 'operator'),
  }
})
afterAll(() => http.close())

const errorOf = ({ body }: Answer) => (body as ErrorBody).error
const get = (path: string, token: string) => http.call('GET', path, { token })

async function leased(fields: object = {}): Promise<LeaseShape> {
  const queue = unique('queue')
  await http.call('POST', '/v1/jobs', { body: { kind: 'scan', queue, ...fields }, token: tokens.owner })
  const [lease] = await worker.lease(queue, { start: true })
  if (lease === undefined) throw new Error('There was a run to lease')
  return lease
}

const publish = (lease: LeaseShape, ...events: object[]) =>
  worker.post(`/v1/leases/${lease.lease_id}/events`, { events })

const BAD: [string, object, number, string, RegExp][] = [
  ['a negative seq', { stage: 'vision', seq: -1 }, 400, 'events.1.seq', /at least 0/],
  ['a fractional seq', { stage: 'vision', seq: 10.5 }, 400, 'events.1.seq', /whole number/],
  ['a seq above its stage', { stage: 'vision', seq: 20 }, 400, 'events.1.seq', /10 to 19: that is the stage vision/],
  ['a seq below its stage', { stage: 'done', seq: 49 }, 400, 'events.1.seq', /50 to 59/],
  [
    'a stage that the job has not',
    { stage: 'other', seq: 10 },
    400,
    'events.1.seq',
    /0 to 9: this job has no stage other/,
  ],
  ['the stage of the server', { stage: 'run', seq: 10 }, 400, 'events.1.stage', /is not for workers/],
  ['a stage that is no name', { stage: 'a b', seq: 1 }, 400, 'events.1.stage', /letters/],
  ['no stage', { seq: 1 }, 400, 'events.1.stage', /Missing/],
  ['no seq', { stage: 'vision' }, 400, 'events.1.seq', /Missing/],
  ['another field', { stage: 'vision', seq: 10, n: 1 }, 400, 'events.1.n', /Unknown/],
  ['too much data', { stage: 'vision', seq: 10, data: 'x'.repeat(65_536) }, 413, 'events.1.data', /65536 bytes/],
]
test.each(BAD)('%s is refused by its field, and nothing is published', async (_, bad, status, field, message) => {
  const lease = await leased({ stages: 'eco2' })
  const answer = await publish(lease, { stage: 'vision', seq: 11 }, bad)
  expect([answer.status, errorOf(answer).details.field]).toEqual([status, field])
  expect(errorOf(answer).message).toMatch(message)
  expect((await get(`/v1/jobs/${lease.job_id}/state`, tokens.owner)).body).toMatchObject({ stages: {} })
})

test('events are published once, and shown in the state and in all events', async () => {
  const lease = await leased({ stages: [{ name: 'cut', from: 100, to: 110 }], domain: 'wood', seq_scope: 'job' })
  expect(lease.stages).toEqual({ cut: { from: 100, to: 110 } })
  const events = [
    { stage: 'cut', seq: 100, data: { planks: 3 } },
    { stage: 'cut', seq: 101 },
  ]
  expect((await publish(lease, ...events)).body).toEqual({ data: [{ accepted: true }, { accepted: true }] })
  const again = await publish(lease, { ...events[0], data: 'other' }, { stage: 'cut', seq: 102 })
  expect(again.body).toEqual({ data: [{ accepted: false }, { accepted: true }] })

  const state = await get(`/v1/jobs/${lease.job_id}/state`, tokens.owner)
  expect(jobState.parse(state.body)).toEqual(state.body)
  expect(state.body).toMatchObject({ domain: 'wood', state: 'RUNNING', stages: { cut: { cursor: 5, seq: 102 } } })
  expect((await get(`/v1/jobs/${lease.job_id}/state`, tokens.viewer)).status).toBe(200)
  expect((await get(`/v1/jobs/${lease.job_id}/state`, tokens.other)).status).toBe(404)

  const seen: EventsOfAllShape['data'] = []
  let cursor = ''
  await until('the events to be listed', async () => {
    const page = await get(`/v1/events?domain=wood&limit=2${cursor}`, tokens.operator)
    const { data, next_cursor, caught_up } = eventsOfAll.parse(page.body)
    seen.push(...data)
    cursor = `&cursor=${next_cursor}`
    return caught_up && seen.length >= 5
  })
  expect(seen.map((event) => [event.job_id, event.cursor, event.stage, event.data])).toEqual([
    [lease.job_id, 1, 'run', { state: 'PENDING' }],
    [lease.job_id, 2, 'run', { state: 'RUNNING', attempt: 1 }],
    [lease.job_id, 3, 'cut', { planks: 3 }],
    [lease.job_id, 4, 'cut', null],
    [lease.job_id, 5, 'cut', null],
  ])
})

test('all events are for operators, with cursors of that list', async () => {
  for (const token of [tokens.owner, tokens.viewer]) expect((await get('/v1/events', token)).status).toBe(403)
  const forged = [
    'x',
    Buffer.from('events:1:2:3').toString('base64url'),
    cursorOf(`events:9${'0'.repeat(13)}:${NO_JOB}:0`),
  ]
  for (const cursor of [...forged, cursorOf(`jobs:${NO_JOB}`), cursorOf(`events:1:${NO_JOB}:-1`)]) {
    const answer = await get(`/v1/events?cursor=${cursor}`, tokens.operator)
    expect([answer.status, errorOf(answer).details.field]).toEqual([400, 'cursor'])
  }
  for (const query of ['job_id=1', 'kind=a b', 'limit=0', 'after=1']) {
    expect((await get(`/v1/events?${query}`, tokens.operator)).status).toBe(400)
  }
})

const NO_JOB = '00000000-0000-0000-0000-000000000000'
const cursorOf = (text: string) => Buffer.from(text).toString('base64url')
