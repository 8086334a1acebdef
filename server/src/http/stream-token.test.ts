import { Client, httpTransport } from '@ichido/sdk/client'
import type { StreamTokenShape } from '@ichido/sdk/protocol'
import type { World } from '@ichido/sdk/world'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type TestApp, testApp } from '../testing/app.ts'
import { beginPublishing, type Publishing } from '../testing/publishing.ts'
import { openSse } from '../testing/sse.ts'
import { testStore } from '../testing/store.ts'
import { realWorld } from '../world.ts'

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
  const [text, signature] = token.split('.')
  const changed = Buffer.from(JSON.stringify([other.jobId, world.now() + 60_000, 'admin', 'owner'])).toString(
    'base64url',
  )
  for (const forged of [`${text}.`, `${text}.${'é'.repeat(43)}`, `ichido_stream_${changed}.${signature}`, owner, '']) {
    expect([forged, (await open(forged)).status]).toEqual([forged, 401])
  }
})

test('is made by those who may see the job', async () => {
  const stranger = await here.token('stranger', 'submitter')
  const answer = await here.call('POST', `/v1/jobs/${run.jobId}/stream-token`, { token: stranger })
  expect(answer.status).toBe(404)
  const viewer = await here.token('viewer', 'viewer')
  expect((await open(await streamToken(run.jobId, viewer))).status).toBe(200)
  expect((await here.call('GET', '/v1/settings', { token: await here.token('a', 'admin') })).text).not.toContain(
    'secret',
  )
})
