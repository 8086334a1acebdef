import type { DefinitionShape, ErrorBody, SubmitResponse } from '@ichido/sdk/protocol'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import type { Role } from '../../core/limits/roles.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import { type Answer, type TestApp, testApp } from '../../testing/http/app.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { unique } from '../../testing/store/store.ts'

const errorOf = ({ body }: Answer) => (body as ErrorBody).error
const tooHigh = (max: number, role: Role, setting: string) => ({
  code: 'INVALID_PAYLOAD',
  message: `priority must be at most ${max} for the role ${role}; lower it, or have an admin raise the setting ${setting}`,
  details: { field: 'priority' },
})
const SUBMITTER = tooHigh(100, 'submitter', 'submitter_priority_max')

describe.each(ENGINES)('the highest priority of a role on %s', (engine) => {
  let http: TestApp
  const tokens: Partial<Record<Role, string>> = {}
  beforeAll(async () => {
    http = await testApp(engine)
    for (const role of ['submitter', 'operator', 'admin'] as const) tokens[role] = await http.token('amy', role)
  })
  afterAll(() => http.close())
  afterEach(async () => {
    for (const name of ['submitter_priority_max', 'operator_priority_max'])
      await http.services.settings.reset(LOCAL_ADMIN, name)
  })

  const call = (role: Role, method: string, path: string, body?: object) =>
    http.call(method, path, { token: tokens[role] ?? '', ...(body === undefined ? {} : { body }) })
  const submit = (role: Role, body: object) => call(role, 'POST', '/v1/jobs', { kind: 'work', ...body })
  const jobIdOf = ({ body }: Answer) => (body as SubmitResponse).job_id

  test('a submission up to it is accepted, and above it is refused', async () => {
    expect((await submit('submitter', { priority: 100 })).status).toBe(201)
    const refused = await submit('submitter', { priority: 101 })
    expect([refused.status, errorOf(refused)]).toMatchObject([400, SUBMITTER])
    for (const role of ['operator', 'admin'] as const) expect((await submit(role, { priority: 1000 })).status).toBe(201)
    await http.services.settings.put(LOCAL_ADMIN, 'operator_priority_max', 500)
    for (const role of ['operator', 'admin'] as const) {
      expect(errorOf(await submit(role, { priority: 501 }))).toMatchObject(tooHigh(500, role, 'operator_priority_max'))
    }
  })

  test('in a batch only that item is refused', async () => {
    const jobs = [{ kind: 'work' }, { kind: 'work', priority: 101 }, { kind: 'work', priority: 100 }]
    const { body } = await call('submitter', 'POST', '/v1/jobs/batch', { jobs })
    expect(body).toMatchObject({ data: [{ status: 201 }, { status: 400, error: SUBMITTER }, { status: 201 }] })
  })

  test('a repeat gets the first answer after the maximum was lowered', async () => {
    const body = { priority: 90, idempotency_key: unique('key') }
    const first = await submit('submitter', body)
    await http.services.settings.put(LOCAL_ADMIN, 'submitter_priority_max', 10)
    expect(await submit('submitter', body)).toMatchObject({ status: 201, text: first.text })
    expect((await submit('submitter', { ...body, idempotency_key: unique('key') })).status).toBe(400)
  })

  test('a definition is checked when it is stored, and its jobs keep the priority', async () => {
    await http.services.settings.put(LOCAL_ADMIN, 'operator_priority_max', 500)
    const name = unique('definition')
    const write = (method: string, path: string, priority: number) =>
      call('operator', method, path, { ...(method === 'POST' ? { name } : {}), kind: 'work', priority })
    const wanted = tooHigh(500, 'operator', 'operator_priority_max')
    expect(errorOf(await write('POST', '/v1/definitions', 501))).toMatchObject(wanted)
    const made = await write('POST', '/v1/definitions', 500)
    expect(made).toMatchObject({ status: 201, body: { user_id: 'amy' } })
    expect(errorOf(await write('PUT', `/v1/definitions/${name}`, 501))).toMatchObject(wanted)
    expect(((await call('operator', 'GET', `/v1/definitions/${name}`)).body as DefinitionShape).priority).toBe(500)
    await http.services.settings.put(LOCAL_ADMIN, 'operator_priority_max', 0)
    const run = await call('operator', 'POST', `/v1/definitions/${name}/run`)
    expect(run.status).toBe(201)
    expect(await http.services.jobs.get(LOCAL_ADMIN, jobIdOf(run))).toMatchObject({ priority: 500, user_id: 'amy' })
  })

  test('a job above it can be retried, but replaced only by a role that may use it', async () => {
    const jobId = jobIdOf(await submit('operator', { priority: 900 }))
    await call('operator', 'POST', `/v1/jobs/${jobId}/cancel`)
    const replace = (role: Role) => call(role, 'POST', `/v1/jobs/${jobId}/retry`, { payload: { other: true } })
    expect(errorOf(await replace('submitter'))).toMatchObject(SUBMITTER)
    expect((await call('submitter', 'POST', `/v1/jobs/${jobId}/retry`)).status).toBe(200)
    await call('operator', 'POST', `/v1/jobs/${jobId}/cancel`)
    expect((await replace('operator')).status).toBe(201)
  })
})
