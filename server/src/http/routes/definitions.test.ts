import type { AuditShape, DefinitionShape, ErrorBody, Page, TickShape } from '@ichido/sdk/protocol'
import { v7 } from 'uuid'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { definition as shape, ticks as ticksShape } from '../../contract/definitions.ts'
import { DEFAULT_LIMITS } from '../../services/deps.ts'
import type { Command } from '../../store/port.ts'
import { runDefinition } from '../../store/schedules/definition-jobs.ts'
import {
  createDefinition,
  deleteDefinition,
  pauseDefinition,
  resumeDefinition,
  updateDefinition,
} from '../../store/schedules/definitions.ts'
import { type TestApp, testApp } from '../../testing/http/app.ts'
import { BY, content } from '../../testing/nodes/ticker.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { Scene } from '../../testing/store/scene.ts'
import { sql, unique } from '../../testing/store/store.ts'

const NIGHTLY = { cron: '30 2 * * *', time_zone: 'Europe/Berlin' }
const DAY_MS = 86_400_000
/** Half an hour from now, so that no tick comes while a test runs. */
const HOURLY = { cron: `${(new Date().getUTCMinutes() + 30) % 60} * * * *` }

describe.each(ENGINES)('%s', (engine) => {
  let http: TestApp
  beforeAll(async () => {
    http = await testApp(engine)
  })
  afterAll(() => http.close())

  const create = (body: object) => http.call('POST', '/v1/definitions', { body })
  const put = (name: string, body: object) => http.call('PUT', `/v1/definitions/${name}`, { body })
  const post = (name: string, verb: string) => http.call('POST', `/v1/definitions/${name}/${verb}`)
  const ask = async (path: string) => (await http.call('GET', `/v1/definitions/${path}`)).body
  const get = async (name: string) => (await ask(name)) as DefinitionShape
  const defined = async (body: object = {}) => {
    const { status, body: made } = await create({ name: unique('definition'), kind: 'work', ...body })
    expect(status).toBe(201)
    return made as DefinitionShape
  }
  const audited = async (name: string) =>
    ((await http.call('GET', `/v1/audit?subject=${name}`)).body as Page<AuditShape>).data.toReversed()
  const ledger = ({ definition_id }: DefinitionShape) =>
    sql(
      http.services.deps.store,
      'SELECT scheduled_for, skipped_until, outcome, reason FROM ichido.occurrences WHERE definition_id = $1 ORDER BY 1',
      definition_id,
    )
  /** As if no leader had processed it for a while. */
  const overdue = async ({ name, next_tick_at }: DefinitionShape, byMs: number) => {
    const dueAt = Date.parse(next_tick_at ?? '') - byMs
    await sql(
      http.services.deps.store,
      'UPDATE ichido.job_definitions SET next_tick_at = $2 WHERE name = $1',
      name,
      dueAt,
    )
    return dueAt
  }

  test('is stored as sent, with defaults for missing fields', async () => {
    const made = await defined({ schedule: NIGHTLY })
    expect(shape.parse(made)).toEqual(made)
    expect(made).toMatchObject({
      queue: null,
      payload: null,
      priority: 0,
      labels: {},
      max_attempts: null,
      backoff: null,
      seq_scope: 'attempt',
      schedule: {
        ...NIGHTLY,
        catch_up: 'last',
        catch_up_window_seconds: 86_400,
        overlap: 'allow',
        jitter_seconds: 0,
        starts_at: null,
        ends_at: null,
      },
      paused: false,
      version: 1,
      user_id: 'local',
      last_tick_at: null,
    })
    const untilNext = Date.parse(made.next_tick_at ?? '') - Date.now()
    expect(untilNext).toBeGreaterThan(-60_000)
    expect(untilNext).toBeLessThan(25 * 3_600_000)
    expect(await get(made.name)).toEqual(made)

    const whole = {
      kind: 'scan',
      queue: 'scans',
      payload: { deep: ['一度', null, 0.1] },
      priority: -3,
      labels: { env: 'prod' },
      max_attempts: 7,
      backoff: { base_seconds: 1, cap_seconds: 60, jitter: 0 },
      timeout_seconds: 90.5,
      lease_ttl_seconds: 30,
      continuation_seconds: 0,
      domain: 'scans',
      stages: [
        { name: 'look', from: 10, to: 19 },
        { name: 'end', from: 20, to: 20, final: true },
      ],
      seq_scope: 'job',
      schedule: {
        cron: '*/10 * * * * *',
        time_zone: 'America/New_York',
        catch_up: 'all',
        catch_up_window_seconds: 3600,
        overlap: 'queue_one',
        jitter_seconds: 5,
        starts_at: '2031-01-01T00:00:00.000Z',
        ends_at: '2032-01-01T00:00:00.000Z',
      },
    }
    const full = await defined(whole)
    expect(full).toMatchObject({ ...whole, next_tick_at: '2031-01-01T00:00:00.000Z' })
    const { definition_id, name, paused, paused_at, version, user_id, next_tick_at, last_tick_at, ...rest } = full
    const { created_at, updated_at, ...again } = rest
    expect((await put(name, again)).body, 'what is read can be sent back').toMatchObject({ ...whole, version: 2 })
  })

  test('the preset eco2 counts seq for the job', async () => {
    expect(await defined({ stages: 'eco2' })).toMatchObject({ stages: 'eco2', seq_scope: 'job', next_tick_at: null })
    expect(await defined({ stages: 'eco2', seq_scope: 'attempt' })).toMatchObject({ seq_scope: 'attempt' })
  })

  test('a list goes page by page, newest first', async () => {
    const names: string[] = []
    for (let i = 0; i < 3; i++) names.unshift((await defined()).name)
    const first = (await http.call('GET', '/v1/definitions?limit=2')).body as Page<DefinitionShape>
    expect(first.data.map(({ name }) => name)).toEqual(names.slice(0, 2))
    const path = `/v1/definitions?limit=1&cursor=${first.next_cursor}`
    expect(((await http.call('GET', path)).body as Page<DefinitionShape>).data).toMatchObject([{ name: names[2] }])
    expect(await http.call('GET', '/v1/definitions?cursor=x')).toMatchObject({ status: 400 })
  })

  test('a name that exists is refused', async () => {
    const name = unique('definition')
    const answers = await Promise.all(Array.from({ length: 8 }, (_, n) => create({ name, kind: `k${n}` })))
    expect(answers.map(({ status }) => status).sort()).toEqual([201, ...Array<number>(7).fill(409)])
    for (const { body } of answers.filter(({ status }) => status === 409)) {
      expect(body).toMatchObject({ error: { code: 'DEFINITION_EXISTS', details: { field: 'name' } } })
    }
    expect(await audited(name)).toHaveLength(1)
  })

  test('of several changes to one version one wins, and the others are refused', async () => {
    const { name } = await defined()
    const answers = await Promise.all(
      Array.from({ length: 8 }, (_, n) => put(name, { kind: 'work', priority: n, version: 1 })),
    )
    const [made, ...more] = answers.filter(({ status }) => status === 200)
    expect(more).toEqual([])
    for (const { status, body } of answers) {
      if (status === 200) continue
      expect(body).toMatchObject({ error: { code: 'VERSION_CONFLICT', details: { version: 2 } } })
    }
    expect(await get(name)).toEqual(made?.body)
    const without = await Promise.all([put(name, { kind: 'a' }), put(name, { kind: 'b' }), put(name, { kind: 'c' })])
    expect(without.map(({ body }) => (body as DefinitionShape).version).sort()).toEqual([3, 4, 5])
    expect(await audited(name)).toHaveLength(5)
  })

  test('every change is in the audit, with before and after', async () => {
    const { name, definition_id } = await defined({ payload: { n: 1 } })
    await put(name, { kind: 'other', payload: { n: 2 }, schedule: NIGHTLY })
    for (const verb of ['pause', 'pause', 'resume', 'resume']) expect((await post(name, verb)).status).toBe(200)
    expect((await http.call('DELETE', `/v1/definitions/${name}`)).status).toBe(204)
    expect(await audited(name)).toMatchObject([
      { action: 'definition.create', actor: 'local', before: null, after: { definition_id, payload: { n: 1 } } },
      {
        action: 'definition.update',
        before: { kind: 'work', payload: { n: 1 }, schedule: null, version: 1 },
        after: {
          kind: 'other',
          payload: { n: 2 },
          schedule: { ...NIGHTLY, catch_up: 'last', starts_at: null },
          version: 2,
        },
      },
      { action: 'definition.pause', before: { paused: false }, after: { paused: true } },
      { action: 'definition.resume', before: { paused: true }, after: { paused: false } },
      { action: 'definition.delete', before: { kind: 'other', version: 4 }, after: null },
    ])
  })

  test('the audit has no entry for a change without effect', async () => {
    const { name } = await defined({ max_attempts: 3 })
    const { definition_id, paused, paused_at, user_id, next_tick_at, last_tick_at, created_at, updated_at, ...read } =
      await get(name)
    const { name: _, version, ...content } = read
    expect((await put(name, { ...content, version })).status).toBe(200)
    const [, { before, after } = { before: {}, after: {} }] = await audited(name)
    expect(before).toEqual({ definition_id, version: 1, ...content })
    expect(after).toEqual({ definition_id, version: 2, ...content })
  })

  test('an unknown definition is not found by any call', async () => {
    for (const name of [unique('none'), '..', '%00', 'a b', 'x'.repeat(129)]) {
      const path = `/v1/definitions/${encodeURIComponent(name)}`
      const answers = await Promise.all([
        http.call('GET', path),
        http.call('PUT', path, { body: { kind: 'k' } }),
        http.call('DELETE', path),
        http.call('POST', `${path}/pause`),
        http.call('POST', `${path}/resume`),
        http.call('GET', `${path}/ticks`),
      ])
      for (const { status } of answers) expect(status, name).toBe(404)
    }
  })

  test('the name of a deleted definition can be used again', async () => {
    const old = await defined({ schedule: NIGHTLY })
    await http.call('DELETE', `/v1/definitions/${old.name}`)
    const made = await defined({ name: old.name })
    expect(made.definition_id).not.toBe(old.definition_id)
  })

  describe('a pause', () => {
    test('records its ticks as skipped, and the next tick comes after it', async () => {
      const hourly = await defined({ schedule: HOURLY })
      const paused = (await post(hourly.name, 'pause')).body as DefinitionShape
      expect(paused).toMatchObject({ paused: true, paused_at: expect.any(String), version: 2 })
      const first = await overdue(hourly, 5 * 3_600_000)
      const resumed = (await post(hourly.name, 'resume')).body as DefinitionShape
      expect(resumed).toMatchObject({ paused: false, paused_at: null, version: 3, next_tick_at: hourly.next_tick_at })
      expect(await ledger(hourly)).toEqual([
        { scheduled_for: first, skipped_until: first + 4 * 3_600_000, outcome: 'skipped', reason: 'paused' },
      ])
    })

    test('leaves backfilled ticks alone', async () => {
      const hourly = await defined({ schedule: HOURLY })
      await post(hourly.name, 'pause')
      const first = await overdue(hourly, 4 * 3_600_000)
      for (const tick of [first, first + 3_600_000]) {
        const insert = `INSERT INTO ichido.occurrences (definition_id, scheduled_for, outcome, created_at) VALUES ($1, $2, 'job', 1)`
        await sql(http.services.deps.store, insert, hourly.definition_id, tick)
      }
      await post(hourly.name, 'resume')
      expect(await ledger(hourly)).toMatchObject([
        { scheduled_for: first, outcome: 'job' },
        { scheduled_for: first + 3_600_000, outcome: 'job' },
        { scheduled_for: first + 2 * 3_600_000, skipped_until: first + 3 * 3_600_000, reason: 'paused' },
      ])
    })

    test('without a tick in it leaves no trace', async () => {
      const yearly = await defined({ schedule: { cron: '0 0 1 1 *' } })
      await post(yearly.name, 'pause')
      expect((await post(yearly.name, 'resume')).body).toMatchObject({ next_tick_at: yearly.next_tick_at })
      expect(await ledger(yearly)).toEqual([])
    })

    test('allows a change of the rule, and earlier ticks follow the old rule', async () => {
      const hourly = await defined({ schedule: HOURLY })
      await post(hourly.name, 'pause')
      const first = await overdue(hourly, 3_600_000)
      const changed = (await put(hourly.name, { kind: 'work', schedule: NIGHTLY })).body as DefinitionShape
      expect(changed).toMatchObject({ paused: true, next_tick_at: null })
      expect(await ledger(hourly)).toMatchObject([{ scheduled_for: first, skipped_until: null, reason: 'paused' }])
      const [next] = ((await ask(`${hourly.name}/ticks?limit=1`)) as { data: TickShape[] }).data
      expect((await post(hourly.name, 'resume')).body).toMatchObject({ next_tick_at: next?.scheduled_for })
      expect(await ledger(hourly)).toHaveLength(1)
    })
  })

  describe('a change', () => {
    test('of another field keeps the next tick', async () => {
      const made = await defined({ schedule: NIGHTLY })
      const due = await overdue(made, 3 * DAY_MS)
      const changed = (await put(made.name, { kind: 'other', schedule: NIGHTLY })).body as DefinitionShape
      expect(Date.parse(changed.next_tick_at ?? '')).toBe(due)
    })

    test('of the rule keeps a tick that is already due', async () => {
      const made = await defined({ schedule: { cron: '0 0 1 1 *' } })
      const sooner = (await put(made.name, { kind: 'work', schedule: { cron: '* * * * * *' } })).body as DefinitionShape
      expect(Date.parse(sooner.next_tick_at ?? '') - Date.now()).toBeLessThan(60_000)
      const due = await overdue(made, 2 * 366 * DAY_MS)
      const later = (await put(made.name, { kind: 'work', schedule: NIGHTLY })).body as DefinitionShape
      expect(Date.parse(later.next_tick_at ?? '')).toBe(due)
    })

    test('that removes the schedule ends its ticks', async () => {
      const made = await defined({ schedule: NIGHTLY })
      expect((await put(made.name, { kind: 'work' })).body).toMatchObject({ schedule: null, next_tick_at: null })
    })

    test('of another field is allowed after the end of the schedule', async () => {
      const ends_at = new Date(Date.now() + 3_600_000).toISOString()
      const made = await defined({ schedule: { cron: '* * * * *', ends_at } })
      const past = made.schedule && { ...made.schedule, ends_at: '2020-01-01T00:00:00.000Z' }
      const stored = { cron: '* * * * *', timeZone: 'UTC', catchUp: 'last', catchUpWindowSeconds: 86_400 }
      const ended = { ...stored, overlap: 'allow', jitterSeconds: 0, startsAtMs: null, endsAtMs: Date.UTC(2020, 0) }
      const set = 'UPDATE ichido.job_definitions SET schedule = $2, next_tick_at = NULL WHERE name = $1'
      await sql(http.services.deps.store, set, made.name, JSON.stringify(ended))
      const changed = await put(made.name, { kind: 'other', schedule: past })
      expect(changed).toMatchObject({ status: 200, body: { kind: 'other', next_tick_at: null } })
    })
  })

  test('the next ticks of a stored and of an unstored rule', async () => {
    const { name } = await defined({ schedule: NIGHTLY })
    const stored = ticksShape.parse(await ask(`${name}/ticks`)).data
    expect(stored).toHaveLength(10)
    const preview = (body: object) => http.call('POST', '/v1/definitions/preview', { body })
    expect((await preview({ schedule: NIGHTLY })).body).toEqual({ data: stored })
    expect(((await ask(`${name}/ticks?limit=3`)) as { data: TickShape[] }).data).toEqual(stored.slice(0, 3))

    const starts_at = '2031-03-29T12:00:00Z'
    const changes = (cron: string, time_zone: string, limit: number) =>
      preview({ schedule: { cron, time_zone, starts_at }, limit }).then(({ body }) => (body as { data: object[] }).data)
    expect(await changes('30 2 * * *', 'Europe/Berlin', 2)).toEqual([
      { scheduled_for: '2031-03-30T01:00:00.000Z', local_time: '2031-03-30T03:00:00+02:00' },
      { scheduled_for: '2031-03-31T00:30:00.000Z', local_time: '2031-03-31T02:30:00+02:00' },
    ])
    expect(await changes('0 0 * * *', 'America/St_Johns', 1)).toEqual([
      { scheduled_for: '2031-03-30T02:30:00.000Z', local_time: '2031-03-30T00:00:00-02:30' },
    ])

    const bare = await defined()
    expect(await ask(`${bare.name}/ticks`)).toEqual({ data: [] })
    const ends_at = new Date(Date.now() + 90_000).toISOString()
    const few = await preview({ schedule: { cron: '* * * * *', ends_at } })
    expect((few.body as { data: TickShape[] }).data.length).toBeLessThan(3)
    for (const limit of [0, 101, 1.5]) {
      const { status, body } = await preview({ schedule: NIGHTLY, limit })
      expect({ status, field: (body as ErrorBody).error.details.field }).toEqual({ status: 400, field: 'limit' })
      expect((await http.call('GET', `/v1/definitions/${name}/ticks?limit=${limit}`)).status).toBe(400)
    }
  })

  test('a change whose answer was lost is not made twice', async () => {
    const { store } = http.services.deps
    const twice = async <T>(command: Command<T>) => {
      const first = await store.write(command)
      expect(await store.write({ ...command, work: () => command.work(true) })).toEqual(first)
      return first
    }
    const made = { id: v7(), name: unique('definition'), userId: 'local', content: content({ cron: '0 0 1 1 *' }) }
    expect(await twice(createDefinition(made, BY()))).toMatchObject({ kind: 'created' })
    expect(await twice(updateDefinition(made.name, 1, content(null), BY()))).toMatchObject({ kind: 'updated' })
    await twice(pauseDefinition(made.name, BY()))
    expect(await twice(resumeDefinition(made.name, BY()))).toMatchObject({ version: 4 })
    const item = new Scene(store).item({ userId: 'local' })
    expect(await twice(runDefinition(made.name, item, () => '{}', BY()))).toMatchObject({ kind: 'created' })
    expect(await twice(deleteDefinition(made.name, BY()))).toBe(true)
    expect(await store.write(deleteDefinition(made.name, BY()))).toBe(false)
    expect(await audited(made.name)).toHaveLength(6)
  })
})

