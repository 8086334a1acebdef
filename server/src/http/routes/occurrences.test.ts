import type { AuditShape, BackfillShape, JobDetail, OccurrenceShape, Page, SubmitResponse } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { backfill as backfillShape, occurrence as occurrenceShape } from '../../contract/definitions.ts'
import { type Call, type TestApp, testApp } from '../../testing/http/app.ts'
import { sql, unique } from '../../testing/store/store.ts'

let http: TestApp
let token: Record<'ops' | 'other' | 'viewer' | 'submitter', string>
beforeAll(async () => {
  http = await testApp('sqlite')
  token = {
    ops: await http.token('ops', 'operator'),
    other: await http.token('other', 'operator'),
    viewer: await http.token('v', 'viewer'),
    submitter: await http.token('s', 'submitter'),
  }
})
afterAll(() => http.close())

const call = (method: string, path: string, call: Call = {}) =>
  http.call(method, `/v1/definitions/${path}`, { token: token.ops, ...call })

async function defined(body: object = {}): Promise<string> {
  const name = unique('definition')
  const schedule = { cron: '* * * * *' }
  const request = { name, kind: 'work', queue: 'q', payload: { a: 1 }, labels: { l: 'v' }, schedule, ...body }
  const { status } = await http.call('POST', '/v1/definitions', { token: token.ops, body: request })
  expect(status).toBe(201)
  return name
}

const shown = async (jobId: string) =>
  (await http.call('GET', `/v1/jobs/${jobId}`, { token: token.ops })).body as JobDetail

test('run now makes a job for the owner of the definition, one for each key', async () => {
  const name = await defined({ schedule: null, max_attempts: 7 })
  const keyed = { headers: { 'idempotency-key': 'once' } }
  const first = await call('POST', `${name}/run`, { ...keyed, token: token.other })
  expect(first.status).toBe(201)
  const { job_id } = first.body as SubmitResponse
  const job = await shown(job_id)
  expect(job).toMatchObject({ definition: name, scheduled_for: null, user_id: 'ops', queue: 'q', payload: { a: 1 } })
  expect(job).toMatchObject({ labels: { l: 'v' }, policy: { max_attempts: 7 }, idempotency_key: 'once' })

  const again = await call('POST', `${name}/run`, keyed)
  expect([again.status, again.text, again.headers['idempotent-replayed']]).toEqual([201, first.text, 'true'])
  const elsewhere = await call('POST', `${await defined()}/run`, keyed)
  expect(elsewhere).toMatchObject({ status: 409, body: { error: { code: 'IDEMPOTENCY_KEY_REUSED' } } })
  const another = (await call('POST', `${name}/run`)).body as SubmitResponse
  expect(another.job_id).not.toBe(job_id)
  const entries = await http.call('GET', `/v1/audit?subject=${name}&action=definition.run`, { token: token.ops })
  const audited = (entries.body as Page<AuditShape>).data.map(({ actor, after }) => ({ actor, after }))
  expect(audited, 'none for a key that is replayed').toEqual([
    { actor: 'ops', after: { job_id: another.job_id } },
    { actor: 'other', after: { job_id } },
  ])
})

test('run now takes no payload', async () => {
  const name = await defined()
  expect(await call('POST', `${name}/run`, { body: { payload: 1 } })).toMatchObject({
    status: 400,
    body: { error: { code: 'INVALID_PAYLOAD', message: 'Unknown field: payload' } },
  })
  expect(await call('POST', `${name}/run`, { body: {} })).toMatchObject({ status: 201 })
})

test('run now checks the quota of the owner', async () => {
  const name = await defined()
  const admin = await http.token('root', 'admin')
  const limit = (max_concurrent: number | null) =>
    http.call('PUT', '/v1/quotas/ops', { token: admin, body: { max_concurrent, cost_limit: null, period: 'day' } })
  await limit(0)
  expect(await call('POST', `${name}/run`)).toMatchObject({ status: 409, body: { error: { code: 'QUOTA_EXCEEDED' } } })
  await limit(null)
})

test('a backfill can be counted, begun, shown, listed and aborted', async () => {
  const name = await defined()
  const to = Math.floor(Date.now() / 60_000) * 60_000
  const body = { from: new Date(to - 300_000).toISOString(), to: new Date(to).toISOString() }
  const dry = await call('POST', `${name}/backfill`, { body: { ...body, dry_run: true } })
  expect(dry).toMatchObject({
    status: 200,
    body: { dry_run: true, matched: 5, made_before: 0, skipped: 0, would_make: 5 },
  })
  const begun = await call('POST', `${name}/backfill`, { body })
  expect(begun).toMatchObject({ status: 202, body: { ...body, state: 'running', matched: 5, made: 0, actor: 'ops' } })
  const { backfill_id } = backfillShape.parse(begun.body)
  expect((await call('GET', `${name}/backfills/${backfill_id}`)).body).toEqual(begun.body)
  const list = (await call('GET', `${name}/backfills?limit=1`)).body as Page<BackfillShape>
  expect(list).toEqual({ data: [begun.body], next_cursor: null })
  expect((await call('GET', `${await defined()}/backfills/${backfill_id}`)).status).toBe(404)
  const abort = () => call('POST', `${name}/backfills/${backfill_id}/abort`)
  expect(await abort()).toMatchObject({ status: 200, body: { state: 'aborted' } })
  expect(await abort()).toMatchObject({ status: 200 })
  const audit = await http.call('GET', `/v1/audit?subject=${name}&action=definition.backfill`, { token: token.ops })
  expect(audit.body).toMatchObject({ data: [{ actor: 'ops', after: { backfill_id, matched: 5 } }] })
})

