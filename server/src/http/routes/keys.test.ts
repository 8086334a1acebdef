import { randomUUID } from 'node:crypto'
import type { ErrorBody, JobDetail, JobShape, KeyShape, Page, SubmitResponse } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Answer, type TestApp, testApp } from '../../testing/http/app.ts'
import { ENGINES } from '../../testing/services/services.ts'

const code = (answer: Answer) => (answer.body as ErrorBody).error.code

describe.each(ENGINES)('keys on %s', (engine) => {
  let http: TestApp
  beforeAll(async () => {
    http = await testApp(engine)
  })
  afterAll(() => http.close())

  const submit = (key: string, body: object | string) =>
    http.call('POST', '/v1/jobs', { body, headers: { 'idempotency-key': key } })

  /** How many jobs were made with the key. */
  async function jobsOf(key: string): Promise<number> {
    const { body } = await http.call('GET', `/v1/jobs?key=${encodeURIComponent(key)}`)
    return (body as Page<JobShape>).data.length
  }

  test('a repeat gets the first answer, byte for byte', async () => {
    const first = await submit('again', { kind: 'work', payload: { text: 'é "quoted" \\ 1.50', n: 1.5 } })
    expect(first).toMatchObject({ status: 201 })
    expect(first.headers).not.toHaveProperty('idempotent-replayed')
    const { job_id } = first.body as SubmitResponse
    await http.call('POST', `/v1/jobs/${job_id}/cancel`)
    const second = await submit('again', { kind: 'work', payload: { text: 'é "quoted" \\ 1.50', n: 1.5 } })
    expect(second).toMatchObject({ status: 201, text: first.text, headers: { 'idempotent-replayed': 'true' } })
    expect(second.headers['content-type']).toBe(first.headers['content-type'])
    expect(await jobsOf('again')).toBe(1)
  })

  test.each([
    [
      'other order of members',
      '{"kind":"work","payload":{"a":1,"b":[1,{"c":2,"d":3}]}}',
      '{"payload":{"b":[1,{"d":3,"c":2}],"a":1},"kind":"work"}',
    ],
    ['other white space', '{"kind":"work","payload":{"a":1}}', '{ "kind" : "work",\n\t"payload": {"a": 1} }'],
    ['1 and 1.0', '{"kind":"work","payload":1}', '{"kind":"work","payload":1.0}'],
    ['1 and 1e0', '{"kind":"work","payload":1}', '{"kind":"work","payload":1e0}'],
    ['0 and -0', '{"kind":"work","payload":0}', '{"kind":"work","payload":-0}'],
    ['an escaped letter', '{"kind":"work","payload":"a"}', '{"kind":"work","payload":"\\u0061"}'],
    [
      'another trace',
      '{"kind":"work"}',
      '{"kind":"work","traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}',
    ],
    ['another life of the key', '{"kind":"work"}', '{"kind":"work","key_ttl_hours":48}'],
  ])('%s is the same request', async (_, one, other) => {
    const key = randomUUID()
    const first = await submit(key, one)
    expect(await submit(key, other)).toMatchObject({ status: 201, text: first.text })
    expect(await jobsOf(key)).toBe(1)
  })

  test.each([
    ['another value', '{"kind":"work","payload":{"a":1}}', '{"kind":"work","payload":{"a":2}}'],
    ['a number and a string', '{"kind":"work","payload":1}', '{"kind":"work","payload":"1"}'],
    ['a null more', '{"kind":"work","payload":{}}', '{"kind":"work","payload":{"a":null}}'],
    ['another order of a list', '{"kind":"work","payload":[1,2]}', '{"kind":"work","payload":[2,1]}'],
    ['another kind', '{"kind":"work"}', '{"kind":"play"}'],
    ['another priority', '{"kind":"work"}', '{"kind":"work","priority":5}'],
    ['a composed and a decomposed letter', '{"kind":"work","payload":"\u00e9"}', '{"kind":"work","payload":"e\u0301"}'],
  ])('%s is another request', async (_, one, other) => {
    const key = randomUUID()
    const first = await submit(key, one)
    const second = await submit(key, other)
    expect(second).toMatchObject({ status: 409, headers: { 'should-retry': 'false' } })
    const { error } = second.body as ErrorBody
    expect(error.code).toBe('IDEMPOTENCY_KEY_REUSED')
    expect(error.details).toEqual({ job_id: (first.body as SubmitResponse).job_id })
    expect(await jobsOf(key)).toBe(1)
  })

  test('a bare header, a quoted header and the body name the same key', async () => {
    const first = await submit('ci/build-7', { kind: 'work' })
    const quoted = await submit('"ci/build-7"', { kind: 'work' })
    const inBody = await http.call('POST', '/v1/jobs', { body: { kind: 'work', idempotency_key: 'ci/build-7' } })
    const both = await submit('ci/build-7', { kind: 'work', idempotency_key: 'ci/build-7' })
    expect([quoted.text, inBody.text, both.text]).toEqual(Array(3).fill(first.text))
    expect(await jobsOf('ci/build-7')).toBe(1)
  })

  test('a header that differs from the body is refused', async () => {
    const answer = await submit('one', { kind: 'work', idempotency_key: 'two' })
    expect(answer).toMatchObject({ status: 400, headers: { 'should-retry': 'false' } })
    expect(code(answer)).toBe('KEY_CONFLICT')
    expect([await jobsOf('one'), await jobsOf('two')]).toEqual([0, 0])
  })

  test('without a key every request makes a job', async () => {
    const [one, two] = await Promise.all([1, 2].map(() => http.call('POST', '/v1/jobs', { body: { kind: 'work' } })))
    expect(one?.text).not.toBe(two?.text)
  })

  test('200 concurrent requests with one key make one job', async () => {
    const answers = await Promise.all(Array.from({ length: 200 }, () => submit('burst', { kind: 'work' })))
    expect(new Set(answers.map(({ text }) => text)).size).toBe(1)
    expect(answers.filter(({ headers }) => headers['idempotent-replayed'] === undefined)).toHaveLength(1)
  })

  test.each([
    'ci/owner/repo/123',
    'percent%2Fslash',
    '100%',
    'a?b#c;d&e=f+g',
    '"quoted"',
    'back\\slash',
    '..%2f..',
    '~`^{}[]|<>',
    '%25%2525',
    'k'.repeat(256),
    '%'.repeat(256),
  ])('the key %s is found by its path', async (key) => {
    const header = `"${key.replace(/["\\]/g, '\\$&')}"`
    const { job_id } = (await submit(header, { kind: 'work' })).body as SubmitResponse
    const shown = await http.call('GET', `/v1/idempotency-keys/${encodeURIComponent(key)}`)
    expect(shown).toMatchObject({ status: 200, body: { data: [{ key, job_id, active: true, user_id: 'local' }] } })
    const job = (await http.call('GET', `/v1/jobs/${job_id}`)).body as JobDetail
    expect(job.idempotency_key).toBe(key)
  })

  test('a key lives as long as requested, and can only be extended', async () => {
    await http.call('POST', '/v1/jobs', { body: { kind: 'work', idempotency_key: 'long', key_ttl_hours: 1 } })
    const hours = async () => {
      const { data } = (await http.call('GET', '/v1/idempotency-keys/long')).body as { data: KeyShape[] }
      const [key] = data
      return (Date.parse(key?.expires_at ?? '') - Date.parse(key?.created_at ?? '')) / 3_600_000
    }
    expect(await hours()).toBe(1)
    const extended = await http.call('PATCH', '/v1/idempotency-keys/long', { body: { ttl_hours: 48 } })
    expect(extended.status).toBe(200)
    expect(await hours()).toBeGreaterThan(47.9)
    await http.call('PATCH', '/v1/idempotency-keys/long', { body: { ttl_hours: 1 } })
    expect(await hours()).toBeGreaterThan(47.9)
  })

  test('the list of keys is complete, and can show only active keys', async () => {
    const all: string[] = []
    let cursor = ''
    do {
      const { body } = await http.call('GET', `/v1/idempotency-keys?limit=7${cursor}`)
      const { data, next_cursor } = body as Page<KeyShape>
      all.push(...data.map(({ key }) => key))
      cursor = next_cursor === null ? '' : `&cursor=${next_cursor}`
    } while (cursor !== '')
    expect(new Set(all).size).toBe(all.length)
    expect(all).toContain('ci/owner/repo/123')
    const active = (await http.call('GET', '/v1/idempotency-keys?active=true&limit=200')).body as Page<KeyShape>
    expect(active.data.map(({ key }) => key)).toEqual(all)
  })

  test('an expired key is active until its job has ended, and then it is free', async () => {
    const short = { kind: 'work', idempotency_key: 'short', key_ttl_hours: 1e-9 }
    const first = await http.call('POST', '/v1/jobs', { body: short })
    const { job_id } = first.body as SubmitResponse
    expect((await http.call('POST', '/v1/jobs', { body: short })).text).toBe(first.text)
    await http.call('POST', `/v1/jobs/${job_id}/cancel`)
    const active = (await http.call('GET', '/v1/idempotency-keys?active=true&limit=200')).body as Page<KeyShape>
    expect(active.data.map(({ key }) => key)).not.toContain('short')
    const next = await http.call('POST', '/v1/jobs', { body: { ...short, payload: 'another' } })
    expect(next.status).toBe(201)
    expect((next.body as SubmitResponse).job_id).not.toBe(job_id)
  })
})

describe('a mismatch by the IETF draft', () => {
  let http: TestApp
  beforeAll(async () => {
    http = await testApp('sqlite', { mismatchStatus: 422 })
  })
  afterAll(() => http.close())

  test('is 422 by setting, alone and in a batch', async () => {
    await http.call('POST', '/v1/jobs', { body: { kind: 'work', idempotency_key: 'k' } })
    const answer = await http.call('POST', '/v1/jobs', { body: { kind: 'play', idempotency_key: 'k' } })
    expect(answer).toMatchObject({ status: 422, headers: { 'should-retry': 'false' } })
    expect(code(answer)).toBe('IDEMPOTENCY_KEY_REUSED')
    const batch = await http.call('POST', '/v1/jobs/batch', {
      body: { jobs: [{ kind: 'play', idempotency_key: 'k' }] },
    })
    expect(batch).toMatchObject({ status: 200, body: { data: [{ status: 422 }] } })
  })
})
