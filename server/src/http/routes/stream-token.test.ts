import { createHmac, createPrivateKey, sign } from 'node:crypto'
import { Client, httpTransport } from '@ichido/sdk/client'
import type { StreamTokenShape } from '@ichido/sdk/protocol'
import type { World } from '@ichido/sdk/world'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { realWorld } from '../../node/world.ts'
import { hashToken, LOCAL_ADMIN } from '../../services/access/access.ts'
import { type TestApp, testApp } from '../../testing/http/app.ts'
import { openSse } from '../../testing/http/sse.ts'
import { beginPublishing, type Publishing } from '../../testing/services/publishing.ts'
import { sql, testStore } from '../../testing/store/store.ts'

let aheadMs = 0
const world: World = { ...realWorld, now: () => realWorld.now() + aheadMs }

let here: TestApp
let there: TestApp
let close = async () => {}
let url = ''
let owner = ''
let run: Publishing
beforeAll(async () => {
  const opened = await testStore('sqlite')
  const shared = { store: opened.store, remove: async () => {} }
  here = await testApp('sqlite', { deps: { world }, opened: shared })
  there = await testApp('sqlite', { deps: { world }, opened: shared })
  owner = await here.token('owner', 'submitter')
  url = await there.app.listen({ host: '127.0.0.1', port: 0 })
  run = await beginPublishing(here.services, {}, { userId: 'owner', role: 'submitter' })
  await run.succeed()
  close = async () => {
    await here.app.close()
    await there.app.close()
    await opened.close()
  }
})
afterAll(() => close())

async function streamToken(jobId = run.jobId, token = owner): Promise<string> {
  const answer = await here.call('POST', `/v1/jobs/${jobId}/stream-token`, { token })
  expect([answer.status, answer.headers['cache-control']]).toEqual([201, 'no-store'])
  const { token: made, expires_at } = answer.body as StreamTokenShape
  expect(Date.parse(expires_at) - world.now()).toBeLessThanOrEqual(5 * 60_000)
  return made
}

const STREAM = 'ichido_stream_'
const base64url = (bytes: string | Buffer) => Buffer.from(bytes).toString('base64url')

function contentOf(token: string): [jobId: string, expiresMs: number, tokenId: string] {
  return JSON.parse(Buffer.from(token.slice(STREAM.length).split('.')[0] ?? '', 'base64url').toString())
}

const open = (token: string, jobId = run.jobId) =>
  openSse(`${url}/v1/jobs/${jobId}/events?stream_token=${encodeURIComponent(token)}`)

test('opens the events of its job on every node, in a URL or as a header', async () => {
  const token = await streamToken()
  const client = await open(token)
  expect([client.status, await client.ended, client.frames.length]).toEqual([200, true, 4])
  const cursors: number[] = []
  const watching = new Client(httpTransport({ url, token: async () => token }))
  for await (const { cursor } of watching.watch(run.jobId)) cursors.push(cursor)
  expect(cursors).toEqual([1, 2, 3])
})

test('opens nothing else, and not for long', async () => {
  const token = await streamToken()
  const other = await beginPublishing(here.services, {}, { userId: 'owner', role: 'submitter' })
  expect((await open(token, other.jobId)).status).toBe(401)
  for (const path of [`/v1/jobs/${run.jobId}`, `/v1/jobs/${run.jobId}/logs`, `/v1/jobs/${run.jobId}/state`]) {
    expect((await there.call('GET', path, { token })).status).toBe(401)
  }
  aheadMs = 5 * 60_000
  expect((await open(token)).status).toBe(401)
  aheadMs = 0
  const [text = '', signature = ''] = token.split('.')
  const [, , tokenId] = contentOf(token)
  const changed = (...content: unknown[]) => `${STREAM}${base64url(JSON.stringify(content))}.${signature}`
  const soon = world.now() + 60_000
  const forged = [
    `${text}.`,
    `${text}.${'é'.repeat(86)}`,
    changed(run.jobId, soon, tokenId),
    changed(run.jobId, soon, null),
    changed(run.jobId, soon, '00000000-0000-7000-8000-000000000000'),
    changed(run.jobId, soon, "' OR ''='"),
    changed(run.jobId, soon),
    changed({}, [], 1),
    `${STREAM}${base64url('no JSON')}.${signature}`,
    owner,
    '',
  ]
  for (const each of forged) expect([each, (await open(each)).status]).toEqual([each, expect.toBeOneOf([401, 429])])
})

