import { randomUUID } from 'node:crypto'
import type { JobDetail, JobShape, Page, ReservationShape } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { LOCAL_ADMIN } from '../../../services/access/access.ts'
import { type Answer, type Call, type TestApp, testApp } from '../../../testing/http/app.ts'
import { finish, lease } from '../../../testing/http/cloud-worker.ts'
import { ENGINES } from '../../../testing/services/services.ts'
import { sql } from '../../../testing/store/store.ts'
import type { CloudAnswer, CloudError, CloudJob } from './shapes.ts'

const SUBMIT = '/api/cloud/jobs/submit?provider=replicate'

const FIRST = {
  success: true,
  status: 'uploading',
  data_uploaded: true,
  idempotent_hit: false,
  quota_warnings: [],
  cost_limit_warning: null,
  error: null,
}

const said = (answer: Answer) => answer.body as CloudAnswer
const jobId = (answer: Answer) => said(answer).job_id ?? ''
const fieldOf = (answer: Answer) => (answer.body as CloudError).details.field

describe.each(ENGINES)('compat/cloud on %s', (engine) => {
  let http: TestApp
  beforeAll(async () => {
    http = await testApp(engine)
  })
  afterAll(() => http.close())

  const post = (path: string, body?: unknown, call: Call = {}) => http.call('POST', path, { ...call, body })
  const submit = (body: object, call?: Call) => post(SUBMIT, { config_name_to_load: 'lora', ...body }, call)
  const detail = async (id: string) => (await http.call('GET', `/v1/jobs/${id}`)).body as JobDetail

  test('the first answer is the same as that of S0', async () => {
    const answer = await submit({ idempotency_key: 'ci-build-abc123', tracker_run_name: 'gh-1' })
    expect(answer).toMatchObject({ status: 200, body: { ...FIRST, job_id: expect.any(String) } })
    expect(Object.keys(said(answer))).toHaveLength(8)
    expect(await detail(jobId(answer))).toMatchObject({
      kind: 'cloud.train',
      queue: 'cloud.replicate',
      idempotency_key: 'ci-build-abc123',
      payload: { config_name_to_load: 'lora', tracker_run_name: 'gh-1', provider: 'replicate' },
    })
  })

  test('webhook_url is the callback of the job, and a replay keeps the first one', async () => {
    const [first, second] = ['https://example.org/one', 'https://example.org/two']
    const key = { idempotency_key: 'called-back' }
    const answer = await submit({ ...key, webhook_url: first })
    expect(answer).toMatchObject({ status: 200, body: FIRST })
    const { callback, payload } = await detail(jobId(answer))
    expect(callback).toEqual({ url: first, delivery: null })
    expect(payload).toMatchObject({ webhook_url: first })
    expect(said(await submit({ ...key, webhook_url: second }))).toMatchObject({ idempotent_hit: true })
    expect((await detail(jobId(answer))).callback?.url).toBe(first)
    for (const none of [{}, { webhook_url: null }, { webhook_url: '' }]) {
      expect((await detail(jobId(await submit(none)))).callback).toBe(null)
    }
  })

  test.each([
    ['http://example.org/', 'without TLS'],
    ['https://169.254.169.254/', 'private or reserved address'],
    ['https://ann:pw@example.org/', 'user name or password'],
    ['example.org', 'must be an address'],
    [`https://example.org/${'x'.repeat(2_000)}`, 'at most 2000 characters'],
  ])('the webhook_url %.40s is refused as S0 refuses, and makes no job', async (url, why) => {
    const provider = `refused-${randomUUID()}`
    const sent = { config_name_to_load: 'lora', webhook_url: url }
    const answer = await post(`/api/cloud/jobs/submit?provider=${provider}`, sent)
    expect(answer).toMatchObject({ status: 200, body: { success: false, job_id: null } })
    expect(said(answer).error).toMatch(/^webhook_url /)
    expect(said(answer).error).toContain(why)
    const jobs = await http.call('GET', `/v1/jobs?queue=cloud.${provider}`)
    expect((jobs.body as Page<JobShape>).data).toEqual([])
  })

  test('a replay has the current status', async () => {
    const path = '/api/cloud/jobs/submit?provider=replay'
    const again = () => post(path, { config_name_to_load: 'lora', idempotency_key: 'replay' })
    const first = await again()
    const statuses = async () => {
      const { body } = await again()
      expect(body).toMatchObject({ success: true, job_id: jobId(first), idempotent_hit: true })
      return (body as CloudAnswer).status
    }
    expect(await statuses()).toBe('queued')
    const { lease_id } = await lease(http, 'cloud.replay')
    expect(await statuses()).toBe('running')
    await finish(http, lease_id)
    expect(await statuses()).toBe('completed')
  })

  test('a key stands for provider and config name only', async () => {
    const key = randomUUID()
    const first = await submit({ idempotency_key: key, tracker_run_name: 'gh-1', config: { steps: 1 } })
    const second = await submit({ idempotency_key: key, tracker_run_name: 'gh-2' })
    expect(second).toMatchObject({ status: 200, body: { job_id: jobId(first), idempotent_hit: true } })

    const otherConfig = await submit({ idempotency_key: key, config_name_to_load: 'other' })
    const body = { config_name_to_load: 'lora', idempotency_key: key }
    const otherProvider = await post('/api/cloud/jobs/submit?provider=other', body)
    for (const answer of [otherConfig, otherProvider]) {
      expect(answer).toMatchObject({ status: 200, body: { success: false, job_id: null, idempotent_hit: false } })
      expect(said(answer).error).toContain(key)
    }
    const { body: found } = await http.call('GET', `/v1/jobs?key=${key}`)
    expect((found as Page<JobShape>).data).toHaveLength(1)
  })

  test('without a provider the job goes to replicate', async () => {
    const key = randomUUID()
    const answer = await post('/api/cloud/jobs/submit', { config_name_to_load: 'lora', idempotency_key: key })
    expect(await detail(jobId(answer))).toMatchObject({ queue: 'cloud.replicate', payload: { provider: 'replicate' } })
    expect(await submit({ idempotency_key: key })).toMatchObject({ body: { job_id: jobId(answer) } })
  })

  test('the key of a config without a name stands for its content', async () => {
    const key = randomUUID()
    const sent = { config: { lr: 0.1, steps: 5 }, config_name: 'my-lora', dataloader_config: [{ id: 'a' }] }
    const again = (changes: object) => post(SUBMIT, { ...sent, idempotency_key: key, ...changes })
    const first = await again({ config_name_to_load: null })
    expect(first).toMatchObject({ status: 200, body: FIRST })
    expect((await detail(jobId(first))).payload).toEqual({ ...sent, provider: 'replicate' })
    const { job } = (await http.call('GET', `/api/cloud/jobs/${jobId(first)}`)).body as { job: CloudJob }
    expect(job.config_name).toBe('my-lora')

    const same = { config: { steps: 5, lr: 0.1 }, config_name: 'renamed', tracker_run_name: 'gh-2' }
    expect(await again(same)).toMatchObject({ body: { job_id: jobId(first), idempotent_hit: true } })
    for (const other of [{ config: { lr: 0.2 } }, { dataloader_config: [] }, { config_name_to_load: 'my-lora' }]) {
      expect(await again(other)).toMatchObject({
        status: 200,
        body: { success: false, error: expect.stringContaining(key) },
      })
    }
    const nameless = await post(SUBMIT, { config: { a: 1 } })
    const shown = (await http.call('GET', `/api/cloud/jobs/${jobId(nameless)}`)).body as { job: CloudJob }
    expect(shown.job.config_name).toBeNull()
  })

  describe('a dry run', () => {
    const counted = async () => {
      const tables = ['jobs', 'runs', 'events', 'idempotency_keys', 'job_reservations', 'job_labels']
      const counts = tables.map((table) => sql(http.services.deps.store, `SELECT count(*) AS n FROM ichido.${table}`))
      return (await Promise.all(counts)).map(([row]) => row?.n)
    }

    test.each([
      ['in the body', SUBMIT, { dry_run: true }],
      ['in the query', `${SUBMIT}&dry_run=true`, {}],
    ])('%s answers like a submission, and stores nothing', async (_, path, flag) => {
      const key = randomUUID()
      const before = await counted()
      const dry = () => post(path, { config_name_to_load: 'lora', idempotency_key: key, ...flag })
      const unmade = { ...FIRST, job_id: null, status: null, dry_run: true }
      for (let i = 0; i < 2; i++) expect(await dry()).toMatchObject({ status: 200, body: unmade })
      expect(await counted()).toEqual(before)

      const made = await submit({ idempotency_key: key })
      expect(said(made).idempotent_hit).toBe(false)
      const matched = { success: true, job_id: jobId(made), status: 'queued', idempotent_hit: true, dry_run: true }
      expect(await dry()).toMatchObject({ body: matched })
      expect((await detail(jobId(made))).payload).toEqual({ config_name_to_load: 'lora', provider: 'replicate' })
    })

    test('reports a full quota and a key of another config', async () => {
      const key = randomUUID()
      await submit({ idempotency_key: key })
      const mismatch = await submit({ idempotency_key: key, config_name_to_load: 'other', dry_run: true })
      expect(mismatch).toMatchObject({ status: 200, body: { success: false, error: expect.stringContaining(key) } })
      await http.call('PUT', '/v1/quotas/local', { body: { max_concurrent: 0 } })
      try {
        const error = 'Quota exceeded: Maximum 0 concurrent jobs allowed'
        expect(await submit({ dry_run: true })).toMatchObject({ status: 200, body: { success: false, error } })
      } finally {
        await http.call('DELETE', '/v1/quotas/local')
      }
    })

    test('with dry_run: false is a submission', async () => {
      expect(await submit({ dry_run: false })).toMatchObject({ body: { success: true, job_id: expect.any(String) } })
    })
  })

  test('many requests with one key make one job', async () => {
    const key = randomUUID()
    const answers = await Promise.all(Array.from({ length: 40 }, () => submit({ idempotency_key: key })))
    expect(new Set(answers.map(jobId)).size).toBe(1)
    expect(answers.filter((answer) => !said(answer).idempotent_hit)).toHaveLength(1)
  })

  test('a key of the native API is separate', async () => {
    const key = randomUUID()
    const native = await post('/v1/jobs', { kind: 'work', idempotency_key: key })
    expect(native.status).toBe(201)
    expect(await submit({ idempotency_key: key })).toMatchObject({ body: { success: true, idempotent_hit: false } })
  })

  test('the header may have the key', async () => {
    const key = randomUUID()
    const first = await submit({}, { headers: { 'idempotency-key': key } })
    const second = await submit({ idempotency_key: key }, { headers: { 'idempotency-key': `"${key}"` } })
    expect(second).toMatchObject({ body: { job_id: jobId(first), idempotent_hit: true } })
    const differs = await submit({ idempotency_key: key }, { headers: { 'idempotency-key': 'another' } })
    expect(differs).toMatchObject({ status: 400, body: { success: false, code: 'KEY_CONFLICT' } })
  })

  test('without a key every request is a job, and null counts as no key', async () => {
    const [one, two] = [await submit({}), await submit({ idempotency_key: null, tracker_run_name: null })]
    expect(jobId(one)).not.toBe(jobId(two))
    expect((await detail(jobId(two))).payload).toEqual({ config_name_to_load: 'lora', provider: 'replicate' })
  })

  test('unknown fields go to the worker', async () => {
    const sent = { config: { lr: 0.1 }, dataloader_config: [{ id: 'a' }], snapshot_name: 's', gpu_count: 2, odd: null }
    const answer = await submit(sent)
    expect((await detail(jobId(answer))).payload).toEqual({
      ...sent,
      config_name_to_load: 'lora',
      provider: 'replicate',
    })
  })

  test('a consumed reservation is stored beside the job', async () => {
    const answer = await submit({})
    const { body } = await http.call('GET', '/v1/reservations?limit=200')
    const rows = (body as Page<ReservationShape>).data.filter((row) => row.job_id === jobId(answer))
    expect(rows).toMatchObject([{ state: 'consumed' }])
  })

  test('the job consumes a reservation of the request', async () => {
    const { body: held } = await post('/v1/reservations', {})
    const { reservation_id } = held as ReservationShape
    const answer = await submit({ reservation_id })
    const { body } = await http.call('GET', '/v1/reservations?limit=200')
    const rows = (body as Page<ReservationShape>).data.filter((row) => row.job_id === jobId(answer))
    expect(rows).toMatchObject([{ reservation_id, state: 'consumed' }])
    const again = await submit({ reservation_id })
    expect(again).toMatchObject({
      status: 200,
      body: { success: false, error: expect.stringContaining('reservation') },
    })
  })

  describe('a definition with the name of the config', () => {
    const define = (name: string, queue: string | null, payload: unknown) =>
      http.services.definitions.create(LOCAL_ADMIN, name, {
        kind: 'cloud.train',
        queue,
        payload,
        max_attempts: 7,
        timeout_seconds: 60,
      })

    test('supplies payload and policy, and the request overrides them', async () => {
      await define('production', null, { steps: 100, tracker_run_name: 'nightly', provider: 'lent' })
      const answer = await submit({ config_name_to_load: 'production', tracker_run_name: 'gh-9' })
      expect(await detail(jobId(answer))).toMatchObject({
        kind: 'cloud.train',
        queue: 'cloud.replicate',
        definition: 'production',
        policy: { max_attempts: 7, timeout_seconds: 60 },
        payload: {
          steps: 100,
          tracker_run_name: 'gh-9',
          provider: 'replicate',
          config_name_to_load: 'production',
        },
      })
    })

    test('may set the queue, and a payload that is not an object is ignored', async () => {
      await define('large', 'gpu.large', [1, 2])
      const answer = await submit({ config_name_to_load: 'large' })
      const { queue, payload } = await detail(jobId(answer))
      expect({ queue, payload }).toEqual({
        queue: 'gpu.large',
        payload: { config_name_to_load: 'large', provider: 'replicate' },
      })
      const { body } = await http.call('GET', '/api/cloud/jobs?provider=replicate')
      expect((body as { jobs: CloudJob[] }).jobs[0]).toMatchObject({ job_id: jobId(answer), config_name: 'large' })
    })
  })

  test('a definition of another kind is ignored, because submitters may not see it', async () => {
    const hidden = { kind: 'backup', queue: 'backups', payload: { password: 's3cret' } }
    await http.services.definitions.create(LOCAL_ADMIN, 'nightly-backup', hidden)
    const answer = await submit({ config_name_to_load: 'nightly-backup' })
    const job = await detail(jobId(answer))
    expect(job).toMatchObject({ queue: 'cloud.replicate', definition: null })
    expect(job.payload).toEqual({ config_name_to_load: 'nightly-backup', provider: 'replicate' })
  })

  describe('bad input is an ordinary 400 that names the field', () => {
    const body = { config_name_to_load: 'lora' }

    test.each([
      ['an empty provider', '?provider=', 'provider'],
      ['a slash in the provider', '?provider=a%2Fb', 'provider'],
      ['65 characters of provider', `?provider=${'p'.repeat(65)}`, 'provider'],
      ['two providers', '?provider=a&provider=b', 'provider'],
    ])('%s', async (_, query, field) => {
      const answer = await post(`/api/cloud/jobs/submit${query}`, body)
      expect(answer).toMatchObject({ status: 400, body: { success: false, code: 'INVALID_PAYLOAD' } })
      expect(fieldOf(answer)).toBe(field)
    })

    test('a key with wrong characters is refused with the allowed ones', async () => {
      for (const [key, place] of [
        ['two words', 'character 4 is U+0020'],
        ['  ', 'character 1 is U+0020'],
        ['一度', 'character 1 is U+4E00'],
        ['a😀', 'character 2 is U+1F600'],
      ] as const) {
        const sentence = `idempotency_key must be visible ASCII (letters, digits and punctuation, no spaces); ${place}`
        const answer = await post(SUBMIT, { ...body, idempotency_key: key })
        expect(answer).toMatchObject({ status: 400, body: { success: false, error: sentence, detail: sentence } })
      }
    })

    test('a provider may have 64 characters of every allowed sort', async () => {
      const provider = `Ab9._-${'x'.repeat(58)}`
      const answer = await post(`/api/cloud/jobs/submit?provider=${provider}`, body)
      expect((await detail(jobId(answer))).queue).toBe(`cloud.${provider}`)
    })

    test.each([
      ['no config name', {}, 'config_name_to_load'],
      ['null as config name', { config_name_to_load: null }, 'config_name_to_load'],
      ['an empty config', { config: {} }, 'config_name_to_load'],
      ['257 characters of a name for a config', { config: { a: 1 }, config_name: 'x'.repeat(257) }, 'config_name'],
      ['text as dry_run', { ...body, dry_run: 'yes' }, 'dry_run'],
      ['an empty config name', { config_name_to_load: '' }, 'config_name_to_load'],
      ['a line break in the config name', { config_name_to_load: 'a\nb' }, 'config_name_to_load'],
      ['257 characters of config name', { config_name_to_load: 'x'.repeat(257) }, 'config_name_to_load'],
      ['a number as key', { ...body, idempotency_key: 7 }, 'idempotency_key'],
      ['an empty key', { ...body, idempotency_key: '' }, 'idempotency_key'],
      ['257 characters of key', { ...body, idempotency_key: 'k'.repeat(257) }, 'idempotency_key'],
      ['a space in the key', { ...body, idempotency_key: 'two words' }, 'idempotency_key'],
      ['a number as tracker_run_name', { ...body, tracker_run_name: 1 }, 'tracker_run_name'],
      ['text as config', { ...body, config: 'text' }, 'config'],
      ['an object as dataloader_config', { ...body, dataloader_config: {} }, 'dataloader_config'],
      ['a list as webhook_url', { ...body, webhook_url: [] }, 'webhook_url'],
      ['a negative cost', { ...body, estimated_cost: -1 }, 'estimated_cost'],
      ['a reservation that is no UUID', { ...body, reservation_id: 'r1' }, 'reservation_id'],
    ])('%s', async (_, sent, field) => {
      const answer = await post(SUBMIT, sent)
      expect(answer).toMatchObject({ status: 400, body: { success: false, code: 'INVALID_PAYLOAD' } })
      expect(fieldOf(answer)).toBe(field)
    })

    test.each(['{"config_name_to_load":', '[]', '"text"', '{"config_name_to_load":"a\\u0000b"}'])(
      '%s',
      async (sent) => {
        expect(await post(SUBMIT, sent)).toMatchObject({
          status: 400,
          body: { success: false, code: 'INVALID_PAYLOAD' },
        })
      },
    )
  })
})
