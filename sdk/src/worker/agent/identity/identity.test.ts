import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { hostname, tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { FakeWorld, settled } from '../../../../../scripts/testing/fake-world.ts'
import { AGENT_VERSION, gainIdentity, type Identity, type IdentityOptions, TokenKeeper } from './identity.ts'

const HOUR_MS = 3_600_000
const LIFE_MS = 7 * 24 * HOUR_MS
const WORKER = '018f0000-0000-7000-8000-000000000001'

interface Call {
  path: string
  token: string | null
  body: { register_id?: string; queues?: string[]; worker_id?: string; worker_token?: string }
}

let world: FakeWorld
let folder: string
let calls: Call[]
let said: string[]
/** Status, and for errors their code, of the next answers; then all is well. */
let troubles: [number, string][]
let tokens: number
beforeEach(() => {
  world = new FakeWorld()
  folder = mkdtempSync(join(tmpdir(), 'ichido-identity-'))
  calls = []
  said = []
  troubles = []
  tokens = 0
})
afterEach(() => rmSync(folder, { recursive: true }))

const plane: typeof fetch = async (input, init) => {
  const { pathname: path } = new URL(String(input))
  const headers = new Headers(init?.headers)
  calls.push({ path, token: headers.get('authorization'), body: JSON.parse(String(init?.body)) })
  const { queues } = JSON.parse(String(init?.body))
  const trouble = troubles.shift()
  if (trouble !== undefined) {
    const [status, code] = trouble
    return answer(status, { error: { code, message: `it is ${code}`, details: {}, request_id: 'r' } })
  }
  const token = { worker_token: `token-${++tokens}`, expires_at: new Date(world.now() + LIFE_MS).toISOString() }
  return answer(200, path.endsWith('renew') ? token : { ...token, worker_id: WORKER, name: 'pc', queues })
}

function answer(status: number, body: unknown): Response {
  return new Response(JSON.stringify(body), { status, headers: { 'x-request-id': 'r' } })
}

function options(changes: Partial<IdentityOptions> = {}): IdentityOptions {
  const enroll = { token: 'enroll-1' }
  const file = join(folder, 'identity.json')
  const say = (line: string) => void said.push(line)
  return { url: 'https://plane', file, enroll, name: null, queues: ['q'], say, world, fetch: plane, ...changes }
}

const stored = (): Identity => JSON.parse(readFileSync(join(folder, 'identity.json'), 'utf8'))
const paths = () => calls.map(({ path }) => path.replace('/v1/workers/', ''))

test('an enroll token registers an agent once; only the owner can read its file', async () => {
  expect(await gainIdentity(options())).toMatchObject({ worker_id: WORKER, worker_token: 'token-1', name: 'pc' })
  expect(statSync(join(folder, 'identity.json')).mode & 0o777).toBe(0o600)
  expect(readFileSync(join(folder, 'identity.json'), 'utf8')).not.toContain('enroll-1')
  expect(await gainIdentity(options())).toMatchObject({ worker_id: WORKER, worker_token: 'token-2' })
  expect(await gainIdentity(options({ enroll: null }))).toMatchObject({ worker_token: 'token-3' })
  expect(paths()).toEqual(['register', 'renew', 'renew'])
  const meta = { hostname: hostname(), version: AGENT_VERSION, node: process.version }
  for (const { body } of calls) expect(body).toMatchObject({ meta })
})

test('the version of the agent is that of its package', () => {
  const manifest = JSON.parse(readFileSync(new URL('../../../../package.json', import.meta.url), 'utf8'))
  expect(AGENT_VERSION).toBe(manifest.version)
})

test('a registration without an answer is repeated with its id, even after a restart', async () => {
  troubles.push([503, 'UNAVAILABLE'])
  const first = gainIdentity(options())
  await world.pass(2_000)
  await first
  rmSync(join(folder, 'identity.json'))
  writeFileSync(join(folder, 'identity.json.pending'), '')
  troubles.push(...Array.from({ length: 5 }, (): [number, string] => [503, 'UNAVAILABLE']))
  const given = gainIdentity(options()).catch(() => 'gave up')
  await world.pass(60_000)
  expect(await given).toBe('gave up')
  await gainIdentity(options())
  const ids = calls.map(({ body }) => body.register_id)
  expect(ids[1]).toBe(ids[0])
  expect(new Set(ids.slice(2))).toEqual(new Set([ids[2]]))
  expect(ids).toHaveLength(8)
})

test('an untrusted certificate ends a registration with advice; later it is retried', async () => {
  const cause = Object.assign(new Error('self-signed certificate'), { code: 'DEPTH_ZERO_SELF_SIGNED_CERT' })
  const untrusting = async () => {
    throw new TypeError('fetch failed', { cause })
  }
  const words =
    'The certificate of the control plane is not trusted: self-signed certificate (DEPTH_ZERO_SELF_SIGNED_CERT). ' +
    'Set NODE_EXTRA_CA_CERTS to the file of the authority that signed it.'
  await expect(gainIdentity(options({ fetch: untrusting }))).rejects.toThrow(words)
  expect(said).toEqual([])
  await gainIdentity(options())
  expect(await gainIdentity(options({ fetch: untrusting }))).toMatchObject({ worker_token: 'token-1' })
  expect(said).toEqual([`cannot check whether the token is still valid: ${words}`])
})

test('a new enroll token keeps the worker, unless it was revoked', async () => {
  await gainIdentity(options())
  await gainIdentity(options({ enroll: { token: 'enroll-2' } }))
  expect(calls.at(-1)?.body).toMatchObject({ worker_id: WORKER, worker_token: 'token-1' })
  troubles.push([403, 'FORBIDDEN'])
  await gainIdentity(options({ enroll: { token: 'enroll-3' } }))
  expect(paths()).toEqual(['register', 'register', 'register', 'register'])
  expect(calls.at(-1)?.body).not.toHaveProperty('worker_id')
})

test('an enroll token for other queues or another name is refused in the same folder', async () => {
  await gainIdentity(options())
  const enroll = { token: 'enroll-2' }
  for (const changes of [{ queues: ['other'] }, { queues: ['q', 'other'] }, { name: 'lab' }]) {
    await expect(gainIdentity(options({ enroll, ...changes }))).rejects.toThrow(
      `This folder belongs to worker pc (folder ${folder}); use another --name or --state`,
    )
  }
  expect(paths()).toEqual(['register'])
  await gainIdentity(options({ enroll, name: 'pc', queues: ['other'] }))
  expect(calls.at(-1)?.body).toMatchObject({ worker_id: WORKER, queues: ['other'] })
  expect(stored().queues).toEqual(['other'])
})

test('an agent that can enroll itself does so for new queues', async () => {
  const enroll = { make: async () => 'made' }
  await gainIdentity(options({ enroll, queues: ['a', 'b'] }))
  await gainIdentity(options({ enroll, queues: ['b'] }))
  await gainIdentity(options({ enroll, queues: ['b', 'c'] }))
  expect(paths()).toEqual(['register', 'renew', 'register'])
  expect(calls.at(-1)?.body).toMatchObject({ worker_id: WORKER, queues: ['b', 'c'] })
})

test('a refused token is reported, or replaced if the agent can enroll itself', async () => {
  await expect(gainIdentity(options({ enroll: null }))).rejects.toThrow('not enrolled yet')
  await gainIdentity(options())
  troubles.push([401, 'UNAUTHENTICATED'])
  await expect(gainIdentity(options())).rejects.toThrow('refuses this agent')
  troubles.push([401, 'UNAUTHENTICATED'])
  const made = await gainIdentity(options({ enroll: { make: async () => 'enroll-9' } }))
  expect(made.worker_token).toBe('token-2')
  // A server that cannot be reached says nothing about the token.
  troubles.push([503, 'UNAVAILABLE'])
  expect(await gainIdentity(options({ enroll: null }))).toMatchObject({ worker_token: 'token-2' })
  expect(await gainIdentity(options({ enroll: { token: 'e' }, url: 'https://other' }))).toMatchObject({
    url: 'https://other',
  })
})

test('the token is renewed at half of its lifetime, used and stored', async () => {
  const renewed: string[] = []
  const keeper = new TokenKeeper(await gainIdentity(options()), options(), (token) => renewed.push(token))
  await world.pass(LIFE_MS / 2 - HOUR_MS)
  expect(keeper.token()).toBe('token-1')
  await world.pass(2 * HOUR_MS)
  expect(keeper.token()).toBe('token-2')
  await world.pass(LIFE_MS)
  expect(renewed).toEqual(['token-2', 'token-3', 'token-4'])
  expect(stored().worker_token).toBe('token-4')
  expect(said).toEqual([])
  keeper.stop()
  await settled()
  expect(world.pendingMs).toEqual([])
})

test('a failed renewal is retried; a warning appears in the last 24 hours', async () => {
  const keeper = new TokenKeeper(await gainIdentity(options()), options())
  troubles.push(...Array.from({ length: 100_000 }, (): [number, string] => [503, 'UNAVAILABLE']))
  await world.pass(LIFE_MS - 25 * HOUR_MS)
  expect(said).toEqual([])
  await world.pass(2 * HOUR_MS)
  expect(said.at(0)).toContain('warning: the token expires in 24 h and could not be renewed')
  await world.pass(24 * HOUR_MS)
  expect(said.at(-1)).toContain('enroll this agent again')
  troubles = []
  await world.pass(HOUR_MS)
  expect(keeper.token()).toBe('token-2')
  keeper.stop()
})
