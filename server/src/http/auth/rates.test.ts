import type { ErrorBody } from '@ichido/sdk/protocol'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import type { Caller } from '../../core/limits/roles.ts'
import type { SettingName } from '../../core/limits/settings.ts'
import { realWorld } from '../../node/world.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import { silentMeter } from '../../services/system/meter.ts'
import { type Answer, type TestApp, testApp } from '../../testing/http/app.ts'
import { registered } from '../../testing/services/workers.ts'
import { sql } from '../../testing/store/store.ts'
import { FAILURES_MAX, FailureLimit, RequestRates, WINDOW_MS } from './rates.ts'

const errorOf = ({ body }: Answer) => (body as ErrorBody).error
const amy: Caller = { userId: 'amy', role: 'submitter', tokenId: 'token of amy' }

describe('a bucket', () => {
  let nowMs = 0
  let perSecond = 2
  const reached: SettingName[] = []
  const meter = { ...silentMeter, maximumReached: (setting: SettingName) => void reached.push(setting) }
  const rates = () =>
    new RequestRates({ world: { ...realWorld, monotonic: () => nowMs }, settings: { get: () => perSecond }, meter })

  function admitted(rate: RequestRates, caller = amy): number {
    let count = 0
    while (count < 100_000 && rate.admits(caller)) count++
    return count
  }

  beforeEach(() => {
    nowMs = 0
    perSecond = 2
  })

  test('holds ten seconds of requests, and is refilled as time passes', () => {
    const rate = rates()
    expect(admitted(rate)).toBe(20)
    nowMs += 499
    expect(admitted(rate)).toBe(0)
    nowMs += 1
    expect(admitted(rate)).toBe(1)
    nowMs += 3_600_000
    expect(admitted(rate)).toBe(20)
  })

  test('belongs to one token, and does not delay other tokens of the user', () => {
    const rate = rates()
    admitted(rate)
    expect(admitted(rate, { ...amy, tokenId: 'another' })).toBe(20)
    expect(admitted(rate, { userId: 'amy', role: 'submitter' })).toBe(20)
  })

  test('follows changes of the setting', () => {
    const rate = rates()
    admitted(rate)
    perSecond = 100
    nowMs += 1_000
    expect(admitted(rate)).toBe(100)
    nowMs += 10_000
    perSecond = 1
    expect(admitted(rate)).toBe(10)
  })

  test('does not exist for the caller of open mode', () => {
    expect(admitted(rates(), LOCAL_ADMIN)).toBe(100_000)
  })

  test('is dropped after 10,000 newer ones, so the memory is bounded', () => {
    const rate = rates()
    admitted(rate)
    for (let i = 0; i < 10_000; i++) rate.admits({ ...amy, tokenId: `token ${i}` })
    expect(admitted(rate)).toBe(20)
    expect(admitted(rate, { ...amy, tokenId: 'token 9999' })).toBe(19)
  })
})

describe('over HTTP', () => {
  let nowMs = 0
  let http: TestApp
  beforeEach(async () => {
    http = await testApp('sqlite', { deps: { world: { ...realWorld, monotonic: () => nowMs } } })
    await http.services.settings.put(LOCAL_ADMIN, 'token_requests_per_second_max', 1)
    await http.services.settings.put(LOCAL_ADMIN, 'worker_requests_per_second_max', 50)
  })
  afterEach(() => http.close())

  test('a busy token gets a 429 with Retry-After and advice, and is counted', async () => {
    const token = await http.token('amy', 'submitter')
    const ask = () => http.call('GET', '/v1/jobs', { token })
    for (let i = 0; i < 10; i++) expect((await ask()).status).toBe(200)
    const refused = await ask()
    expect(refused).toMatchObject({ status: 429, headers: { 'retry-after': '1', 'should-retry': 'true' } })
    expect(errorOf(refused)).toMatchObject({
      code: 'RATE_LIMITED',
      message:
        'This token has sent more than 1 requests a second for a while; wait as long as Retry-After says, put several ' +
        'jobs or reports into one request, or have an admin raise the setting token_requests_per_second_max',
      details: { setting: 'token_requests_per_second_max', max: 1 },
    })
    expect((await http.call('GET', '/v1/jobs', { token: await http.token('amy', 'submitter') })).status).toBe(200)
    const metrics = await http.call('GET', '/metrics', { token: await http.token('amy', 'admin') })
    expect(metrics.text).toContain('ichido_maximum_refusals_total{setting="token_requests_per_second_max"} 1\n')
    nowMs += 1_000
    expect((await ask()).status).toBe(200)
  })

  test('the fast route shares the bucket, and a refusal makes no job', async () => {
    const token = await http.token('amy', 'submitter')
    const url = await http.app.listen({ host: '127.0.0.1', port: 0 })
    // A request for the framework, and one for the fast route.
    const submit = (body: string) =>
      fetch(`${url}/v1/jobs`, {
        method: 'POST',
        headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
        body,
      })
    const statuses: number[] = []
    for (let i = 0; i < 11; i++) statuses.push((await submit(i % 2 ? '{"kind":"work"}' : '{"kind":""}')).status)
    expect(statuses).toEqual([400, 201, 400, 201, 400, 201, 400, 201, 400, 201, 429])
    const hot = await submit('{"kind":"work"}')
    expect([hot.status, hot.headers.get('retry-after')]).toEqual([429, '1'])
    nowMs += 1_000
    expect((await submit('{"kind":"work"}')).status).toBe(201)
    expect(await sql(http.services.deps.store, 'SELECT id FROM ichido.jobs')).toHaveLength(6)
  })

  test('a worker keeps its bucket after its token was renewed', async () => {
    const { worker_token: first } = await registered(http.services)
    const renewed = await http.call('POST', '/v1/workers/renew', { token: first })
    expect(renewed.status).toBe(200)
    const { worker_token: second } = renewed.body as { worker_token: string }
    const beat = (token: string) => http.call('POST', '/v1/leases/heartbeat', { token, body: { lease_ids: ['none'] } })
    const answers = await Promise.all(Array.from({ length: 500 }, (_, i) => beat(i % 2 ? first : second)))
    const refused = answers.filter(({ status }) => status === 429)
    expect(refused).toHaveLength(1)
    expect(errorOf(refused[0] as Answer)).toMatchObject({
      details: { setting: 'worker_requests_per_second_max', max: 50 },
    })
    expect((await beat((await registered(http.services)).worker_token)).status).not.toBe(429)
  })
})

test('after too many failures an address waits for the end of the window', () => {
  let nowMs = 0
  const limit = new FailureLimit({ monotonic: () => nowMs })
  for (let i = 0; i < FAILURES_MAX; i++) expect(limit.record('a')).toBeNull()
  expect(limit.record('a')).toBe(WINDOW_MS / 1000)
  expect(limit.record('b')).toBeNull()
  nowMs = WINDOW_MS - 1
  expect(limit.record('a')).toBe(1)
  nowMs = WINDOW_MS
  expect(limit.record('a')).toBeNull()
})

test('the oldest address is dropped, so the memory is bounded', () => {
  const limit = new FailureLimit({ monotonic: () => 0 })
  for (let i = 0; i <= FAILURES_MAX; i++) limit.record('the first')
  for (let i = 0; i < 10_000; i++) limit.record(`address ${i}`)
  expect(limit.record('the first')).toBeNull()
  for (let i = 1; i < FAILURES_MAX; i++) limit.record('address 9999')
  expect(limit.record('address 9999')).not.toBeNull()
})
