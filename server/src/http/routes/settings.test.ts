import type { AuditShape, ErrorBody, Page, SettingShape } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { auditEntry } from '../../contract/access.ts'
import { setting } from '../../contract/system.ts'
import { SETTING_NAMES } from '../../core/limits/settings.ts'
import { hashToken, LOCAL_ADMIN } from '../../services/access/access.ts'
import { type Answer, type Call, type TestApp, testApp } from '../../testing/http/app.ts'
import { registeredWorker, type WorkerCalls } from '../../testing/http/worker-calls.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { sql, unique } from '../../testing/store/store.ts'

/** Changes of administrators, and their entries in the audit. */

const NOBODY = '01900000-0000-7000-8000-000000000000'

describe.each(ENGINES)('on %s', (engine) => {
  let http: TestApp
  const tokens = { admin: '', operator: '', viewer: '', submitter: '' }
  beforeAll(async () => {
    http = await testApp(engine)
    for (const role of ['admin', 'operator', 'viewer', 'submitter'] as const) {
      tokens[role] = await http.token(role, role)
    }
  })
  afterAll(() => http.close())

  const call = (method: string, path: string, options: Call = {}) =>
    http.call(method, path, { token: tokens.admin, ...options })
  const put = (name: string, value: unknown) => call('PUT', `/v1/settings/${name}`, { body: { value } })
  const errorOf = ({ status, body }: Answer) => ({ status, ...(body as ErrorBody).error })

  async function read<T>(path: string): Promise<T> {
    const answer = await call('GET', path)
    expect(answer, answer.text).toMatchObject({ status: 200 })
    return answer.body as T
  }
  const audit = (query: string) => read<Page<AuditShape>>(`/v1/audit?${query}`)
  /** Oldest first. */
  const entries = async (subject: string) =>
    (await audit(`limit=200&subject=${encodeURIComponent(subject)}`)).data
      .map(({ audit_id, created_at, subject, ...told }) => told)
      .toReversed()

  describe('settings', () => {
    test('are listed with bounds, shown, changed and reset', async () => {
      const { data } = await read<Page<SettingShape>>('/v1/settings')
      expect(data.map(({ name }) => name)).toEqual(SETTING_NAMES)
      for (const each of data) expect(setting.parse(each)).toEqual(each)
      const name = 'promote_batch_max'
      const fresh = { name, value: 1_000, default: 1_000, min: 1, max: 10_000, source: 'default' }
      expect(await read(`/v1/settings/${name}`)).toMatchObject({ ...fresh, updated_at: null, updated_by: null })

      const stored = { ...fresh, value: 7, source: 'stored', updated_by: 'admin', updated_at: expect.any(String) }
      expect((await put(name, 7)).body).toMatchObject(stored)
      expect(await read(`/v1/settings/${name}`)).toMatchObject(stored)
      expect(http.services.settings.get(name), 'in force at once').toBe(7)
      await put(name, 7)
      await put(name, 8)
      expect((await call('DELETE', `/v1/settings/${name}`)).body).toMatchObject({ ...fresh, updated_by: 'admin' })
      await call('DELETE', `/v1/settings/${name}`)
      expect(http.services.settings.get(name)).toBe(1_000)

      expect(await entries(name), 'what changes nothing is not news').toEqual([
        { actor: 'admin', action: 'setting.put', before: null, after: { value: 7 } },
        { actor: 'admin', action: 'setting.put', before: { value: 7 }, after: { value: 8 } },
        { actor: 'admin', action: 'setting.delete', before: { value: 8 }, after: null },
      ])
    })

    test.each<[string, unknown, string]>([
      ['reap_interval_seconds', 31, 'reap_interval_seconds must be a number from 0.05 to 30'],
      ['reap_interval_seconds', 0, 'reap_interval_seconds must be a number from 0.05 to 30'],
      ['reap_batch_max', 1.5, 'reap_batch_max must be a whole number from 1 to 10000'],
      ['audit_retention_days', -1, 'audit_retention_days must be a number from 0 to 36600'],
      ['reap_batch_max', '5', 'value must be a number'],
      ['reap_batch_max', null, 'value must be a number'],
      ['reap_batch_max', undefined, 'Missing required field: value'],
    ])('%s = %j is refused by name and bounds, and leaves no trace', async (name, value, message) => {
      const answer = errorOf(await put(name, value))
      expect(answer).toMatchObject({ status: 400, code: 'INVALID_PAYLOAD', message, details: { field: 'value' } })
      expect(await read(`/v1/settings/${name}`)).toMatchObject({ source: 'default' })
      expect(await entries(name)).toEqual([])
    })

    test('the refusal of an unknown name has the nearest one and all names', async () => {
      const unknown = { status: 404, code: 'NOT_FOUND', details: { names: SETTING_NAMES } }
      const message = 'There is no setting reap_intervall; the nearest is reap_interval_seconds'
      for (const answer of [
        await call('GET', '/v1/settings/reap_intervall'),
        await put('reap_intervall', 1),
        await call('DELETE', '/v1/settings/reap_intervall'),
      ]) {
        expect(errorOf(answer)).toMatchObject({ ...unknown, message })
      }
      for (const far of ['nope', 'x', 'max_volume']) {
        expect(errorOf(await put(far, 1))).toMatchObject({ ...unknown, message: `There is no setting ${far}` })
      }
      expect(errorOf(await put('job_retention', 1)).message).toContain('; the nearest is job_retention_seconds')
      // The store keeps this row beside the settings.
      expect(errorOf(await put('auth_required', 0))).toMatchObject(unknown)
    })

    test('viewers may read, and only admins may change', async () => {
      const change = (token: string) => call('PUT', '/v1/settings/reap_batch_max', { body: { value: 5 }, token })
      for (const role of ['viewer', 'operator'] as const) {
        expect((await call('GET', '/v1/settings', { token: tokens[role] })).status).toBe(200)
        expect((await change(tokens[role])).status).toBe(403)
        expect((await call('DELETE', '/v1/settings/reap_batch_max', { token: tokens[role] })).status).toBe(403)
      }
      expect((await call('GET', '/v1/settings', { token: tokens.submitter })).status).toBe(403)
    })

    test('a stored value that this node does not allow is not in force', async () => {
      await put('operation_batch_max', 5)
      await sql(
        http.services.deps.store,
        "UPDATE ichido.settings SET value = '70000' WHERE name = 'operation_batch_max'",
      )
      await http.services.settings.refresh()
      expect(http.services.settings.get('operation_batch_max')).toBe(200)
      expect(await read('/v1/settings/operation_batch_max')).toMatchObject({ value: 200, source: 'default' })
    })
  })

  describe('the audit', () => {
    const submit = async () => {
      const answer = await call('POST', '/v1/jobs', { body: { kind: 'work', queue: unique('q') } })
      return answer.body as { job_id: string; queue: string }
    }
    async function fail(worker: WorkerCalls, leaseId: string | undefined): Promise<void> {
      const body = { error_code: 'X', error_message: 'x', retryable: false }
      expect((await worker.post(`/v1/leases/${leaseId}/failed`, body)).status).toBe(200)
    }
    const cancel = (jobId: string, token = tokens.operator) => call('POST', `/v1/jobs/${jobId}/cancel`, { token })

    test('has one entry for a repeated cancel', async () => {
      const { job_id: waiting } = await submit()
      expect([(await cancel(waiting)).status, (await cancel(waiting)).status]).toEqual([200, 200])
      expect(await entries(waiting)).toEqual([
        { actor: 'operator', action: 'job.cancel', before: { state: 'PENDING' }, after: { state: 'CANCELED' } },
      ])
      const { job_id: running, queue } = await submit()
      const worker = await registeredWorker(http)
      const [lease] = await worker.lease(queue, { start: true })
      await cancel(running)
      await cancel(running)
      await fail(worker, lease?.lease_id)
      expect((await cancel(running)).status).toBe(200)
      expect(await entries(running)).toEqual([
        {
          actor: 'operator',
          action: 'job.cancel',
          before: { state: 'RUNNING' },
          after: { state: 'RUNNING', cancel_requested: true },
        },
      ])
      const { job_id: mine } = await submit()
      expect((await cancel(mine, tokens.submitter)).status, 'not its own').toBe(404)
      await http.services.jobs.cancel(LOCAL_ADMIN, mine)
      expect(await entries(mine), 'a call of the library').toMatchObject([{ actor: 'local' }])
    })

    test('has retries and redrives, but no refused calls', async () => {
      const { job_id, queue } = await submit()
      const worker = await registeredWorker(http)
      const [lease] = await worker.lease(queue, { start: true })
      await fail(worker, lease?.lease_id)
      expect((await cancel(job_id)).status).toBe(409)
      expect(await entries(job_id)).toEqual([])
      const { redrive_id } = (await call('POST', '/v1/dead-letters/redrive', { body: { job_ids: [job_id] } })).body as {
        redrive_id: string
      }
      await call('POST', `/v1/dead-letters/redrives/${redrive_id}/abort`)
      await call('POST', `/v1/dead-letters/redrives/${redrive_id}/abort`)
      expect((await entries(redrive_id)).map(({ action }) => action)).toEqual(['redrive.begin', 'redrive.abort'])
      expect((await call('POST', `/v1/jobs/${job_id}/retry`)).status).toBeLessThan(300)
      expect((await call('POST', `/v1/jobs/${job_id}/retry`)).status).toBe(409)
      expect(await entries(job_id)).toMatchObject([
        { actor: 'admin', action: 'job.retry', before: { state: 'FAILED' } },
      ])
    })

    test('has quotas, from the first limits to the default', async () => {
      const user = unique('user')
      const set = (body: object, token = tokens.admin) => call('PUT', `/v1/quotas/${user}`, { body, token })
      const first = { max_concurrent: 5, cost_limit: 1.5, period: 'day', max_bytes: null }
      const second = { max_concurrent: 6, cost_limit: null, period: 'month', max_bytes: 1_000 }
      expect((await set(first, tokens.operator)).status).toBe(403)
      expect((await set({ ...first, max_concurrent: -1 })).status).toBe(400)
      for (const limits of [first, first, second]) expect((await set(limits)).status).toBe(200)
      for (let i = 0; i < 2; i++) expect((await call('DELETE', `/v1/quotas/${user}`)).status).toBe(200)
      expect(await entries(user)).toEqual([
        { actor: 'admin', action: 'quota.put', before: null, after: first },
        { actor: 'admin', action: 'quota.put', before: first, after: second },
        { actor: 'admin', action: 'quota.delete', before: second, after: null },
      ])
    })

    test('has tokens, workers and queues, but no secrets', async () => {
      const asked = { user_id: 'ci', role: 'submitter', name: 'build', ttl_seconds: 60 }
      const made = (await call('POST', '/v1/tokens', { body: asked })).body as { token: string; token_id: string }
      for (let i = 0; i < 2; i++) expect((await call('DELETE', `/v1/tokens/${made.token_id}`)).status).toBe(204)
      expect((await call('DELETE', `/v1/tokens/${NOBODY}`)).status).toBe(404)
      const { ttl_seconds: _, ...token } = asked
      expect(await entries(made.token_id)).toEqual([
        { actor: 'admin', action: 'token.create', before: null, after: asked },
        { actor: 'admin', action: 'token.revoke', before: token, after: null },
      ])
      expect(await entries(NOBODY)).toEqual([])

      const label = unique('gpu')
      const enroll = { label, queues: ['zpe'], ttl_seconds: 60 }
      const enrolled = (await call('POST', '/v1/workers/enroll-tokens', { body: enroll })).body as {
        enroll_token: string
      }
      expect(await entries(label)).toEqual([
        { actor: 'admin', action: 'enroll_token.create', before: null, after: { ...enroll, worker_id: null } },
      ])
      const { workerId, token: workerToken } = await registeredWorker(http)
      for (let i = 0; i < 2; i++) expect((await call('DELETE', `/v1/workers/${workerId}`)).status).toBe(200)
      expect((await entries(workerId)).map(({ action }) => action)).toEqual(['worker.register', 'worker.revoke'])

      const queue = unique('queue')
      for (let i = 0; i < 2; i++) await call('PUT', `/v1/queues/${queue}`, { body: { max_concurrent: 3 } })
      expect(await entries(queue)).toMatchObject([
        { action: 'queue.put', before: { max_concurrent: null }, after: { max_concurrent: 3, paused: false } },
      ])

      const everything = JSON.stringify(await sql(http.services.deps.store, 'SELECT * FROM ichido.audit'))
      for (const secret of [made.token, enrolled.enroll_token, workerToken, ...Object.values(tokens)]) {
        expect(everything).not.toContain(secret)
        expect(everything).not.toContain(hashToken(secret))
      }
    })

    test('is listed newest first in pages, by actor, action, subject and time', async () => {
      const [queue, other] = [unique('queue'), unique('queue')]
      for (let i = 1; i <= 5; i++) await call('PUT', `/v1/queues/${queue}`, { body: { max_concurrent: i } })
      await call('PUT', `/v1/queues/${other}`, { body: { paused: true }, token: tokens.operator })
      const limits = ({ data }: Page<AuditShape>) =>
        data.map(({ after }) => (after as { max_concurrent: number }).max_concurrent)

      const first = await audit(`subject=${queue}&limit=2`)
      for (const entry of first.data) expect(auditEntry.parse(entry)).toEqual(entry)
      const second = await audit(`subject=${queue}&limit=2&cursor=${first.next_cursor}`)
      const third = await audit(`subject=${queue}&limit=2&cursor=${second.next_cursor}`)
      expect([first, second, third].map(limits)).toEqual([[5, 4], [3, 2], [1]])
      expect(third.next_cursor).toBeNull()

      const whole = await audit(`subject=${queue}`)
      const [from, to] = [whole.data.at(-1)?.created_at, whole.data[0]?.created_at]
      const within = await audit(`subject=${queue}&from=${from}&to=${to}`)
      expect(within.data).toEqual(whole.data.filter(({ created_at }) => created_at !== to))
      expect((await audit(`subject=${queue}&actor=operator`)).data).toEqual([])
      expect((await audit('actor=operator&action=queue.put')).data).toMatchObject([{ subject: other }])
      const newest = (await audit('limit=200')).data
      expect(newest).toEqual(newest.toSorted((a, b) => b.created_at.localeCompare(a.created_at)))
    })

    test.each([
      ['from=yesterday', 'from'],
      ['to=1', 'to'],
      ['who=me', 'who'],
      ['limit=0', 'limit'],
      ['cursor=abc', 'cursor'],
    ])('a wrong ?%s is refused by name', async (query, field) => {
      expect(errorOf(await call('GET', `/v1/audit?${query}`))).toMatchObject({ status: 400, details: { field } })
    })

    test('is for operators, and cannot be changed', async () => {
      for (const role of ['viewer', 'submitter'] as const) {
        expect((await call('GET', '/v1/audit', { token: tokens[role] })).status).toBe(403)
      }
      expect((await call('GET', '/v1/audit', { token: tokens.operator })).status).toBe(200)
      for (const method of ['POST', 'PUT', 'PATCH', 'DELETE']) {
        expect((await call(method, '/v1/audit')).status).toBe(405)
      }
    })
  })
})
