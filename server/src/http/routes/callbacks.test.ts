import type { CallbackSecretShape, ErrorBody, JobDetail, JobShape, Page } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { callbackSecret, delivery } from '../../contract/deliveries.ts'
import { jobDetail } from '../../contract/jobs.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import { beginEnds } from '../../store/webhooks/derive-deliveries.ts'
import { type Answer, type TestApp, testApp } from '../../testing/http/app.ts'
import { courier, deliverer, delivering, endJob } from '../../testing/nodes/deliverer.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { unique } from '../../testing/store/store.ts'

const URL = 'https://example.org/ended'
const NO_ID = '01a1e12b-0000-7000-8000-000000000000'
const errorOf = ({ body }: Answer) => (body as ErrorBody).error

describe.each(ENGINES)('callbacks on %s', (engine) => {
  let http: TestApp
  beforeAll(async () => {
    http = await testApp(engine, { deps: { courier } })
    await http.services.deps.store.write(beginEnds())
  })
  afterAll(() => http.close())

  const submit = (body: object) => http.call('POST', '/v1/jobs', { body: { kind: 'work', ...body } })
  const made = async (body: object) => ((await submit(body)).body as { job_id: string }).job_id
  const callbackOf = async (jobId: string) =>
    jobDetail.parse((await http.call('GET', `/v1/jobs/${jobId}`)).body).callback
  const listed = async (queue: string) =>
    ((await http.call('GET', `/v1/jobs?queue=${queue}`)).body as Page<JobShape>).data
  /** A job whose message was refused for good. */
  async function deadLetterOf(callback_url: string): Promise<string> {
    const jobId = await endJob(http.services, 'succeed', { callback_url })
    const gone = { resolve: async () => ['93.184.216.34'], post: async () => 410 }
    const tick = await deliverer(http.services, { courier: gone, allowPrivate: false })
    await delivering(tick, 'a dead message', async () => (await callbackOf(jobId))?.delivery?.state === 'dead')
    return jobId
  }

  test.each([
    ['a private address', 'https://10.0.0.7/x', 'a private or reserved address'],
    ['cloud metadata', 'https://169.254.169.254/', 'a private or reserved address'],
    ['loopback in other digits', 'https://0x7f.1/', 'a private or reserved address'],
    ['IPv6 loopback', 'https://[::1]/', 'a private or reserved address'],
    ['a mapped address', 'https://[::ffff:192.168.0.1]/', 'a private or reserved address'],
    ['no TLS', 'http://example.org/', 'without TLS'],
    ['another scheme', 'file:///etc/passwd', 'must begin with https://'],
    ['no address', 'example.org', 'must be an address'],
    ['nothing', '', 'must be an address'],
    ['a password', 'https://ann:pw@example.org/', 'user name or password'],
    ['a line break', 'https://example.org/\nx', 'spaces or control characters'],
    ['2,001 characters', `${URL}?${'x'.repeat(2_000 - URL.length)}`, 'callback_url'],
  ])('%s is refused, and nothing is stored', async (_, callback_url, why) => {
    const queue = unique('q')
    const answer = await submit({ queue, callback_url })
    expect(answer.status).toBe(400)
    expect(errorOf(answer)).toMatchObject({ code: 'INVALID_PAYLOAD', details: { field: 'callback_url' } })
    expect(errorOf(answer).message).toContain(why)
    const jobs = [
      { kind: 'work', queue, callback_url },
      { kind: 'work', queue, callback_url: URL },
    ]
    const { body } = await http.call('POST', '/v1/jobs/batch', { body: { jobs } })
    expect((body as { data: { status: number }[] }).data.map(({ status }) => status)).toEqual([400, 201])
    const [good, ...others] = await listed(queue)
    expect(others).toEqual([])
    expect(await callbackOf(good?.job_id ?? '')).toEqual({ url: URL, delivery: null })
  })

  test('with webhooks_allow_private, a private address without TLS is accepted', async () => {
    await http.services.settings.put(LOCAL_ADMIN, 'webhooks_allow_private', 1)
    const url = 'http://127.0.0.1:9/ended'
    expect(await callbackOf(await made({ callback_url: url }))).toMatchObject({ url })
    await http.services.settings.put(LOCAL_ADMIN, 'webhooks_allow_private', 0)
  })

  test('a key stands for its callback, and a job without one is another request', async () => {
    const idempotency_key = unique('key')
    const first = await submit({ idempotency_key, callback_url: URL })
    expect((await submit({ idempotency_key, callback_url: URL })).text).toBe(first.text)
    for (const other of [{}, { callback_url: `${URL}/other` }]) {
      const refused = await submit({ idempotency_key, ...other })
      expect(errorOf(refused).code).toBe('IDEMPOTENCY_KEY_REUSED')
    }
  })

  test('a retry with another payload keeps the callback, also one that is refused by now', async () => {
    await http.services.settings.put(LOCAL_ADMIN, 'webhooks_allow_private', 1)
    const url = 'http://127.0.0.1:9/ended'
    const jobId = await endJob(http.services, 'fail for good', { callback_url: url })
    await http.services.settings.put(LOCAL_ADMIN, 'webhooks_allow_private', 0)
    const { status, body } = await http.call('POST', `/v1/jobs/${jobId}/retry`, { body: { payload: 2 } })
    expect(status).toBe(201)
    expect((body as JobDetail).replaces_job_id).toBe(jobId)
    expect((body as JobDetail).callback).toEqual({ url, delivery: null })
  })

  test('a dead message is listed, and redriven alone or with all others', async () => {
    const jobId = await deadLetterOf(URL)
    const shown = (await callbackOf(jobId))?.delivery
    expect(shown).toMatchObject({ webhook_id: null, job_id: jobId, state: 'dead', attempts: 1, last_status: 410 })
    const list = async (state: string) =>
      ((await http.call('GET', `/v1/callbacks?state=${state}`)).body as Page<unknown>).data
    expect((await list('dead')).map((one) => delivery.parse(one))).toContainEqual(shown)
    const redriven = await http.call('POST', `/v1/jobs/${jobId}/callback/redrive`)
    expect(redriven).toMatchObject({ status: 202, body: { delivery_id: shown?.delivery_id, state: 'pending' } })
    expect(await list('dead')).toEqual([])
    const other = await deadLetterOf(URL)
    const all = await http.call('POST', '/v1/callbacks/redrive')
    expect(all).toMatchObject({ status: 202, body: { redriven: expect.any(Number) } })
    expect((await callbackOf(other))?.delivery?.state).toBe('pending')
  })

  test('a job without a callback, or without an end, has nothing to redrive', async () => {
    for (const id of [NO_ID, 'x', await made({}), await made({ callback_url: URL })]) {
      const answer = await http.call('POST', `/v1/jobs/${id}/callback/redrive`)
      expect(answer.status).toBe(404)
      expect(errorOf(answer).code).toBe('NOT_FOUND')
    }
  })

  test('a user has one secret, which only its rotation changes', async () => {
    const read = async (path = '/v1/callbacks/secret', method = 'GET'): Promise<CallbackSecretShape> =>
      callbackSecret.parse((await http.call(method, path)).body)
    const first = await read()
    expect(first).toEqual({ user_id: 'local', secret: expect.stringMatching(/^whsec_/), old_secret_until: null })
    expect(await read()).toEqual(first)
    const rotated = await read('/v1/callbacks/rotate-secret', 'POST')
    expect(rotated).toMatchObject({ user_id: 'local', old_secret_until: expect.any(String) })
    expect(rotated.secret).not.toBe(first.secret)
    expect(await read()).toEqual(rotated)
    expect(await read('/v1/callbacks/secret?user_id=ann')).toMatchObject({ user_id: 'ann', old_secret_until: null })
    const audit = await http.call('GET', '/v1/audit?action=callback.rotate-secret')
    expect((audit.body as Page<{ subject: string }>).data.map(({ subject }) => subject)).toEqual(['local'])
    expect(audit.text).not.toContain(rotated.secret)
  })
})
