import type { AuditShape, DeliveryShape, ErrorBody, Page, WebhookSecretShape } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { delivery } from '../../contract/deliveries.ts'
import { webhook, webhookWithSecret } from '../../contract/webhooks.ts'
import type { Courier } from '../../courier/port.ts'
import { type Answer, type TestApp, testApp } from '../../testing/http/app.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { sql } from '../../testing/store/store.ts'

/** Names and their addresses, in place of DNS. */
const NAMES: Record<string, string[]> = {
  'example.org': ['93.184.216.34', '2606:2800:21f:cb07::1'],
  'inside.example.org': ['93.184.216.34', '10.0.0.7'],
  localhost: ['127.0.0.1'],
}
const courier: Courier = {
  async resolve(host) {
    const found = NAMES[host] ?? (/^[\d.]+$|:/.test(host) ? [host] : undefined)
    if (found === undefined) throw Object.assign(new Error('not found'), { code: 'ENOTFOUND' })
    return found
  },
  post: async () => 200,
}
const URL = 'https://example.org/ichido'
const NO_ID = '01a1e12b-0000-7000-8000-000000000000'
const errorOf = ({ body }: Answer) => (body as ErrorBody).error

describe.each(ENGINES)('webhooks on %s', (engine) => {
  let http: TestApp
  beforeAll(async () => {
    http = await testApp(engine, { deps: { courier } })
  })
  afterAll(() => http.close())

  const create = (body: object) => http.call('POST', '/v1/webhooks', { body })
  const made = async (body: object = {}): Promise<WebhookSecretShape> => {
    const answer = await create({ url: URL, ...body })
    expect(answer.status).toBe(201)
    return webhookWithSecret.parse(answer.body)
  }

  test('a new webhook shows its secret once', async () => {
    const { secret, ...shown } = await made({ description: 'for the shop', queue: 'q', kind: 'k', label: 'team:a:b' })
    expect(secret).toMatch(/^whsec_[A-Za-z0-9+/]{43}=$/)
    expect(shown).toMatchObject({
      ...{ url: URL, description: 'for the shop', queue: 'q', kind: 'k', label: 'team:a:b', enabled: true },
      events: ['job.succeeded', 'job.failed', 'job.timed_out', 'job.canceled'],
    })
    const got = await http.call('GET', `/v1/webhooks/${shown.webhook_id}`)
    expect(got).toMatchObject({ status: 200, body: shown })
    const list = await http.call('GET', '/v1/webhooks')
    expect((list.body as Page<unknown>).data).toContainEqual(webhook.parse(got.body))
    expect(got.text + list.text).not.toContain(secret)
    const { body } = await http.call('GET', '/v1/audit?action=webhook.create')
    expect((body as Page<AuditShape>).data.map(({ subject }) => subject)).toContain(shown.webhook_id)
    expect(JSON.stringify(body)).not.toContain(secret)
  })

  test.each([
    ['a private address', { url: 'https://10.0.0.7/x' }, 'url', 'a private or reserved address'],
    ['cloud metadata', { url: 'https://169.254.169.254/' }, 'url', 'a private or reserved address'],
    ['loopback in hex digits', { url: 'https://0x7f.1/' }, 'url', 'a private or reserved address'],
    ['loopback in octal digits', { url: 'https://0177.0.0.01/' }, 'url', 'a private or reserved address'],
    ['loopback as one number', { url: 'https://2130706433/' }, 'url', 'a private or reserved address'],
    ['cloud metadata as one number', { url: 'https://2852039166/' }, 'url', 'a private or reserved address'],
    ['loopback in wide digits', { url: 'https://１２７.0.0.1/' }, 'url', 'a private or reserved address'],
    ['IPv6 loopback', { url: 'https://[::1]/' }, 'url', 'a private or reserved address'],
    ['a mapped address in hex', { url: 'https://[::ffff:a9fe:a9fe]/' }, 'url', 'a private or reserved address'],
    ['a mapped address', { url: 'https://[::ffff:192.168.0.1]/' }, 'url', 'a private or reserved address'],
    ['a name with one private address', { url: 'https://inside.example.org/' }, 'url', 'leads to 10.0.0.7'],
    ['localhost', { url: 'https://localhost/' }, 'url', 'leads to 127.0.0.1'],
    ['no TLS', { url: 'http://example.org/' }, 'url', 'without TLS'],
    ['another scheme', { url: 'file:///etc/passwd' }, 'url', 'must begin with https://'],
    ['no address', { url: 'example.org' }, 'url', 'must be an address'],
    ['an unknown name', { url: 'https://unknown.example.org/' }, 'url', 'ENOTFOUND'],
    ['a password', { url: 'https://ann:pw@example.org/' }, 'url', 'user name or password'],
    ['a short secret', { url: URL, secret: 'whsec_YWJj' }, 'secret', '24 to 64 bytes'],
    ['a secret that is not Base64', { url: URL, secret: 'a secret of mine that is long' }, 'secret', 'Base64'],
    ['an unknown event', { url: URL, events: ['job.begun'] }, 'events.0', 'events.0'],
    ['no events', { url: URL, events: [] }, 'events', 'events'],
    ['a label without a value', { url: URL, label: 'team' }, 'label', 'name:value'],
    ['an unknown field', { url: URL, colour: 'red' }, 'colour', 'colour'],
  ])('%s is refused with the reason', async (_, body, field, why) => {
    const answer = await create(body)
    expect(answer.status).toBe(400)
    expect(errorOf(answer)).toMatchObject({ code: 'INVALID_PAYLOAD', details: { field } })
    expect(errorOf(answer).message).toContain(why)
  })

  test('a change keeps the other fields, and checks the address', async () => {
    const { webhook_id } = await made({ queue: 'q' })
    const change = (body: object) => http.call('PATCH', `/v1/webhooks/${webhook_id}`, { body })
    expect(await change({ kind: 'k' })).toMatchObject({ status: 200, body: { queue: 'q', kind: 'k', url: URL } })
    expect(await change({ queue: null })).toMatchObject({ status: 200, body: { queue: null, kind: 'k' } })
    const disabled = { enabled: false, disabled_reason: 'A person disabled it' }
    expect(await change({ enabled: false })).toMatchObject({ status: 200, body: disabled })
    expect(await change({ enabled: true })).toMatchObject({ body: { enabled: true, disabled_reason: null } })
    expect((await change({ url: 'https://10.0.0.7/' })).status).toBe(400)
  })

  test('a rotation shows a new secret, and tells how long the old one is valid', async () => {
    const { webhook_id, secret } = await made()
    const answer = await http.call('POST', `/v1/webhooks/${webhook_id}/rotate-secret`, { body: {} })
    const rotated = webhookWithSecret.parse(answer.body)
    expect(rotated.secret).not.toBe(secret)
    const hours = (Date.parse(rotated.old_secret_until ?? '') - Date.now()) / 3_600_000
    expect(hours).toBeGreaterThan(23.9)
    expect(hours).toBeLessThan(24.1)
    const bad = { body: { secret: 'bad' } }
    expect((await http.call('POST', `/v1/webhooks/${webhook_id}/rotate-secret`, bad)).status).toBe(400)
  })

  test('deliveries are listed by state, and dead ones can be redriven', async () => {
    const { webhook_id } = await made()
    const path = `/v1/webhooks/${webhook_id}`
    const tests: DeliveryShape[] = []
    for (let i = 0; i < 3; i++) {
      const answer = await http.call('POST', `${path}/test`)
      expect(answer.status).toBe(202)
      tests.push(delivery.parse(answer.body))
    }
    const dead = `UPDATE ichido.webhook_deliveries SET state = 'dead', next_at = NULL, ended_at = 1 WHERE webhook_id = $1`
    await sql(http.services.deps.store, dead, webhook_id)
    const listed = async (query: string) =>
      (await http.call('GET', `${path}/deliveries?${query}`)).body as Page<DeliveryShape>
    const first = await listed('state=dead&limit=2')
    const second = await listed(`state=dead&limit=2&cursor=${first.next_cursor}`)
    const ids = [...first.data, ...second.data].map(({ delivery_id }) => delivery_id)
    expect(ids.toSorted()).toEqual(tests.map(({ delivery_id }) => delivery_id).toSorted())
    const one = await http.call('POST', `${path}/deliveries/${ids[0]}/redrive`)
    expect(one).toMatchObject({ status: 202, body: { delivery_id: ids[0], state: 'pending', ended_at: null } })
    expect(await http.call('POST', `${path}/redrive`)).toMatchObject({ status: 202, body: { redriven: 2 } })
    expect((await listed('state=pending')).data).toHaveLength(3)
    expect((await http.call('POST', `${path}/deliveries/${NO_ID}/redrive`)).status).toBe(404)
  })

  test('a deleted webhook and its deliveries are gone', async () => {
    const { webhook_id } = await made()
    await http.call('POST', `/v1/webhooks/${webhook_id}/test`)
    expect((await http.call('DELETE', `/v1/webhooks/${webhook_id}`)).status).toBe(204)
    expect((await http.call('DELETE', `/v1/webhooks/${webhook_id}`)).status).toBe(404)
    const left = `SELECT count(*) AS count FROM ichido.webhook_deliveries WHERE webhook_id = $1`
    expect(await sql(http.services.deps.store, left, webhook_id)).toEqual([{ count: 0 }])
    for (const path of ['', '/deliveries']) {
      expect((await http.call('GET', `/v1/webhooks/${webhook_id}${path}`)).status).toBe(404)
    }
  })

  test('submitters may not see or make webhooks, and viewers may not make them', async () => {
    const [submitter, viewer] = [await http.token('sue', 'submitter'), await http.token('vic', 'viewer')]
    const body = { url: URL }
    expect((await http.call('POST', '/v1/webhooks', { body, token: submitter })).status).toBe(403)
    expect((await http.call('GET', '/v1/webhooks', { token: submitter })).status).toBe(403)
    expect((await http.call('POST', '/v1/webhooks', { body, token: viewer })).status).toBe(403)
    expect((await http.call('GET', '/v1/webhooks', { token: viewer })).status).toBe(200)
  })
})