describe('is refused with the name of the field', () => {
  let http: TestApp
  beforeAll(async () => {
    http = await testApp('sqlite')
  })
  afterAll(() => http.close())

  const create = (body: object) => http.call('POST', '/v1/definitions', { body })
  const put = (name: string, body: object) => http.call('PUT', `/v1/definitions/${name}`, { body })
  const get = async (name: string) => (await http.call('GET', `/v1/definitions/${name}`)).body
  const year = 366 * 86_400

  test.each<[field: string, body: Record<string, unknown>]>([
    ['name', { name: '' }],
    ['name', { name: 'a b' }],
    ['name', { name: undefined }],
    ['kind', { kind: undefined }],
    ['kind', { kind: '' }],
    ['queue', { queue: '../x' }],
    ['labels.a:b', { labels: { 'a:b': 'c' } }],
    ['max_attempts', { max_attempts: 0 }],
    ['backoff.jitter', { backoff: { jitter: 2 } }],
    ['timeout_seconds', { timeout_seconds: 0 }],
    ['version', { version: 1 }],
    ['paused', { paused: true }],
    ['domain', { domain: '' }],
    ['stages', { stages: 'eco3' }],
    ['stages', { stages: [] }],
    ['seq_scope', { seq_scope: 'run' }],
    ['schedule', { schedule: '* * * * *' }],
    ['schedule.cron', { schedule: {} }],
    ['schedule.cron', { schedule: { cron: '0 0 30 2 *' } }],
    ['schedule.cron', { schedule: { cron: '61 * * * *' } }],
    ['schedule.cron', { schedule: { cron: '* * * *' } }],
    ['schedule.cron', { schedule: { cron: 'x'.repeat(300) } }],
    ['schedule.time_zone', { schedule: { ...NIGHTLY, time_zone: 'Mars/Phobos' } }],
    ['schedule.catch_up', { schedule: { ...NIGHTLY, catch_up: 'some' } }],
    [
      'schedule.catch_up_window_seconds',
      { schedule: { ...NIGHTLY, catch_up: 'all', catch_up_window_seconds: 5 * year } },
    ],
    [
      'schedule.catch_up_window_seconds',
      { schedule: { cron: '* * * * * *', catch_up: 'all', catch_up_window_seconds: 30 * 86_400 } },
    ],
    ['schedule.overlap', { schedule: { ...NIGHTLY, overlap: 'maybe' } }],
    ['schedule.jitter_seconds', { schedule: { ...NIGHTLY, jitter_seconds: -1 } }],
    ['schedule.starts_at', { schedule: { ...NIGHTLY, starts_at: 'tomorrow' } }],
    ['schedule.ends_at', { schedule: { ...NIGHTLY, ends_at: '2020-01-01T00:00:00Z' } }],
    [
      'schedule.ends_at',
      { schedule: { ...NIGHTLY, starts_at: '2032-01-01T00:00:00Z', ends_at: '2031-01-01T00:00:00Z' } },
    ],
    ['schedule.every', { schedule: { ...NIGHTLY, every: 5 } }],
  ])('%s: %j', async (field, body) => {
    const name = unique('definition')
    const { status, body: answer } = await create({ name, kind: 'work', ...body })
    const { code, message, details } = (answer as ErrorBody).error
    expect({ status, code, field: details.field }).toEqual({ status: 400, code: 'INVALID_PAYLOAD', field })
    expect(message).toContain(field)
    expect((await http.call('GET', `/v1/definitions/${name}`)).status).toBe(404)
    if ('name' in body || 'version' in body) return
    const changed = unique('definition')
    await create({ name: changed, kind: 'work' })
    expect(await put(changed, { kind: 'work', ...body })).toMatchObject({
      status,
      body: { error: { details: { field } } },
    })
    expect(await get(changed)).toMatchObject({ version: 1 })
  })

  test.each([
    ['to', [{ name: 'a', from: 20, to: 19 }], 'stages.0.to'],
    ['from', [{ name: 'a', from: 9, to: 19 }], 'stages.0.from'],
    [
      'overlap',
      [
        { name: 'a', from: 10, to: 19 },
        { name: 'b', from: 19, to: 29 },
      ],
      'stages.1.from',
    ],
    [
      'twice',
      [
        { name: 'a', from: 10, to: 19 },
        { name: 'a', from: 20, to: 29 },
      ],
      'stages.1.name',
    ],
    ['the server’s', [{ name: 'run', from: 10, to: 19 }], 'stages.0.name'],
    [
      'two ends',
      [
        { name: 'a', from: 10, to: 10, final: true },
        { name: 'b', from: 11, to: 11, final: true },
      ],
      'stages.1.final',
    ],
  ])('stages: %s', async (_, stages, field) => {
    const { status, body } = await create({ name: unique('definition'), kind: 'work', stages })
    expect({ status, field: (body as ErrorBody).error.details.field }).toEqual({ status: 400, field })
  })

  test('a large payload', async () => {
    const payload = 'x'.repeat(DEFAULT_LIMITS.payloadBytesMax)
    const refused = { status: 413, body: { error: { code: 'PAYLOAD_TOO_LARGE', details: { field: 'payload' } } } }
    expect(await create({ name: unique('definition'), kind: 'work', payload })).toMatchObject(refused)
    const name = unique('definition')
    await create({ name, kind: 'work' })
    expect(await put(name, { kind: 'work', payload })).toMatchObject(refused)
  })
})

