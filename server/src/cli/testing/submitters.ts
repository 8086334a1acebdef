import { setTimeout as pause } from 'node:timers/promises'
import pg from 'pg'
import { expect } from 'vitest'
import type { Serving } from './cli.ts'

const SUBMITTERS = 16
/** How many submitters send each key at the same time. */
const SAME_KEY = 2
const RETRY_MS = 10

/** Submitters that never give a key up: whatever happens to the server, they send it again until it is acknowledged. */
export class Submitters {
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

  /** From now on a failed submitter waits for the next server, to leave it the processor. */
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

export type Stored = { key: string; job_id: string }

/** The submitters' jobs in a store. */
export interface Kept {
  keys: Stored[]
  jobs: string[]
  runs: string[]
}

/** The job of each run, in any room. */
export const RUNS = ['ready', 'held', 'ended'].map((room) => `SELECT job_id AS id FROM ${room}`).join(' UNION ALL ')
export const KEYS = 'SELECT idempotency_key AS key, job_id FROM'

export async function keptIn(databaseUrl: string): Promise<Kept> {
  const client = new pg.Client(databaseUrl)
  await client.connect()
  const ids = async (sql: string) => (await client.query<{ id: string }>(sql)).rows.map((row) => row.id)
  const { rows: keys } = await client.query<Stored>(`${KEYS} ichido.idempotency_keys`)
  const jobs = await ids('SELECT id FROM ichido.jobs')
  const runs = await ids(RUNS.replaceAll('FROM ', 'FROM ichido.'))
  await client.end()
  return { keys, jobs, runs }
}

/** Nothing acknowledged is lost, no key has two jobs, and there is no job that no key names. */
export function check({ acknowledged }: Submitters, { keys, jobs, runs }: Kept): void {
  const expected = [...acknowledged].flatMap(([key, ids]) => [...ids].map((job_id) => ({ key, job_id })))
  const byKey = (a: Stored, b: Stored) => (a.key < b.key ? -1 : 1)
  expect(expected).toHaveLength(acknowledged.size)
  expect(keys.toSorted(byKey)).toEqual(expected.toSorted(byKey))
  const ids = expected.map((one) => one.job_id).toSorted()
  expect(jobs.toSorted()).toEqual(ids)
  expect(runs.toSorted()).toEqual(ids)
}
