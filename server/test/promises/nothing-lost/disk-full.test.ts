import { randomBytes, randomUUID } from 'node:crypto'
import { chownSync, mkdtempSync, readdirSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { Client, defineKind, httpTransport, type Retry } from '@ichido/sdk/client'
import type {
  AlertShape,
  ArtifactShape,
  EnrollTokenShape,
  ErrorBody,
  LeaseShape,
  RegisteredShape,
  SubmitResponse,
} from '@ichido/sdk/protocol'
import pg from 'pg'
import { afterAll, afterEach, beforeEach, describe, expect, test } from 'vitest'
import { privatePostgres } from '../../../../scripts/testing/services.ts'
import { type SmallDisk, smallDisk } from '../../../../scripts/testing/small-disk.ts'
import { type Env, ichido, killAll, type Serving, serve } from '../../../src/cli/testing/cli.ts'
import { openLogArchive } from '../../../src/log-archive/disk.ts'
import { realWorld } from '../../../src/node/world.ts'
import { ENGINES, type Engine } from '../../../src/testing/services/services.ts'
import { until } from '../../../src/testing/store/store.ts'

const MIB = 1024 * 1024
const DISK_BYTES = 16 * MIB
/** An empty PostgreSQL database takes 10 MB. */
const BALLAST_BYTES = { sqlite: 9 * MIB, postgres: 3 * MIB }
/** Ends the test if the disk never fills up. */
const SUBMITS_MAX = 2_000
/** A world whose timers fire after 100 ms at most. */
const hasty = { ...realWorld, after: (ms: number, then: () => void) => realWorld.after(Math.min(ms, 100), then) }
const JSON_TYPE = { 'content-type': 'application/json' }

let disk: SmallDisk
const closers: (() => Promise<unknown>)[] = []
beforeEach(async () => {
  disk = await smallDisk(DISK_BYTES)
  closers.push(() => disk.remove())
})
afterEach(async () => {
  await killAll()
  for (const close of closers.splice(0).reverse()) await close()
})
afterAll(killAll)

interface Answer<Body> {
  status: number
  headers: Headers
  body: Body
}

async function call<Body>({ url }: Serving, method: string, path: string, body?: object): Promise<Answer<Body>> {
  const init = body === undefined ? { method } : { method, headers: JSON_TYPE, body: JSON.stringify(body) }
  const answer = await fetch(url + path, init)
  return { status: answer.status, headers: answer.headers, body: (await answer.json()) as Body }
}

/** Random bytes, so that compression cannot make the payload smaller. The same key always gives the same payload. */
const payloads = new Map<string, string>()
function payloadOf(key: string): string {
  const payload = payloads.get(key) ?? randomBytes(90_000).toString('base64')
  payloads.set(key, payload)
  return payload
}

const submit = (server: Serving, key: string) =>
  call<SubmitResponse & ErrorBody>(server, 'POST', '/v1/jobs', {
    kind: 'work',
    queue: 'full',
    payload: payloadOf(key),
    idempotency_key: key,
  })

const ready = (server: Serving) => call<{ status: string; checks: Record<string, string> }>(server, 'GET', '/readyz')

const metricsOf = async ({ url }: Serving) => (await fetch(`${url}/metrics`)).text()

const alertsOf = async (server: Serving, query = '') =>
  (await call<{ data: AlertShape[] }>(server, 'GET', `/v1/alerts${query}`)).body.data.filter(
    ({ rule }) => rule === 'store_full',
  )

/** Leaves out the alert that the disk is nearly full: whether it opens depends on when the leader checks. */
const logOf = (server: Serving): unknown[] =>
  server
    .stderr()
    .split('\n')
    .filter((line) => line.startsWith('{'))
    .map((line) => JSON.parse(line))
    .filter(({ rule }) => rule !== 'disk_nearly_full')

async function storageOn(engine: Engine): Promise<Env> {
  if (engine === 'sqlite') return { DATA_DIR: join(disk.folder, 'data') }
  const postgres = await privatePostgres()
  closers.push(() => postgres.stop())
  const { uid, gid } = statSync(postgres.socketDir)
  chownSync(disk.folder, uid, gid)
  const client = new pg.Client(postgres.url)
  await client.connect()
  // PostgreSQL's log is on another disk, because the whole server stops when that disk is full.
  await client.query(`CREATE TABLESPACE small LOCATION '${disk.folder}'`)
  await client.query('CREATE DATABASE small TABLESPACE small')
  await client.end()
  return { DATABASE_URL: postgres.url.replace('/postgres?', '/small?') }
}

/** Submits until the server refuses. Returns the acknowledged jobs by key. */
let filled = 0
async function fillUp(server: Serving): Promise<{ jobs: Map<string, string>; refusedKey: string }> {
  const jobs = new Map<string, string>()
  for (let n = 0; n < SUBMITS_MAX; n++) {
    const key = `key-${filled++}`
    const { status, headers, body } = await submit(server, key)
    if (status === 201) {
      jobs.set(key, body.job_id)
      continue
    }
    expect({ status, ...body.error }).toMatchObject({ status: 503, code: 'STORE_FULL', details: { place: 'store' } })
    expect(body.error.message).toMatch(/^The disk .* is full\. Free space on it or enlarge it/)
    expect(headers.get('retry-after')).toBe('5')
    expect(headers.get('should-retry')).toBe('true')
    return { jobs, refusedKey: key }
  }
  throw new Error('The disk did not fill up')
}

/** A worker that uses plain HTTP, as one in any language can. */
async function registerWorker(server: Serving) {
  const { body: enrolled } = await call<EnrollTokenShape>(server, 'POST', '/v1/workers/enroll-tokens', {})
  const { enroll_token } = enrolled
  const { body: worker } = await call<RegisteredShape>(server, 'POST', '/v1/workers/register', {
    enroll_token,
    name: 'w',
  })
  const headers = { ...JSON_TYPE, authorization: `Bearer ${worker.worker_token}` }
  const post = (path: string, body: object) =>
    fetch(server.url + path, { method: 'POST', headers, body: JSON.stringify(body) })
  async function lease(max: number): Promise<LeaseShape[]> {
    const answer = await post('/v1/leases', { queues: ['full'], max, wait_seconds: 0, start: true, start_id: 's' })
    return answer.status === 204 ? [] : ((await answer.json()) as { leases: LeaseShape[] }).leases
  }
  const report = (leaseId: string) => post(`/v1/leases/${leaseId}/result`, { result: 'done' })
  return {
    lease,
    report,
    /** Leases and finishes all jobs, and returns their ids. */
    async drain(): Promise<string[]> {
      const worked: string[] = []
      for (let leases = await lease(20); leases.length > 0; leases = await lease(20)) {
        for (const { lease_id, job_id } of leases) {
          expect((await report(lease_id)).status).toBe(200)
          worked.push(job_id)
        }
      }
      return worked
    },
  }
}

describe.each(ENGINES)('%s on a disk of 16 MB', (engine) => {
  test('submits get 503 while the disk is full, nothing is lost, and it recovers alone', async () => {
    disk.fill(BALLAST_BYTES[engine])
    const server = await serve({ ...(await storageOn(engine)), ALERT_INTERVAL_SECONDS: '0.2' })
    const worker = await registerWorker(server)
    const held = await submit(server, 'held')
    const [lease] = await worker.lease(1)
    expect(lease?.job_id).toBe(held.body.job_id)
    const { jobs, refusedKey } = await fillUp(server)
    expect(jobs.size).toBeGreaterThan(10)

    // Every endpoint reports the full disk, and every acknowledged job can be read.
    expect(await ready(server)).toMatchObject({ status: 503, body: { status: 'not ready', checks: { store: 'full' } } })
    expect((await fetch(`${server.url}/healthz`)).status).toBe(200)
    expect(await metricsOf(server)).toMatch(/^ichido_store_full\{place="store"\} 1$/m)
    expect(await alertsOf(server)).toMatchObject([{ subject: 'store', closed_at: null }])
    for (const jobId of jobs.values()) expect((await call(server, 'GET', `/v1/jobs/${jobId}`)).status).toBe(200)
    const reported = await worker.report(lease?.lease_id ?? '')
    expect([200, 503]).toContain(reported.status)

    // The SDK's client keeps retrying.
    const refused = Promise.withResolvers<unknown>()
    const retry = { tries: 1_000, onRetry: ({ error }: Retry) => refused.resolve(error) }
    const client = new Client(httpTransport({ url: server.url, retry, world: hasty }))
    const patient = client.submit(defineKind('work', { queue: 'full' }), payloadOf('patient'), { key: 'patient' })
    expect(await refused.promise).toMatchObject({ code: 'STORE_FULL' })
    disk.free()
    await until('room', async () => (await ready(server)).status === 200)
    expect((await worker.report(lease?.lease_id ?? '')).status).toBe(200)
    expect((await submit(server, refusedKey)).status).toBe(201)
    for (const [key, jobId] of jobs) expect((await submit(server, key)).body.job_id).toBe(jobId)
    await patient

    // Every job exists once, and a worker gets it once.
    const worked = await worker.drain()
    expect(new Set(worked).size).toBe(worked.length)
    expect(worked).toEqual(expect.arrayContaining([...jobs.values()]))
    const { body: stats } = await call<Record<string, number>>(server, 'GET', '/v1/stats')
    expect(stats).toMatchObject({ SUCCEEDED: jobs.size + 3, PENDING: 0 })

    expect(await metricsOf(server)).toMatch(/^ichido_store_full\{place="store"\} 0$/m)
    const over = await until('the alert to be stored', async () => {
      const alerts = await alertsOf(server, '?all=true')
      return alerts.length > 0 && alerts
    })
    expect(over).toMatchObject([{ subject: 'store', closed_at: expect.any(String) }])
    expect(logOf(server)).toMatchObject([
      { place: 'store', msg: 'a disk is full' },
      { place: 'store', msg: 'the disk has room again' },
    ])
    expect((await server.stop()).code).toBe(0)
    if (engine === 'sqlite') expect(integrityOf(join(disk.folder, 'data', 'ichido.db'))).toBe('ok')
  })
})

describe('artifacts on a disk of 16 MB', () => {
  const upload = async ({ url }: Serving, name: string) => {
    const headers = { 'content-type': 'application/octet-stream' }
    const answer = await fetch(`${url}/v1/artifacts?name=${name}`, { method: 'POST', headers, body: randomBytes(MIB) })
    return { status: answer.status, body: (await answer.json()) as ArtifactShape & ErrorBody }
  }

  const filesIn = (folder: string) =>
    readdirSync(folder, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile())

  test('an upload that does not fit is refused whole, and succeeds once there is room', async () => {
    disk.fill(10 * MIB)
    const data = mkdtempSync(join(tmpdir(), 'ichido-full-'))
    closers.push(async () => rmSync(data, { recursive: true }))
    const server = await serve({ DATA_DIR: data, ARTIFACTS_DIR: disk.folder })
    const kept: string[] = []
    for (let n = 0; ; n++) {
      const { status, body } = await upload(server, `file-${n}`)
      if (status === 201) {
        kept.push(body.artifact_id)
        continue
      }
      expect({ status, ...body.error }).toMatchObject({
        status: 503,
        code: 'STORE_FULL',
        details: { place: 'artifacts' },
      })
      expect(body.error.message).toContain('ARTIFACTS_DIR')
      break
    }
    expect(kept.length).toBeGreaterThan(2)
    expect(filesIn(disk.folder), 'with the ballast, and nothing half-written').toHaveLength(kept.length + 1)
    expect(await ready(server)).toMatchObject({ status: 503, body: { checks: { store: 'ok', artifacts: 'full' } } })
    expect(await metricsOf(server)).toMatch(/^ichido_store_full\{place="artifacts"\} 1$/m)
    expect(await alertsOf(server)).toMatchObject([{ subject: 'artifacts', closed_at: null }])
    expect((await submit(server, 'beside')).status, 'the store has room').toBe(201)
    disk.free()
    await until('room', async () => (await ready(server)).status === 200)
    expect((await upload(server, 'last')).status).toBe(201)
    for (const id of kept) {
      const bytes = await (await fetch(`${server.url}/v1/artifacts/${id}`)).arrayBuffer()
      expect(bytes.byteLength).toBe(MIB)
    }
    expect((await server.stop()).code).toBe(0)
  })

  test('a log that does not fit leaves no file, and is archived once there is room', async () => {
    disk.fill(15 * MIB)
    const archive = await openLogArchive({ folder: disk.folder, world: realWorld })
    const file = { runId: randomUUID(), fileId: randomUUID() }
    async function* chunks() {
      for (let n = 0; n < 40; n++) {
        yield { n, stream: 'stdout' as const, text: randomBytes(60_000).toString('base64'), createdAtMs: 1 }
      }
    }
    await expect(archive.write(file, chunks())).rejects.toMatchObject({ name: 'StoreFull', place: 'artifacts' })
    expect(filesIn(disk.folder)).toHaveLength(1)
    disk.free()
    expect(await archive.write(file, chunks())).toBeGreaterThan(MIB)
  })
})

test('a server that is killed or stopped while its disk is full loses nothing', async () => {
  disk.fill(BALLAST_BYTES.sqlite)
  const env = await storageOn('sqlite')
  const killed = await serve(env)
  const { jobs, refusedKey } = await fillUp(killed)
  await killed.kill9()
  disk.free()
  const server = await serve(env)
  for (const jobId of jobs.values()) expect((await call(server, 'GET', `/v1/jobs/${jobId}`)).status).toBe(200)
  expect((await submit(server, refusedKey)).status).toBe(201)
  disk.fillUp()
  await fillUp(server)
  expect((await server.stop()).code).toBe(0)
  expect(integrityOf(join(disk.folder, 'data', 'ichido.db'))).toBe('ok')
})

test('a server that starts on a full disk says what to do', async () => {
  disk.fillUp()
  const { code, stderr } = await ichido(['serve'], { PORT: '0', DATA_DIR: join(disk.folder, 'data') })
  expect({ code, stderr }).toEqual({
    code: 1,
    stderr: expect.stringContaining('The disk that holds DATA_DIR is full.'),
  })
})

function integrityOf(file: string): unknown {
  const db = new DatabaseSync(file)
  try {
    return db.prepare('PRAGMA integrity_check').get()?.integrity_check
  } finally {
    db.close()
  }
}