test('the ledger is read page by page', async () => {
  const name = await defined({ schedule: { cron: '0 0 1 1 *' } })
  const dueAt = Math.floor(Date.now() / 60_000) * 60_000
  for (const [minutes, outcome] of [
    [1, 'skipped'],
    [2, 'skipped'],
    [3, 'waiting_quota'],
  ] as const) {
    await sql(
      http.services.deps.store,
      `INSERT INTO ichido.occurrences (definition_id, scheduled_for, outcome, reason, created_at, updated_at)
        SELECT id, $2, $3, 'overlap', $2, $2 FROM ichido.job_definitions WHERE name = $1`,
      name,
      dueAt - minutes * 60_000,
      outcome,
    )
  }
  const get = async (query: string) => (await call('GET', `${name}/occurrences?${query}`)).body as Page<OccurrenceShape>
  // A waiting tick gets later until its job is made.
  const still = (page: Page<OccurrenceShape>) => page.data.map(({ late_seconds, ...rest }) => rest)
  const all = await get('')
  expect(all.data.map((one) => occurrenceShape.parse(one).outcome)).toEqual(['skipped', 'skipped', 'waiting_quota'])
  expect(all.data[0]).toMatchObject({ scheduled_for: new Date(dueAt - 60_000).toISOString(), reason: 'overlap' })
  expect(all.data[2]?.late_seconds).toBeGreaterThanOrEqual(180)
  const first = await get('limit=2')
  const second = await get(`limit=2&cursor=${first.next_cursor}`)
  expect([...still(first), ...still(second)]).toEqual(still(all))
  expect(second.next_cursor).toBeNull()
  const to = new Date(dueAt - 60_000).toISOString()
  expect(still(await get(`to=${to}`))).toEqual(still(all).slice(1))
  expect(still(await get(`from=${to}`))).toEqual(still(all).slice(0, 1))
})

test.each([
  ['POST', 'backfill', { from: 'yesterday', to: '2026-01-01T00:00:00Z' }, 'from'],
  ['POST', 'backfill', { from: '2999-01-01T00:00:00Z' }, 'to'],
  ['POST', 'backfill', { from: '2026-01-02T00:00:00Z', to: '2026-01-01T00:00:00Z' }, 'to'],
  ['POST', 'backfill', { from: '2026-01-01T00:00:00Z', to: '2999-01-01T00:00:00Z' }, 'to'],
  ['POST', 'backfill', { from: '1999-01-01T00:00:00Z', to: '2026-01-01T00:00:00Z' }, 'from'],
  ['GET', 'occurrences?cursor=bm9wZQ', undefined, 'cursor'],
  ['GET', 'occurrences?limit=0', undefined, 'limit'],
  ['GET', 'occurrences?from=now', undefined, 'from'],
])('%s %s %j is refused with the field', async (method, path, body, field) => {
  const answer = await call(method, `${await defined()}/${path}`, body === undefined ? {} : { body })
  expect(answer).toMatchObject({ status: 400, body: { error: { code: 'INVALID_PAYLOAD', details: { field } } } })
})

test('viewers only read, submitters do neither, and unknown names are 404', async () => {
  const name = await defined()
  const body = { from: '2026-01-01T00:00:00Z', to: '2026-01-01T01:00:00Z' }
  for (const [role, status] of [
    ['viewer', 200],
    ['submitter', 403],
  ] as const) {
    expect((await call('GET', `${name}/occurrences`, { token: token[role] })).status).toBe(status)
    expect((await call('GET', `${name}/backfills`, { token: token[role] })).status).toBe(status)
    expect((await call('POST', `${name}/run`, { token: token[role] })).status).toBe(403)
    expect((await call('POST', `${name}/backfill`, { token: token[role], body })).status).toBe(403)
  }
  for (const path of ['occurrences', 'backfills']) expect((await call('GET', `none/${path}`)).status).toBe(404)
  expect((await call('POST', 'none/run')).status).toBe(404)
  expect((await call('POST', 'none/backfill', { body })).status).toBe(404)
})

test('metrics count overdue schedules and waiting ticks', async () => {
  const name = await defined()
  await sql(http.services.deps.store, 'UPDATE ichido.job_definitions SET next_tick_at = 1 WHERE name = $1', name)
  const { text } = await http.call('GET', '/metrics', { token: token.viewer })
  expect(text).toMatch(/^ichido_schedules_overdue 1$/m)
  expect(text).toMatch(/^ichido_ticks_waiting 1$/m)
  expect(text).toContain('ichido_ticks_total')
})
