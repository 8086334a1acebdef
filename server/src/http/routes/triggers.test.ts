import {
  type DefinitionShape,
  type JobDetail,
  type Page,
  type RecordedTriggerShape,
  TRIGGER_DATA_BYTES_MAX,
  type TriggerDetail,
  type TriggerEntryShape,
  type TriggerShape,
} from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { recordedTrigger, triggerDetail, triggerEntry, triggerShape } from '../../contract/triggers.ts'
import { type Call, type TestApp, testApp } from '../../testing/http/app.ts'
import { tickAll } from '../../testing/nodes/ticker.ts'
import { triggerer } from '../../testing/nodes/triggers.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { sql, unique } from '../../testing/store/store.ts'

describe.each(ENGINES)('%s', (engine) => {
  let http: TestApp
  let token: Record<'ops' | 'viewer' | 'submitter' | 'other', string>
  beforeAll(async () => {
    http = await testApp(engine)
    token = {
      ops: await http.token('ops', 'operator'),
      viewer: await http.token('v', 'viewer'),
      submitter: await http.token('s', 'submitter'),
      other: await http.token('o', 'submitter'),
    }
  })
  afterAll(() => http.close())

  const send = (body: unknown, call: Call = {}) =>
    http.call('POST', '/v1/triggers', { token: token.ops, body, ...call })
  const get = (path: string, call: Call = {}) => http.call('GET', path, { token: token.ops, ...call })
  const processAll = async () => {
    const { services } = http
    return tickAll(await triggerer({ services, ...services.deps }))
  }
  const stored = async () => (await sql(http.services.deps.store, 'SELECT id FROM ichido.triggers')).length

  async function defined(on: object, body: object = {}): Promise<string> {
    const name = unique('definition')
    const answer = await http.call('POST', '/v1/definitions', {
      token: token.ops,
      body: { name, kind: 'work', on, ...body },
    })
    expect(answer.status, answer.text).toBe(201)
    return name
  }

  test('a trigger is recorded once, and a repeat gets the first one', async () => {
    const trigger = { topic: unique('topic'), dedupe_key: unique('key'), data: { n: 1 } }
    const first = await send(trigger)
    expect([first.status, first.headers['idempotent-replayed']]).toEqual([201, undefined])
    const recorded = recordedTrigger.parse(first.body)
    expect(recorded).toMatchObject({ topic: trigger.topic, duplicate: false })
    const again = await send({ ...trigger, topic: 'another', data: null })
    expect([again.status, again.headers['idempotent-replayed']]).toEqual([200, 'true'])
    expect(again.body).toEqual({ ...recorded, duplicate: true })
    const elsewhere = await send(trigger, { token: token.submitter })
    expect(elsewhere, 'another user has keys of its own').toMatchObject({ status: 201, body: { duplicate: false } })
  })

  test('many are recorded together, and a repeated key counts once', async () => {
    const [topic, known] = [unique('topic'), unique('key')]
    const { body: before } = await send({ topic, dedupe_key: known })
    const keys = [unique('b'), known, unique('a')]
    const triggers = [...keys, ...keys].map((dedupe_key) => ({ topic, dedupe_key }))
    const answer = await send({ triggers })
    expect(answer.status).toBe(201)
    const { data } = answer.body as { data: RecordedTriggerShape[] }
    expect(data.map(({ dedupe_key }) => dedupe_key)).toEqual([...keys, ...keys])
    expect(data.map(({ duplicate }) => duplicate)).toEqual([false, true, false, true, true, true])
    expect(data[1]).toMatchObject({ trigger_id: (before as RecordedTriggerShape).trigger_id })
    expect(data.slice(3).map(({ trigger_id }) => trigger_id)).toEqual(data.slice(0, 3).map((one) => one.trigger_id))
    const again = await send({ triggers })
    expect([again.status, again.headers['idempotent-replayed']]).toEqual([200, 'true'])
  })

  test('a refusal names its field and stores nothing', async () => {
    const good = { topic: 't', dedupe_key: 'k' }
    const large = 'x'.repeat(TRIGGER_DATA_BYTES_MAX)
    const before = await stored()
    for (const [body, field, status = 400] of [
      [{}, 'topic'],
      [{ topic: 't' }, 'dedupe_key'],
      [{ ...good, topic: 'no spaces' }, 'topic'],
      [{ ...good, dedupe_key: 'ünïcode' }, 'dedupe_key'],
      [{ ...good, dedupe_key: '' }, 'dedupe_key'],
      [{ ...good, dedupe_key: 'k'.repeat(257) }, 'dedupe_key'],
      [{ ...good, dedupe_key: 7 }, 'dedupe_key'],
      [{ ...good, more: 1 }, 'more'],
      [{ ...good, data: large }, 'data', 413],
      [{ triggers: [] }, 'triggers'],
      [{ triggers: Array(1_001).fill(good) }, 'triggers'],
      [{ triggers: [good], topic: 't' }, 'topic'],
      [{ triggers: [good, good, good, { ...good, topic: '' }] }, 'triggers.3.topic'],
      [{ triggers: [good, { topic: 't' }] }, 'triggers.1.dedupe_key'],
      [{ triggers: [good, { ...good, dedupe_key: 'l', data: large }] }, 'triggers.1.data', 413],
      ['{"topic":"t","dedupe_key":"k","data":{"a":"\\u0000"}}', 'data.a'],
    ] as const) {
      const call = typeof body === 'string' ? { headers: { 'content-type': 'application/json' } } : {}
      const answer = await send(body, call)
      expect(answer, answer.text).toMatchObject({ status, body: { error: { details: { field } } } })
    }
    expect((await send({ topic: 't' })).body).toMatchObject({
      error: { message: 'Missing required field: dedupe_key' },
    })
    expect(await stored()).toBe(before)
    expect(await send({ ...good, dedupe_key: unique('k'), data: large.slice(2) })).toMatchObject({ status: 201 })
  })

  test('the list, the trigger, the ledger and the job refer to each other', async () => {
    const topic = unique('topic')
    const name = await defined({ topic, where: { kind: 'good' } }, { payload: { is: { $from: 'kind' } } })
    const triggers = ['good', 'bad'].map((kind) => ({ topic, dedupe_key: unique('key'), data: { kind } }))
    const { data: recorded } = (await send({ triggers })).body as { data: RecordedTriggerShape[] }
    const list = async (query: string) =>
      ((await get(`/v1/triggers?topic=${topic}${query}`)).body as Page<TriggerShape>).data.map((one) =>
        triggerShape.parse(one),
      )
    expect((await list('&state=unprocessed')).map(({ trigger_id }) => trigger_id)).toEqual(
      recorded.map(({ trigger_id }) => trigger_id).reverse(),
    )
    await processAll()
    expect(await list('&state=unprocessed')).toEqual([])
    const [bad, good] = await list('&state=processed')
    expect([bad?.outcomes, good?.outcomes]).toMatchObject([[], [{ definition: name, outcome: 'job', reason: null }]])
    expect(await list(`&definition=${name}`)).toEqual([good])

    const shown = await get(`/v1/triggers/${good?.trigger_id}`)
    expect(triggerDetail.parse(shown.body)).toEqual({
      ...good,
      data: { kind: 'good' },
    } satisfies Partial<TriggerDetail>)
    const ledger = (await get(`/v1/definitions/${name}/triggers`)).body as Page<TriggerEntryShape>
    expect(ledger.data.map((entry) => triggerEntry.parse(entry))).toMatchObject([
      {
        trigger_id: good?.trigger_id,
        topic,
        dedupe_key: good?.dedupe_key,
        outcome: 'job',
        triggered_at: good?.created_at,
      },
    ])
    const jobId = good?.outcomes[0]?.job_id
    expect((await get(`/v1/jobs/${jobId}`)).body as JobDetail).toMatchObject({
      trigger_id: good?.trigger_id,
      definition: name,
      user_id: 'ops',
      scheduled_for: null,
      payload: { is: 'good' },
    })
    const text = (await get('/metrics')).text
    expect(text).toMatch(/^ichido_triggers_total\{outcome="recorded"\} [1-9]/m)
    expect(text).toMatch(/^ichido_trigger_outcomes_total\{outcome="job"\} [1-9]/m)
    expect(text).toMatch(/^ichido_triggers_unprocessed 0$/m)
  })

  test('the list continues at its cursor, and refuses cursors of other lists', async () => {
    const topic = unique('topic')
    const triggers = Array.from({ length: 5 }, () => ({ topic, dedupe_key: unique('key') }))
    await send({ triggers })
    const seen: string[] = []
    for (let cursor: string | null = ''; cursor !== null; ) {
      const page = (await get(`/v1/triggers?topic=${topic}&limit=2${cursor === '' ? '' : `&cursor=${cursor}`}`)).body
      const { data, next_cursor } = page as Page<TriggerShape>
      seen.push(...data.map(({ dedupe_key }) => dedupe_key))
      cursor = next_cursor
    }
    expect(seen).toEqual(triggers.map(({ dedupe_key }) => dedupe_key).reverse())
    expect(await get('/v1/triggers?cursor=nonsense')).toMatchObject({
      status: 400,
      body: { error: { details: { field: 'cursor' } } },
    })
    expect(await get('/v1/triggers?state=lost')).toMatchObject({ status: 400 })
    expect(await get('/v1/triggers?definition=nobody')).toMatchObject({ status: 404 })
    expect(await get(`/v1/triggers/${crypto.randomUUID()}`)).toMatchObject({ status: 404 })
  })

  test('a submitter triggers only its own definitions, and operators trigger all', async () => {
    const topic = unique('topic')
    const name = await defined({ topic })
    const own = unique('definition')
    const operator = await http.token('s', 'operator')
    await http.call('POST', '/v1/definitions', { token: operator, body: { name: own, kind: 'work', on: { topic } } })
    expect(await send({ topic, dedupe_key: 'k' }, { token: token.viewer })).toMatchObject({ status: 403 })
    await send({ topic, dedupe_key: unique('s') }, { token: token.submitter })
    await send({ topic, dedupe_key: unique('o') }, { token: token.other })
    await send({ topic, dedupe_key: unique('ops') })
    await processAll()
    const made = async (definition: string) =>
      ((await get(`/v1/triggers?definition=${definition}`)).body as Page<TriggerShape>).data.map(
        ({ user_id }) => user_id,
      )
    expect([await made(name), await made(own)]).toEqual([['ops'], ['ops', 's']])

    const mine = (await get(`/v1/triggers?topic=${topic}`, { token: token.other })).body as Page<TriggerShape>
    expect(mine.data.map(({ user_id, outcomes }) => [user_id, outcomes])).toEqual([['o', []]])
    const [theirs] = ((await get(`/v1/triggers?topic=${topic}`)).body as Page<TriggerShape>).data
    for (const path of [`/v1/triggers/${theirs?.trigger_id}`, `/v1/triggers?definition=${name}`]) {
      expect(await get(path, { token: token.other })).toMatchObject({ status: 404 })
    }
    expect(await get(`/v1/definitions/${name}/triggers`, { token: token.other })).toMatchObject({ status: 403 })
  })
})

