import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createClient } from '@redis/client'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { Redis } from '../../../../../scripts/services/redis.ts'
import { freshDatabase, privateRedis } from '../../../../../scripts/testing/services.ts'
import { until } from '../../../testing/store/store.ts'
import { type Env, ichido, killAll, type Serving, serve } from '../../testing/cli.ts'

let redis: Redis
beforeAll(async () => {
  redis = await privateRedis()
})
afterAll(async () => {
  await killAll()
  await redis.stop()
})

async function get({ url }: Serving, path: string): Promise<{ status: number; body: Record<string, unknown> }> {
  const answer = await fetch(`${url}${path}`, { headers: { accept: 'application/json' } })
  return { status: answer.status, body: await answer.json() }
}

async function submit({ url }: Serving): Promise<string> {
  const headers = { 'content-type': 'application/json' }
  const body = JSON.stringify({ kind: 'demo.hello', queue: 'demo', payload: { name: 'world' } })
  const answer = await fetch(`${url}/v1/jobs`, { method: 'POST', headers, body })
  return (await answer.json()).job_id
}

const status = async (server: Serving) => (await get(server, '/readyz')).body.status

const ended = (server: Serving, jobId: string) =>
  until('the job to end', async () => (await get(server, `/v1/jobs/${jobId}`)).body.state === 'SUCCEEDED')

/** The state of a job in Redis, in any domain. */
async function stateInRedis(jobId: string): Promise<Record<string, unknown> | null> {
  const client = await createClient({ url: redis.url }).connect()
  try {
    const [key] = await client.keys(`*:state:${jobId}`)
    const text = key === undefined ? null : await client.get(key)
    return text === null ? null : JSON.parse(text)
  } finally {
    client.destroy()
  }
}

const succeeded = async (jobId: string) => {
  const state = await stateInRedis(jobId)
  return JSON.stringify(state ?? null).includes('SUCCEEDED')
}

test('without Redis a server is degraded but works, and later it catches up', async () => {
  const database = await freshDatabase()
  const env: Env = { DATABASE_URL: database.url, REDIS_URL: redis.url, RELAY_INTERVAL_SECONDS: '0.1' }
  const server = await serve(env, ['--local-worker'])
  await until('Redis to be there', async () => (await status(server)) === 'ready')
  await redis.kill9()
  await until('Redis to be missed', async () => (await status(server)) === 'degraded')
  expect(await get(server, '/readyz')).toMatchObject({ status: 200, body: { checks: { store: 'ok', redis: 'away' } } })
  const jobId = await submit(server)
  await ended(server, jobId)
  expect((await ichido(['doctor'], env)).stderr).toContain('Redis cannot be used')
  await redis.restart()
  await until('Redis to be used again', async () => (await status(server)) === 'ready')
  await until('what happened meanwhile', () => succeeded(jobId))
  expect((await ichido(['doctor'], env)).stderr).toContain('Redis answers')
  expect((await server.stop()).code).toBe(0)
  await database.leave()
})

