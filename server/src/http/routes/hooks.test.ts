import { createHmac } from 'node:crypto'
import type {
  AuditShape,
  ErrorBody,
  HookShape,
  Page,
  PutHookResponse,
  TriggerDetail,
  TriggerShape,
} from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { hook as hookSchema, putHookResponse } from '../../contract/triggers.ts'
import type { Command } from '../../store/port.ts'
import { deleteHook, type HookChange, putHook } from '../../store/triggers/hooks.ts'
import { type Answer, type Call, type TestApp, testApp } from '../../testing/http/app.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { unique } from '../../testing/store/store.ts'

/** A sender of Standard Webhooks, by its specification. */
function standard(secret: string, id: string, body: string, atMs = Date.now()): Call {
  const timestamp = String(Math.floor(atMs / 1000))
  const key = Buffer.from(secret.replace('whsec_', ''), 'base64')
  const signature = createHmac('sha256', key).update(`${id}.${timestamp}.${body}`).digest('base64')
  return { body, headers: { 'webhook-id': id, 'webhook-timestamp': timestamp, 'webhook-signature': `v1,${signature}` } }
}

function github(secret: string, id: string, event: string, body: string): Call {
  const signature = `sha256=${createHmac('sha256', secret).update(body).digest('hex')}`
  return { body, headers: { 'x-github-delivery': id, 'x-github-event': event, 'x-hub-signature-256': signature } }
}

const errorOf = ({ body }: Answer) => (body as ErrorBody).error