describe('definitions with `on`', () => {
  let http: TestApp
  beforeAll(async () => {
    http = await testApp('sqlite')
  })
  afterAll(() => http.close())
  const create = (body: object) =>
    http.call('POST', '/v1/definitions', { body: { name: unique('d'), kind: 'k', ...body } })

  test('show the rule with its defaults, and it is in the audit', async () => {
    const { body, status } = await create({ on: { topic: 't' }, schedule: { cron: '@daily' } })
    expect(status).toBe(201)
    const { name, on } = body as DefinitionShape
    expect(on).toEqual({ topic: 't', where: {}, when_paused: 'keep' })
    const put = { kind: 'k', on: { topic: 'u', where: { 'a.b': 1 }, when_paused: 'skip' } }
    expect((await http.call('PUT', `/v1/definitions/${name}`, { body: put })).body).toMatchObject({
      on: put.on,
      version: 2,
    })
    expect((await http.call('PUT', `/v1/definitions/${name}`, { body: { kind: 'k' } })).body).toMatchObject({
      on: null,
    })
    const audit = await http.call('GET', `/v1/audit?subject=${name}&action=definition.update`)
    expect(audit.body).toMatchObject({
      data: [{ before: { on: put.on }, after: { on: null } }, { after: { on: put.on } }],
    })
  })

  test('are refused with the field if the rule or the template is wrong', async () => {
    const on = { topic: 't' }
    for (const [body, field] of [
      [{ on: {} }, 'on.topic'],
      [{ on: { topic: 'no spaces' } }, 'on.topic'],
      [{ on: { ...on, when_paused: 'perhaps' } }, 'on.when_paused'],
      [{ on: { ...on, where: { a: {} } } }, 'on.where.a'],
      [{ on: { ...on, where: { 'a..b': 1 } } }, 'on.where.a..b'],
      [{ on: { ...on, where: Object.fromEntries(Array.from({ length: 17 }, (_, i) => [`p${i}`, 1])) } }, 'on.where'],
      [{ on: { ...on, unless: 1 } }, 'on.unless'],
      [{ payload: { a: [{ $from: 'b' }] } }, 'payload.a.0.$from'],
      [{ on, payload: { a: { $from: 'b', more: 1 } } }, 'payload.a.$from'],
      [{ on, payload: { a: { $from: 7 } } }, 'payload.a.$from'],
      [{ on, payload: { a: { $from: 'b.' } } }, 'payload.a.$from'],
      [{ on, payload: { $from: 'b\\c' } }, 'payload.$from'],
      [{ on, payload: { $from: 'b'.repeat(257) } }, 'payload.$from'],
      [{ on, schedule: { cron: '@daily' }, payload: { $from: 'b' } }, 'payload.$from'],
    ] as const) {
      const answer = await create(body)
      expect(answer, answer.text).toMatchObject({ status: 400, body: { error: { details: { field } } } })
    }
    expect((await http.call('GET', '/v1/definitions?limit=200')).text).not.toContain('$from')
  })

  test('that use fields of a trigger cannot run without one', async () => {
    const { body } = await create({ on: { topic: 't' }, payload: { $from: 'a' } })
    const { name } = body as DefinitionShape
    expect(await http.call('POST', `/v1/definitions/${name}/run`)).toMatchObject({
      status: 400,
      body: { error: { details: { field: 'payload' } } },
    })
    expect((await http.call('GET', '/v1/jobs')).body).toMatchObject({ data: [] })
  })
})
