import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { LeaseShape } from '@ichido/sdk/protocol'
import { afterAll, expect, test } from 'vitest'
import { size } from '../../../../../scripts/testing/size.ts'
import { EmbeddedBus } from '../../../bus/embedded.ts'
import { openFiles } from '../../../node/folders.ts'
import { realWorld as world } from '../../../node/world.ts'
import { DEFAULT_LIMITS } from '../../../services/deps.ts'
import { createServices, type Services } from '../../../services/index.ts'
import { silentMeter } from '../../../services/system/meter.ts'
import { openSqlite } from '../../../store/engines/sqlite/sqlite.ts'
import { beginWriting, textOf } from '../../../testing/services/logs.ts'
import { sql, until } from '../../../testing/store/store.ts'
import { begin, ichido, killAll, serve } from '../../testing/cli.ts'

afterAll(() => killAll())

async function post<T>(url: string, path: string, body: object, token?: string): Promise<T> {
  const headers = { 'content-type': 'application/json', ...(token && { authorization: `Bearer ${token}` }) }
  const response = await fetch(`${url}${path}`, { method: 'POST', headers, body: JSON.stringify(body) })
  if (!response.ok) throw new Error(await response.text())
  return (await response.json()) as T
}

const dataDir = mkdtempSync(join(tmpdir(), 'ichido-logs-'))
afterAll(() => rmSync(dataDir, { recursive: true, force: true }))

async function inside<T>(use: (services: Services) => Promise<T>): Promise<T> {
  const store = openSqlite({ dataDir, now: world.now })
  const { deps } = await openFiles({ storage: { dataDir }, world, onTrouble() {} }, store)
  const given = { world, store, bus: new EmbeddedBus(), meter: silentMeter, limits: DEFAULT_LIMITS, ...deps }
  try {
    return await use(createServices(given))
  } finally {
    await store.close()
  }
}

/** The logs of jobs that ended long ago. */
function writeLogs(count: number): Promise<Map<string, string>> {
  return inside(async (services) => {
    const logs = new Map<string, string>()
    for (let i = 0; i < count; i++) {
      const run = await beginWriting(services)
      const texts = Array.from({ length: 20 }, (_, j) => `${i} ${j}\n`.repeat(1 + (i % 50)))
      await run.write(...texts)
      await run.succeed()
      logs.set(run.jobId, texts.join(''))
    }
    await sql(services.deps.store, 'UPDATE ichido.runs SET finished_at = 0')
    await sql(services.deps.store, 'UPDATE ichido.run_logs SET created_at = 0')
    return logs
  })
}

const files = () => (readdirSync(dataDir, { recursive: true }) as string[]).filter((name) => name.endsWith('.jsonl.gz'))

/** A job in the hands of a worker. */
async function writer(url: string) {
  const { enroll_token } = await post<{ enroll_token: string }>(url, '/v1/workers/enroll-tokens', {})
  const { worker_token } = await post<{ worker_token: string }>(url, '/v1/workers/register', { enroll_token })
  const { job_id } = await post<{ job_id: string }>(url, '/v1/jobs', { kind: 'work', lease_ttl_seconds: 600 })
  const asked = { queues: ['default'], start: true }
  const { leases } = await post<{ leases: LeaseShape[] }>(url, '/v1/leases', asked, worker_token)
  const path = `/v1/leases/${leases[0]?.lease_id}`
  let n = 0
  return {
    jobId: job_id,
    write: (...texts: string[]) =>
      post(url, `${path}/logs`, { chunks: texts.map((text) => ({ n: n++, stream: 'stdout', text })) }, worker_token),
    succeed: () => post(url, `${path}/result`, { result: 1 }, worker_token),
  }
}

test('logs --follow shows what the job waits for, and how it ended', async () => {
  const server = await serve({ DATA_DIR: mkdtempSync(join(dataDir, 'd-')) })
  const env = { ICHIDO_URL: server.url }
  const { job_id: jobId } = await post<{ job_id: string }>(server.url, '/v1/jobs', { kind: 'work' })
  const following = begin(['jobs', 'logs', jobId, '-f'], env)
  await until('the reason', async () => following.stderr().includes('No worker that takes jobs of kind work'))
  await post(server.url, `/v1/jobs/${jobId}/cancel`, {})
  const { code, stdout, stderr } = await following.ended
  expect({ code, stdout }).toEqual({ code: 1, stdout: '' })
  expect(stderr).toContain(`Job ${jobId} was canceled\n`)
  expect(await ichido(['jobs', 'logs', jobId], env)).toMatchObject({ code: 0 })
  await server.stop()
})

test('after kill -9 during archiving every log is complete, and --follow continues', async () => {
  const [count, kills] = [size(20, 300), size(1, 20)]
  const written = await writeLogs(count)
  const settings = { LOG_RETENTION_DAYS_DB: '1', ARCHIVE_BATCH_MAX: '1', ARCHIVE_INTERVAL_SECONDS: '0.05' }
  let server = await serve({ DATA_DIR: dataDir, ...settings })
  const env = { ICHIDO_URL: server.url }
  const { jobId, write, succeed } = await writer(server.url)
  await write('one\ntwo\n', 'three \u001b[31m\n')
  const following = begin(['jobs', 'logs', jobId, '--follow', '--tail', '2'], env)
  const asJson = begin(['jobs', 'logs', jobId, '-f', '--json'], env)
  await until('the beginning', async () => following.stderr().includes('run 1:') && asJson.stdout().includes('three'))
  expect(await ichido(['jobs', 'logs', jobId, '--tail', '1'], env)).toMatchObject({ code: 0, stdout: 'three  [31m\n' })

  for (let kill = 1; kill <= kills; kill++) {
    await until('some files', async () => files().length >= (count * kill) / (kills + 1))
    await server.kill9()
    server = await serve({ DATA_DIR: dataDir, ...settings, PORT: new URL(server.url).port })
  }
  await write('four\n')
  await succeed()
  expect(await following.ended).toMatchObject({ code: 0, stdout: 'two\nthree  [31m\nfour\n', stderr: 'run 1:\n' })
  const lines = (await asJson.ended).stdout.trim().split('\n')
  expect(lines.map((line) => JSON.parse(line).n)).toEqual([0, 1, 2])
  await until('all files', async () => files().length >= count)
  await server.kill9()

  await inside(async (services) => {
    for (const [jobId, text] of written) expect(await textOf(services, jobId)).toBe(text)
    const rows = await sql(services.deps.store, 'SELECT run_id, chunk, log_ref FROM ichido.run_logs')
    const named = rows.flatMap(({ log_ref }) => log_ref ?? [])
    const inPlace = new Set<unknown>(files().map((file) => file.slice(file.indexOf('logs/'))))
    expect(named.filter((ref) => !inPlace.has(ref))).toEqual([])
    // In a file or in the store, and not in both; each kill may have left one file that nothing names.
    const stored = new Set(rows.filter(({ chunk }) => chunk !== null).map(({ run_id }) => run_id))
    expect(rows.filter(({ run_id, chunk }) => chunk === null && stored.has(run_id))).toEqual([])
    expect(inPlace.size - named.length).toBeLessThanOrEqual(kills + 1)
    expect(named.length).toBeGreaterThan(count / 2)
  })
})