test('a server works with the Redis user of the docs, without a denied command', async () => {
  const page = readFileSync(new URL('../../../../../docs/operations/redis.md', import.meta.url), 'utf8')
  const client = await createClient({ url: redis.url }).connect()
  await client.sendCommand((/^ACL SETUSER ichido .*$/m.exec(page)?.[0] ?? '').split(' '))
  await client.sendCommand(['CONFIG', 'SET', 'maxmemory-policy', 'volatile-ttl', 'maxmemory', '100mb'])
  await client.sendCommand(['ACL', 'LOG', 'RESET'])
  const folder = mkdtempSync(join(tmpdir(), 'ichido-acl-'))
  const url = new URL(redis.url)
  url.username = 'ichido'
  url.password = 'PASSWORD'
  const env: Env = { DATA_DIR: folder, REDIS_URL: url.href, RELAY_INTERVAL_SECONDS: '0.1' }
  const server = await serve(env, ['--local-worker'])
  const jobId = await submit(server)
  await until('its state in Redis', () => succeeded(jobId))
  expect(await status(server)).toBe('ready')
  expect((await ichido(['doctor'], env)).stderr).toContain('Redis drops keys when its memory is full: volatile-ttl')
  await client.sendCommand(['CONFIG', 'SET', 'maxmemory-policy', 'noeviction', 'maxmemory', '1'])
  await submit(server)
  await until('Redis to be full', async () => (await status(server)) === 'degraded')
  expect(await get(server, '/readyz')).toMatchObject({ status: 200, body: { checks: { store: 'ok', redis: 'full' } } })
  const metrics = await (await fetch(`${server.url}/metrics`)).text()
  expect(metrics).toContain('ichido_redis_trouble{trouble="full"} 1')
  expect((await ichido(['doctor'], env)).stderr).toContain('Redis is full')
  await client.sendCommand(['CONFIG', 'SET', 'maxmemory', '0'])
  await until('it to have room', async () => (await status(server)) === 'ready')
  expect(await client.sendCommand(['ACL', 'LOG'])).toEqual([])
  const { code, stderr } = await server.stop()
  expect(code).toBe(0)
  expect(stderr).toContain('Redis drops keys when its memory is full (volatile-ttl)')
  expect(stderr).toContain('Redis is full')
  client.destroy()
  rmSync(folder, { recursive: true })
})

test('roles are split over processes', async () => {
  const database = await freshDatabase()
  const env: Env = { DATABASE_URL: database.url, REDIS_URL: redis.url, RELAY_INTERVAL_SECONDS: '0.1' }
  const [api, leader, router, gateway] = await Promise.all([
    serve(env, ['--roles', 'api', '--local-worker']),
    serve(env, ['--roles', 'leader']),
    serve(env, ['--roles', 'router']),
    serve(env, ['--roles', 'gateway']),
  ])
  const jobId = await submit(api)
  const events = `/v1/jobs/${jobId}/events`
  await ended(api, jobId)
  expect(await get(gateway, events)).toMatchObject({ status: 200 })
  await until('its state in Redis', () => succeeded(jobId))
  for (const server of [api, leader, router]) expect((await get(server, events)).status).toBe(404)
  for (const server of [leader, router, gateway]) expect((await get(server, `/v1/jobs/${jobId}`)).status).toBe(404)
  const metric = async (server: Serving, line: RegExp) => line.test(await (await fetch(`${server.url}/metrics`)).text())
  await until('the router to route', () => metric(router, /^ichido_events_routed_total\{outcome="new"\} [1-9]/m))
  await until('the leader to lead', () => metric(leader, /^ichido_is_leader 1$/m))
  expect(await metric(api, /^ichido_is_leader 1$/m)).toBe(false)
  expect(
    (await Promise.all([api, leader, router, gateway].map((server) => server.stop()))).map(({ code }) => code),
  ).toEqual([0, 0, 0, 0])
  await database.leave()
})

test('a new number of shards is refused while a stream has unread events', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'ichido-shards-'))
  const env: Env = { DATA_DIR: folder, REDIS_URL: redis.url, PORT: '0' }
  expect((await (await serve(env)).stop()).code).toBe(0)
  const client = await createClient({ url: redis.url }).connect()
  await client.xAdd('unread:events:3', '*', { data: '{"job_id":"a","stage":"b","seq":1}' })
  const refused = await ichido(['serve'], { ...env, SHARDS: '2' })
  expect(refused.code).toBe(1)
  expect(refused.stderr).toMatch(/SHARDS is 2, but the streams in Redis were made for 4, and .*unread:events:3/)
  await client.flushAll()
  client.destroy()
  expect((await (await serve({ ...env, SHARDS: '2' })).stop()).code).toBe(0)
  rmSync(folder, { recursive: true })
})

test.each([
  [['--roles', 'api,cook'], {}, 'There is no role "cook".'],
  [['--roles', 'api'], {}, 'A folder belongs to one process'],
  [['--roles', 'router'], { DATABASE_URL: 'postgres://127.0.0.1:1/x' }, 'A router has nothing to do without Redis.'],
])('serve %s is refused', async (args, env: Env, problem) => {
  const { code, stderr } = await ichido(['serve', ...args], { PORT: '0', ...env })
  expect(code).toBe(2)
  expect(stderr).toContain(problem)
})