test('ends with its API token', async () => {
  const statusAfter = async (change: string | ((tokenId: string) => Promise<unknown>)) => {
    const apiToken = await here.token('viewer', 'viewer')
    const token = await streamToken(run.jobId, apiToken)
    expect((await open(token)).status).toBe(200)
    const [, , tokenId = ''] = contentOf(token)
    await (typeof change === 'string' ? sql(here.services.deps.store, change, tokenId) : change(tokenId))
    return (await open(token)).status
  }
  const REFUSED = expect.toBeOneOf([401, 429])
  expect(await statusAfter((tokenId) => there.services.access.revokeToken(LOCAL_ADMIN, tokenId))).toEqual(REFUSED)
  expect(await statusAfter('DELETE FROM ichido.api_tokens WHERE token_id = $1')).toEqual(REFUSED)
  expect(await statusAfter('UPDATE ichido.api_tokens SET expires_at = 1 WHERE token_id = $1')).toEqual(REFUSED)
  // It has the current rights of the token: a viewer sees every job, a submitter its own.
  expect(await statusAfter("UPDATE ichido.api_tokens SET role = 'submitter' WHERE token_id = $1")).toBe(404)
})

test('cannot be made from the database', async () => {
  const token = await streamToken()
  const [, , tokenId = ''] = contentOf(token)
  const { store } = here.services.deps
  const [row] = await sql(store, 'SELECT token_hash, stream_key FROM ichido.api_tokens WHERE token_id = $1', tokenId)
  const settings = await sql(store, 'SELECT name, value FROM ichido.settings')
  const known = [...Object.values(row ?? {}), ...settings.map(({ value }) => value)].map(String)
  expect(known).toContain(hashToken(owner))
  const text = base64url(JSON.stringify([run.jobId, world.now() + 60_000, tokenId]))
  for (const secret of known) {
    const seed = createHmac('sha256', secret).update('ichido stream token').digest()
    const keys = [seed, Buffer.from(secret, 'hex'), Buffer.from(secret, 'base64url')].filter((key) => key.length === 32)
    for (const key of keys) {
      const der = Buffer.concat([Buffer.from('302e020100300506032b657004220420', 'hex'), key])
      const signature = sign(null, Buffer.from(text), createPrivateKey({ key: der, format: 'der', type: 'pkcs8' }))
      expect(await here.services.streamTokens.verify(`${STREAM}${text}.${base64url(signature)}`, run.jobId)).toBeNull()
    }
    const mac = createHmac('sha256', secret).update(text).digest('base64url')
    expect(await here.services.streamTokens.verify(`${STREAM}${text}.${mac}`, run.jobId)).toBeNull()
  }
  expect(await here.services.streamTokens.verify(token, run.jobId)).toEqual({ userId: 'owner', role: 'submitter' })
})

test('of open mode ends with open mode', async () => {
  const opened = await testStore('sqlite')
  const plane = await testApp('sqlite', { opened: { store: opened.store, remove: async () => {} } })
  const { jobId } = await beginPublishing(plane.services, {}, LOCAL_ADMIN)
  const made = await plane.call('POST', `/v1/jobs/${jobId}/stream-token`)
  const { token } = made.body as StreamTokenShape
  const read = () => plane.call('GET', `/v1/jobs/${jobId}/events?stream_token=${token}`)
  expect((await read()).status).toBe(200)
  await plane.token('ann', 'admin')
  expect((await read()).status).toBe(401)
  await plane.app.close()
  await opened.close()
})

test('can be made by readers of the job', async () => {
  const stranger = await here.token('stranger', 'submitter')
  const answer = await here.call('POST', `/v1/jobs/${run.jobId}/stream-token`, { token: stranger })
  expect(answer.status).toBe(404)
  const viewer = await here.token('viewer', 'viewer')
  expect((await open(await streamToken(run.jobId, viewer))).status).toBe(200)
  expect((await here.call('GET', '/v1/settings', { token: await here.token('a', 'admin') })).text).not.toContain(
    'secret',
  )
})

test('of open mode is refused through proxies and from other sites', async () => {
  const plane = await testApp('sqlite')
  const { jobId } = await beginPublishing(plane.services, {}, LOCAL_ADMIN)
  const made = await plane.call('POST', `/v1/jobs/${jobId}/stream-token`)
  const { token } = made.body as StreamTokenShape
  const status = async (headers: Record<string, string>) => {
    const path = `/v1/jobs/${jobId}/events?stream_token=${token}`
    return (await plane.call('GET', path, { headers: { accept: 'application/json', ...headers } })).status
  }
  expect(await status({})).toBe(200)
  const indirect = [{ 'x-forwarded-for': '192.0.2.1' }, { host: 'example.com' }, { origin: 'http://example.com' }]
  for (const headers of indirect) expect([headers, await status({ ...headers })]).toEqual([headers, 403])
  await plane.close()
})
