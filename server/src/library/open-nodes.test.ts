import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { bundled } from '../../../scripts/testing/programs.ts'
import { type FreshDatabase, freshDatabase, nodeArgs } from '../../../scripts/testing/services.ts'
import type { Bus } from '../bus/port.ts'
import { channelOf } from '../bus/postgres.ts'
import type { Storage } from '../node/start-node.ts'
import { realWorld } from '../node/world.ts'
import { createServices } from '../services/index.ts'
import { type Embedded, embedded, thrownBy } from '../testing/services/embedded.ts'
import { unique, until } from '../testing/store/store.ts'
import { embed } from './embed.ts'
import { defineKind, type Ichido, open } from './index.ts'

const folders: string[] = []
function newFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), 'ichido-nodes-'))
  folders.push(folder)
  return folder
}

let database: FreshDatabase
let observer: pg.Client
beforeAll(async () => {
  database = await freshDatabase()
  observer = new pg.Client(database.url)
  await observer.connect()
})
afterAll(async () => {
  await observer.end()
  await database.leave()
  for (const folder of folders) rmSync(folder, { recursive: true })
})

test('a second open of a folder is refused with advice', async () => {
  const dataDir = newFolder()
  const first = await open({ dataDir })
  const error = await thrownBy(open({ dataDir }))
  expect(String(error)).toContain(`Another process, or another open() in this one, is using ${dataDir}.`)
  expect(String(error)).toContain('use another folder (dataDir;')
  expect(String(error)).toContain('PostgreSQL (pool or databaseUrl;')
  expect(await first.submit('work', 1)).toMatchObject({ replayed: false })
  await first.close()
  const second = await open({ dataDir })
  expect((await second.list()).data).toHaveLength(1)
  await second.close()
})

describe('two nodes on one PostgreSQL', () => {
  let a: Embedded
  let b: Embedded
  beforeAll(async () => {
    ;[a, b] = await Promise.all([embedded({ databaseUrl: database.url }), embedded({ databaseUrl: database.url })])
  })
  afterAll(() => Promise.all([a.close(), b.close()]))

  /**
   * How long each of some jobs, submitted one by one on A, took until the handler on another node began. That handler
   * has just looked when the next job comes: without a wake-up it looks again a second later.
   */
  async function medianLatency(on: Ichido): Promise<number> {
    const kind = defineKind(unique('across'))
    let began: (atMs: number) => void = () => {}
    on.handle(kind, () => began(performance.now()))
    const latencies: number[] = []
    for (let i = 0; i < 3; i++) {
      const begun = new Promise<number>((resolve) => {
        began = resolve
      })
      await sleep(100)
      const submittedMs = performance.now()
      await a.submit(kind, null)
      latencies.push((await begun) - submittedMs)
    }
    return latencies.toSorted((x, y) => x - y)[1] ?? 0
  }

  test('a submission on one node wakes a handler on the other', async () => {
    await until('both to listen', async () => {
      const text = 'SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND query = $1'
      const { rows } = await observer.query(text, [`LISTEN ${channelOf('ichido')}`])
      return rows.length >= 2
    })
    expect(await medianLatency(b)).toBeLessThan(500)
  })

  test('without wake-ups the handler finds the job within about a second', async () => {
    const deaf: Bus = { wake() {}, subscribe: () => () => {}, close: async () => {} }
    const services = createServices({ ...b.node.services.deps, bus: deaf })
    const node = embed({ ...b.node, services, close: async () => {} }, realWorld, () => {})
    const latencyMs = await medianLatency(node)
    await node.close()
    expect(latencyMs).toBeGreaterThan(500)
    expect(latencyMs).toBeLessThan(2_000)
  })

  test('a cancellation on one node reaches the handler on the other before its heartbeat', async () => {
    const kind = defineKind(unique('canceled'), { leaseTtlSeconds: 3600, continuationSeconds: 3600 })
    const began = Promise.withResolvers<void>()
    b.handle(kind, ({ signal }) => {
      began.resolve()
      return new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)))
    })
    const job = await a.submit(kind, null)
    await began.promise
    await job.cancel()
    expect(await thrownBy(job.result())).toMatchObject({ name: 'JobCanceled' })
  })

  test('a job is handled once by any node', async () => {
    const kind = defineKind(unique('shared'))
    const handled: string[] = []
    for (const node of [a, b]) node.handle(kind, ({ job }) => void handled.push(job.id), { concurrency: 4 })
    const jobs = await Promise.all(Array.from({ length: 100 }, (_, i) => (i % 2 ? a : b).submit(kind, i)))
    await Promise.all(jobs.map((job) => job.result()))
    expect(handled.toSorted()).toEqual(jobs.map(({ id }) => id).toSorted())
  })
})

describe('the job of a killed process is finished by another process as its next run', () => {
  const TIMES = { sqlite: 3_600, postgres: 1 }
  test.concurrent.each(['sqlite', 'postgres'] as const)('on %s', async (engine) => {
    const storage: Storage = engine === 'sqlite' ? { dataDir: newFolder() } : { databaseUrl: database.url }
    const name = unique('killed')
    const script = `
      import { defineKind, open } from ${JSON.stringify(bundled(join(import.meta.dirname, 'index.ts')))}
      const ichido = await open(${JSON.stringify(storage)})
      const kind = defineKind(${JSON.stringify(name)}, {
        leaseTtlSeconds: ${TIMES[engine]}, continuationSeconds: ${TIMES[engine]}, backoff: { baseSeconds: 0.1, jitter: 0 },
      })
      ichido.handle(kind, ({ job }) => {
        console.log(job.id)
        return new Promise(() => {})
      })
      await ichido.submit(kind, { n: 1 }, { key: ${JSON.stringify(name)} })`
    const args = [...nodeArgs, '--input-type=module', '--eval', script]
    const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] })
    const exited = once(child, 'exit')
    const [id] = (await once(createInterface(child.stdout), 'line')) as [string]
    child.kill('SIGKILL')
    await exited

    const other = await embedded(storage)
    other.handle(defineKind(name), ({ payload, job }) => ({ payload, attempt: job.attempt }))
    expect(await other.job(id).result()).toEqual({ payload: { n: 1 }, attempt: 2 })
    const { runs, retry_count } = await other.job(id).get()
    expect(retry_count).toBe(1)
    expect(runs).toMatchObject([{ state: 'TIMED_OUT', error: { code: 'WORKER_LOST' } }, { state: 'SUCCEEDED' }])
    // Handed on after the lease and the continuation time, not sooner; but for a SQLite folder, whose lock proves that the
    // other process is gone.
    const [first, second] = runs.map(({ started_at }) => Date.parse(started_at ?? ''))
    if (engine === 'postgres') expect((second ?? 0) - (first ?? 0)).toBeGreaterThanOrEqual(2_000)
    const same = {
      leaseTtlSeconds: TIMES[engine],
      continuationSeconds: TIMES[engine],
      backoff: { baseSeconds: 0.1, jitter: 0 },
    }
    expect(await other.submit(defineKind(name, same), { n: 1 }, { key: name })).toMatchObject({ id, replayed: true })
    await other.close()
  })
})