describe.each(ENGINES)('hooks on %s', (engine) => {
  let http: TestApp
  beforeAll(async () => {
    http = await testApp(engine)
  })
  afterAll(() => http.close())

  const put = (name: string, body: object, call: Call = {}) => http.call('PUT', `/v1/hooks/${name}`, { ...call, body })
  const deliver = (name: string, call: Call) => http.call('POST', `/v1/hooks/${name}`, call)
  const made = async (body: object = { scheme: 'standard', topic: 'orders' }) => {
    const answer = await put(unique('hook'), body)
    expect(answer.status).toBe(200)
    return putHookResponse.parse(answer.body)
  }
  const withSecret = async () => {
    const hook = await made({ scheme: 'standard', topic: unique('topic') })
    return { ...hook, secret: hook.secret ?? '' }
  }
  const triggersOf = async (topic: string) =>
    ((await http.call('GET', `/v1/triggers?topic=${topic}`)).body as Page<TriggerShape>).data

  test('a delivery becomes a trigger with its body as data', async () => {
    const { name, topic, secret, user_id } = await withSecret()
    const answer = await deliver(name, standard(secret, 'msg_1', '{"order": {"id": 7}}'))
    expect(answer).toMatchObject({ status: 201, body: { topic, dedupe_key: `hook:${name}:msg_1`, duplicate: false } })
    const { trigger_id } = answer.body as { trigger_id: string }
    const { body } = await http.call('GET', `/v1/triggers/${trigger_id}`)
    expect(body as TriggerDetail).toMatchObject({ topic, user_id, data: { order: { id: 7 } } })
  })

  test('a repeated delivery gets the first trigger and makes none', async () => {
    const { name, topic, secret } = await withSecret()
    const first = await deliver(name, standard(secret, 'msg_1', '{"try": 1}'))
    const again = await deliver(name, standard(secret, 'msg_1', '{"try": 2}'))
    expect(again).toMatchObject({ status: 200, body: { ...(first.body as object), duplicate: true } })
    expect(await triggersOf(topic)).toHaveLength(1)
  })

  test('the same id at two hooks of one user makes two triggers', async () => {
    const [one, two] = [await withSecret(), await withSecret()]
    for (const { name, secret } of [one, two]) {
      expect((await deliver(name, standard(secret, 'msg_1', '{}'))).status).toBe(201)
    }
    expect(await triggersOf(one.topic)).toHaveLength(1)
    expect(await triggersOf(two.topic)).toHaveLength(1)
  })

  test('the name of a GitHub event is appended to the topic', async () => {
    const topic = unique('github')
    const { name, secret } = await made({ scheme: 'github', topic })
    const answer = await deliver(name, github(secret ?? '', 'd-1', 'push', '{"ref": "refs/heads/main"}'))
    expect(answer).toMatchObject({ status: 201, body: { topic: `${topic}.push`, dedupe_key: `hook:${name}:d-1` } })
  })

  test('a wrong signature, an old timestamp and an unknown hook make nothing', async () => {
    const { name, topic, secret } = await withSecret()
    const other = await withSecret()
    const forged = await deliver(name, standard(other.secret, 'msg_1', '{}'))
    expect(forged).toMatchObject({ status: 401, body: { error: { code: 'UNAUTHENTICATED' } } })
    const old = await deliver(name, standard(secret, 'msg_1', '{}', Date.now() - 400_000))
    expect(old.status).toBe(401)
    expect(errorOf(old).message).toMatch(/its timestamp is (399|4\d\d) s behind/)
    expect((await deliver(unique('none'), standard(secret, 'msg_1', '{}'))).status).toBe(404)
    expect(await triggersOf(topic)).toEqual([])
  })

  test.each<[string, (secret: string) => Call, number, string]>([
    ['no body', (secret) => ({ headers: standard(secret, 'm', '').headers ?? {} }), 400, 'body'],
    ['a body that is no JSON', (secret) => standard(secret, 'm', '{oops'), 400, ''],
    ['no webhook-id', () => ({ body: '{}' }), 400, 'webhook-id'],
    ['an id that cannot be a key', (secret) => standard(secret, 'with space', '{}'), 400, 'webhook-id'],
    [
      'a form',
      (secret) => ({
        body: 'a=b',
        headers: { ...standard(secret, 'm', 'a=b').headers, 'content-type': 'application/x-www-form-urlencoded' },
      }),
      415,
      '',
    ],
    ['more than 256 KiB', (secret) => standard(secret, 'm', JSON.stringify('x'.repeat(256 * 1024))), 413, ''],
  ])('%s is refused and makes nothing', async (_, call, status, field) => {
    const { name, topic, secret } = await withSecret()
    const answer = await deliver(name, call(secret))
    expect(answer.status).toBe(status)
    if (field !== '') expect(errorOf(answer).details).toMatchObject({ field })
    expect(await triggersOf(topic)).toEqual([])
  })

  test('the secret is shown once, and is in no list and no audit', async () => {
    const { secret, ...hook } = await made()
    expect(secret).toMatch(/^whsec_/)
    expect(hookSchema.parse((await http.call('GET', `/v1/hooks/${hook.name}`)).body)).toEqual(hook)
    const again = (await put(hook.name, { scheme: 'standard', topic: 'other' })).body as PutHookResponse
    expect(again).toMatchObject({ topic: 'other', secret: null })
    expect((await deliver(hook.name, standard(secret ?? '', 'm', '{}'))).status).toBe(201)
    const list = await http.call('GET', '/v1/hooks?limit=200')
    const audit = await http.call('GET', `/v1/audit?subject=${hook.name}`)
    expect((audit.body as Page<AuditShape>).data.map(({ action }) => action)).toEqual(['hook.update', 'hook.create'])
    for (const { text } of [list, audit]) expect(text).not.toContain(secret?.slice(6))
  })

  test('of ten concurrent makers of a hook, one gets the secret', async () => {
    const name = unique('hook')
    const answers = await Promise.all(
      Array.from({ length: 10 }, () => put(name, { scheme: 'standard', topic: 'race' })),
    )
    expect(answers.map(({ status }) => status)).toEqual(Array(10).fill(200))
    const secrets = answers.flatMap(({ body }) => (body as PutHookResponse).secret ?? [])
    expect(secrets).toHaveLength(1)
    expect((await deliver(name, standard(secrets[0] ?? '', 'm', '{}'))).status).toBe(201)
  })

  test('of ten concurrent deliveries, one makes a trigger', async () => {
    const { name, topic, secret } = await withSecret()
    const call = standard(secret, 'msg_1', '{}')
    const answers = await Promise.all(Array.from({ length: 10 }, () => deliver(name, call)))
    expect(answers.map(({ status }) => status).toSorted()).toEqual([...Array(9).fill(200), 201])
    expect(await triggersOf(topic)).toHaveLength(1)
  })

  test('a new secret replaces the old one', async () => {
    const { name, secret } = await withSecret()
    const given = `whsec_${Buffer.alloc(24, 7).toString('base64')}`
    expect(await put(name, { scheme: 'standard', topic: 'orders', secret: given })).toMatchObject({
      body: { secret: null },
    })
    expect((await deliver(name, standard(secret, 'm', '{}'))).status).toBe(401)
    expect((await deliver(name, standard(given, 'm', '{}'))).status).toBe(201)
  })

  test.each<[string, object, string]>([
    ['no topic', { scheme: 'standard' }, 'topic'],
    ['an unknown scheme', { scheme: 'md5', topic: 't' }, 'scheme'],
    ['a topic with a space', { scheme: 'standard', topic: 'a b' }, 'topic'],
    ['a secret of the other scheme', { scheme: 'standard', topic: 't', secret: 'only-text-of-some-length' }, 'secret'],
    ['a short secret', { scheme: 'github', topic: 't', secret: 'short' }, 'secret'],
  ])('a hook with %s is refused', async (_, body, field) => {
    const name = unique('hook')
    const answer = await put(name, body)
    expect(answer).toMatchObject({ status: 400, body: { error: { details: { field } } } })
    expect((await http.call('GET', `/v1/hooks/${name}`)).status).toBe(404)
  })

  test('a change of scheme needs a secret of the new scheme', async () => {
    const { name } = await made()
    const answer = await put(name, { scheme: 'github', topic: 't' })
    expect(answer).toMatchObject({ status: 400, body: { error: { details: { field: 'secret' } } } })
    expect((await http.call('GET', `/v1/hooks/${name}`)).body).toMatchObject({ scheme: 'standard' })
  })

  test('hooks are listed by name in pages, and a deleted hook accepts nothing', async () => {
    const { name, secret } = await withSecret()
    const names: string[] = []
    for (let cursor = ''; ; ) {
      const { body } = await http.call('GET', `/v1/hooks?limit=3${cursor && `&cursor=${cursor}`}`)
      const page = body as Page<HookShape>
      names.push(...page.data.map((one) => one.name))
      if (page.next_cursor === null) break
      cursor = page.next_cursor
    }
    expect(names).toEqual(names.toSorted())
    expect(names).toContain(name)
    expect((await http.call('DELETE', `/v1/hooks/${name}`)).status).toBe(204)
    expect((await http.call('DELETE', `/v1/hooks/${name}`)).status).toBe(404)
    expect((await deliver(name, standard(secret, 'm', '{}'))).status).toBe(404)
  })

  test('a change or deletion whose answer was lost is made once', async () => {
    const { store, world } = http.services.deps
    const by = () => ({ id: world.uuid(), actor: 'tester' })
    const name = unique('hook')
    const change = (topic: string): HookChange => ({
      id: world.uuid(),
      name,
      scheme: 'github',
      topic,
      secret: null,
      newSecret: 'secret-of-16-chars',
      userId: 'ann',
    })
    const again = async <T>(command: Command<T>): Promise<T> => {
      await store.write(command)
      return store.write({ ...command, work: () => command.work(true) })
    }
    expect(await again(putHook(change('one'), by()))).toMatchObject({ kind: 'put', isNew: true })
    expect(await again(putHook(change('two'), by()))).toMatchObject({ kind: 'put', hook: { topic: 'two' } })
    expect(await again(deleteHook(name, by()))).toBe(true)
    const { body } = await http.call('GET', `/v1/audit?subject=${name}`)
    expect((body as Page<AuditShape>).data.map(({ action }) => action)).toEqual([
      'hook.delete',
      'hook.update',
      'hook.create',
    ])
  })
})

