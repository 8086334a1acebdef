import { randomUUID } from 'node:crypto'
import type { JobDetail } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type TestApp, testApp } from '../../../testing/http/app.ts'
import { FAILURE, RESULT, submitZpe, ZpeWorker } from '../../../testing/http/zpe.ts'
import { Reaper } from '../../../testing/nodes/reaper.ts'
import { ENGINES } from '../../../testing/services/services.ts'
import { ageWorker } from '../../../testing/services/workers.ts'
import { sql } from '../../../testing/store/store.ts'

const ENROLL = '/calc/zpe/compute/enroll-tokens'
const REGISTER = '/calc/zpe/compute/servers/register'
const WEEK_SECONDS = 7 * 24 * 3600

describe.each(ENGINES)('the compute servers of S1, on %s', (engine) => {
  let http: TestApp
  beforeAll(async () => {
    http = await testApp(engine)
  })
  afterAll(() => http.close())

  const store = () => http.services.deps.store
  const detail = async (jobId: string) => (await http.call('GET', `/v1/jobs/${jobId}`)).body as JobDetail

  test('an enroll token may have a label and a lifetime', async () => {
    const made = await http.call('POST', ENROLL, { body: { ttl_seconds: 60, label: 'lab', extra: 1 } })
    expect(made).toMatchObject({ status: 200, body: { ttl_seconds: 60, label: 'lab' } })
    const { expires_at } = made.body as { expires_at: string }
    expect(Math.abs(Date.parse(expires_at) - Date.now() - 60_000)).toBeLessThan(30_000)
    expect(Object.keys(made.body as object).sort()).toEqual(['expires_at', 'label', 'token', 'ttl_seconds'])
    for (const call of [{}, { body: {} }, { body: { ttl_seconds: null, label: null } }, { body: { label: '' } }]) {
      expect(await http.call('POST', ENROLL, call)).toMatchObject({
        status: 200,
        body: { ttl_seconds: 3600, label: null },
      })
    }
    expect(await http.call('POST', ENROLL, { body: { ttl_seconds: 0 } })).toMatchObject({ status: 400 })
  })

  test('an empty name counts as left out', async () => {
    const { token } = (await http.call('POST', ENROLL, { body: { label: 'lab' } })).body as { token: string }
    const made = await http.call('POST', REGISTER, { body: { token, name: '' } })
    expect(made).toMatchObject({ status: 200, body: { name: 'lab' } })
    const wrong = await http.call('POST', ENROLL, { body: { label: 7 } })
    expect(wrong).toMatchObject({ status: 400, body: { error: { message: 'label must be a string' } } })
  })

  test('an enroll token registers one server, for the queue zpe', async () => {
    const { token } = (await http.call('POST', ENROLL)).body as { token: string }
    const body = { token, name: 'gpu-1', meta: { cores: 8 }, unknown: true }
    const made = await http.call('POST', REGISTER, { body })
    const { worker_id } = made.body as { worker_id: string }
    expect(made).toMatchObject({ status: 200 })
    expect(made.body).toEqual({
      server_id: worker_id,
      worker_id,
      registered_at: expect.any(String),
      name: 'gpu-1',
      worker_token: expect.stringMatching(/^\S{40,}$/),
      token_expires_at: expect.any(String),
      token_ttl_seconds: WEEK_SECONDS,
    })
    const { token_expires_at } = made.body as { token_expires_at: string }
    expect(Math.abs(Date.parse(token_expires_at) - Date.now() - WEEK_SECONDS * 1000)).toBeLessThan(30_000)
    expect((await http.call('GET', `/v1/workers/${worker_id}`)).body).toMatchObject({
      name: 'gpu-1',
      queues: ['zpe'],
      meta: { cores: 8 },
    })
    const stored = JSON.stringify(await sql(store(), 'SELECT * FROM ichido.worker_tokens'))
    expect(stored).not.toContain((made.body as { worker_token: string }).worker_token)

    for (const wrong of [token, 'guess']) {
      const again = await http.call('POST', REGISTER, { body: { token: wrong } })
      expect(again).toMatchObject({ status: 401, body: { error: { code: 'UNAUTHENTICATED' } } })
    }
    const missing = await http.call('POST', REGISTER, { body: { name: 'x' } })
    expect(missing).toMatchObject({ status: 400, body: { error: { message: 'Missing required field: token' } } })
  })

  test('null counts as left out, as pydantic clients send it', async () => {
    const { token } = (await http.call('POST', ENROLL)).body as { token: string }
    expect(await http.call('POST', REGISTER, { body: { token, name: null, meta: null } })).toMatchObject({
      status: 200,
    })
  })

  test('missing, unknown and expired tokens get 401, revoked servers get 403', async () => {
    const one = await ZpeWorker.register(http)
    const job_id = await submitZpe(http)
    await one.leased()
    const calls = (token: string) => [
      one.lease({ token }),
      one.call(`${job_id}/result`, { token, body: RESULT }),
      one.call(`${job_id}/failed`, { token, body: FAILURE }),
    ]
    const statuses = async (token: string) => (await Promise.all(calls(token))).map((answer) => answer.status)
    expect(await statuses('guess')).toEqual([401, 401, 401])
    expect(await http.call('POST', '/calc/zpe/compute/jobs/lease')).toMatchObject({ status: 401 })

    const expired = await ZpeWorker.register(http)
    await ageWorker(store(), expired.id, WEEK_SECONDS * 1000 + 1000)
    expect(await statuses(expired.token)).toEqual([401, 401, 401])

    const revoke = () => http.call('DELETE', `/calc/zpe/compute/servers/${one.id}`)
    expect(await revoke()).toMatchObject({ status: 200, body: { revoked_count: 1 } })
    expect(await statuses(one.token)).toEqual([403, 403, 403])
    expect(await revoke()).toMatchObject({ status: 200, body: { revoked_count: 0 } })
    expect(await statuses(one.token)).toEqual([403, 403, 403])
    for (const id of [randomUUID(), 'server-1']) {
      expect(await http.call('DELETE', `/calc/zpe/compute/servers/${id}`)).toMatchObject({ status: 404 })
    }
    expect((await detail(job_id)).state).toBe('RUNNING')
    await (await Reaper.of(store())).reapAll()
    expect((await detail(job_id)).runs.map((run) => run.state)).toEqual(['TIMED_OUT', 'PENDING'])
  })

  test('a worker of other queues gets no lease', async () => {
    const { body } = await http.call('POST', '/v1/workers/enroll-tokens', { body: { queues: ['media'] } })
    const { enroll_token } = body as { enroll_token: string }
    const { worker_token } = (await http.call('POST', REGISTER, { body: { token: enroll_token } })).body as {
      worker_token: string
    }
    expect(await http.call('POST', '/calc/zpe/compute/jobs/lease', { token: worker_token })).toMatchObject({
      status: 403,
    })
  })
})