test('viewers read, operators change, and submitters do neither', async () => {
  const http = await testApp('sqlite')
  const [viewer, submitter, operator] = await Promise.all([
    http.token('v', 'viewer'),
    http.token('s', 'submitter'),
    http.token('o', 'operator'),
  ])
  const body = { name: 'nightly', kind: 'work', schedule: NIGHTLY }
  const made = await http.call('POST', '/v1/definitions', { body, token: operator })
  expect(made).toMatchObject({ status: 201, body: { user_id: 'o' } })
  const reads = ['/v1/definitions', '/v1/definitions/nightly', '/v1/definitions/nightly/ticks']
  for (const path of reads) {
    expect((await http.call('GET', path, { token: viewer })).status).toBe(200)
    expect((await http.call('GET', path, { token: submitter })).status).toBe(403)
  }
  const preview = { body: { schedule: NIGHTLY } }
  expect((await http.call('POST', '/v1/definitions/preview', { ...preview, token: viewer })).status).toBe(200)
  for (const token of [viewer, submitter]) {
    for (const [method, path, sent] of [
      ['POST', '/v1/definitions', { ...body, name: 'other' }],
      ['PUT', '/v1/definitions/nightly', { kind: 'work' }],
      ['POST', '/v1/definitions/nightly/pause', undefined],
      ['POST', '/v1/definitions/nightly/resume', undefined],
      ['DELETE', '/v1/definitions/nightly', undefined],
    ] as const) {
      expect((await http.call(method, path, { token, body: sent })).status, `${method} ${path}`).toBe(403)
    }
  }
  await http.close()
})