test('operators make hooks, viewers see them, and a delivery needs no token', async () => {
  const http = await testApp('sqlite')
  const body = { scheme: 'standard', topic: 'orders' }
  const tokens = await Promise.all(
    (['viewer', 'submitter', 'operator'] as const).map((role) => http.token(`the-${role}`, role)),
  )
  const statuses = async (method: string, path: string, sent?: object) => {
    const answers = await Promise.all(tokens.map((token) => http.call(method, path, { token, body: sent })))
    return answers.map(({ status }) => status)
  }
  expect(await statuses('PUT', '/v1/hooks/h', body)).toEqual([403, 403, 200])
  expect(await statuses('GET', '/v1/hooks/h')).toEqual([200, 403, 200])
  expect(await statuses('GET', '/v1/hooks')).toEqual([200, 403, 200])
  const { body: hook } = await http.call('PUT', '/v1/hooks/h2', { token: tokens[2] ?? '', body })
  const { secret } = hook as PutHookResponse
  expect((await http.call('POST', '/v1/hooks/h2', standard(secret ?? '', 'm', '{}'))).status).toBe(201)
  expect(await statuses('DELETE', '/v1/hooks/h')).toEqual([403, 403, 204])
  await http.close()
})

test('wrong signatures are limited like wrong tokens, and do not delay valid ones', async () => {
  const http = await testApp('sqlite')
  const { body } = await http.call('PUT', '/v1/hooks/h', { body: { scheme: 'standard', topic: 't' } })
  const call = standard((body as PutHookResponse).secret ?? '', 'msg_1', '{}')
  const forged = () => http.call('POST', '/v1/hooks/h', { ...call, body: '{"other": 1}' })
  const answers = await Promise.all(Array.from({ length: 12 }, forged))
  expect(answers.filter(({ status }) => status === 401)).toHaveLength(10)
  const limited = answers.filter(({ status }) => status === 429)
  expect(limited).toMatchObject(Array(2).fill({ headers: { 'retry-after': expect.any(String) } }))
  expect((await http.call('POST', '/v1/hooks/h', call)).status).toBe(201)
  await http.close()
})
