import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { setTimeout as pause } from 'node:timers/promises'
import pg from 'pg'
import { afterAll, expect, test } from 'vitest'
import { privatePostgres } from '../../../scripts/testing/services.ts'
import { size } from '../../../scripts/testing/size.ts'
import { killAll, type Serving, serve } from './testing/cli.ts'

const folder = mkdtempSync(join(tmpdir(), 'ichido-kill-test-'))

afterAll(async () => {
  await killAll()
  rmSync(folder, { recursive: true })
})

const SUBMITTERS = 16
/** So many submitters send each key at the same time. */
const SAME_KEY = 2
const ACKNOWLEDGED_BETWEEN_KILLS = 40
const RETRY_MS = 10

/** Submitters that never give a key up: whatever happens to the server, they send it again until it is acknowledged. */
class Submitters {
  /** Every answer to a key. */
  readonly acknowledged = new Map<string, Set<string>>()
  acknowledgements = 0
  interruptions = 0
  #url: Promise<string>
  #next = 0
  #stopped = false
  #failure: unknown
  readonly #running: Promise<void>[]

  constructor(url: string) {
    this.#url = Promise.resolve(url)
    this.#running = Array.from({ length: SUBMITTERS }, () =>
      this.#submitter().catch((error: unknown) => this.fail(error)),
    )
  }

  /** Ends the test, which would otherwise wait for acknowledgements that cannot come. */
  fail(error: unknown): void {
    this.#failure ??= error
    this.#stopped = true
  }

  /** Whoever fails from now on waits for the next server instead of taking its processor away. */
  moveTo(started: Promise<Serving>): void {
    this.#url = started.then(({ url }) => url)
    this.#url.catch((error: unknown) => this.fail(error))
  }

  async #submitter(): Promise<void> {
    while (!this.#stopped) {
      const n = Math.floor(this.#next++ / SAME_KEY)
      const key = `kill/${n}`
      const jobId = await this.#persist(JSON.stringify({ kind: 'k', payload: { n }, idempotency_key: key }))
      const ids = this.acknowledged.get(key) ?? new Set()
      this.acknowledged.set(key, ids.add(jobId))
      this.acknowledgements++
    }
  }

  async #persist(body: string): Promise<string> {
    while (this.#failure === undefined) {
      try {
        const headers = { 'content-type': 'application/json' }
        const response = await fetch(`${await this.#url}/v1/jobs`, { method: 'POST', headers, body })
        const answer = await response.json()
        if (response.status === 201) return answer.job_id
        if (response.status !== 503) throw new Unexpected(`${response.status} ${JSON.stringify(answer)}`)
      } catch (error) {
        if (error instanceof Unexpected) throw error
      }
      this.interruptions++
      await pause(RETRY_MS)
    }
    throw this.#failure
  }

  /** Settles when so many more were acknowledged. */
  async more(count: number): Promise<void> {
    const enough = this.acknowledgements + count
    while (this.acknowledgements < enough) {
      if (this.#failure !== undefined) throw this.#failure
      await pause(2)
    }
  }

  async stop(): Promise<void> {
    this.#stopped = true
    await Promise.all(this.#running)
    if (this.#failure !== undefined) throw this.#failure
  }
}

class Unexpected extends Error {}

type Stored = { key: string; job_id: string }

/** Nothing acknowledged is lost, no key has two jobs, and there is no job that no key names. */
function check({ acknowledged }: Submitters, keys: Stored[], jobs: string[], runs: string[]): void {
  const expected = [...acknowledged].flatMap(([key, ids]) => [...ids].map((job_id) => ({ key, job_id })))
  const byKey = (a: Stored, b: Stored) => (a.key < b.key ? -1 : 1)
  expect(expected).toHaveLength(acknowledged.size)
  expect(keys.toSorted(byKey)).toEqual(expected.toSorted(byKey))
  const ids = expected.map((one) => one.job_id).toSorted()
  expect(jobs.toSorted()).toEqual(ids)
  expect(runs.toSorted()).toEqual(ids)
}

const KEYS = 'SELECT idempotency_key AS key, job_id FROM'

test(`${size(3, 200)} × kill -9 of the server on SQLite: nothing acknowledged is lost, no key has two jobs`, async () => {
  const kills = size(3, 200)
  const env = { DATA_DIR: folder }
  let server: Serving = await serve(env)
  const submitters = new Submitters(server.url)
  try {
    for (let kill = 0; kill < kills; kill++) {
      await submitters.more(ACKNOWLEDGED_BETWEEN_KILLS)
      await pause(Math.random() * 20)
      const started = server.kill9().then(() => serve(env))
      submitters.moveTo(started)
      server = await started
    }
    await submitters.more(ACKNOWLEDGED_BETWEEN_KILLS)
  } finally {
    await submitters.stop()
  }
  await server.stop()
  expect(submitters.interruptions).toBeGreaterThanOrEqual(kills)

  const db = new DatabaseSync(join(folder, 'ichido.db'))
  const rows = (sql: string) => db.prepare(sql).all()
  const ids = (sql: string) => rows(sql).map((row) => String(row.id))
  const keys = rows(`${KEYS} idempotency_keys`).map((row) => ({ key: String(row.key), job_id: String(row.job_id) }))
  check(submitters, keys, ids('SELECT id FROM jobs'), ids('SELECT job_id AS id FROM runs'))
  db.close()
})

test(`${size(1, 20)} × kill -9 of PostgreSQL: nothing acknowledged is lost, no key has two jobs`, async () => {
  const kills = size(1, 20)
  const postgres = await privatePostgres()
  const server = await serve({ DATABASE_URL: postgres.url })
  const submitters = new Submitters(server.url)
  void server.ended.then(({ stderr }) => submitters.fail(new Error(`The server ended: ${stderr}`)))
  try {
    for (let kill = 0; kill < kills; kill++) {
      await submitters.more(ACKNOWLEDGED_BETWEEN_KILLS)
      await pause(Math.random() * 20)
      await postgres.kill9()
      await postgres.restart()
    }
    await submitters.more(ACKNOWLEDGED_BETWEEN_KILLS)
  } finally {
    await submitters.stop()
  }
  expect((await server.stop()).code).toBe(0)

  const client = new pg.Client(postgres.url)
  await client.connect()
  const ids = async (sql: string) => (await client.query<{ id: string }>(sql)).rows.map((row) => row.id)
  const { rows: keys } = await client.query<Stored>(`${KEYS} ichido.idempotency_keys`)
  const jobs = await ids('SELECT id FROM ichido.jobs')
  const runs = await ids('SELECT job_id AS id FROM ichido.runs')
  await client.end()
  await postgres.stop()
  check(submitters, keys, jobs, runs)
})
