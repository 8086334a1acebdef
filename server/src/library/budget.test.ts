import { Session } from 'node:inspector/promises'
import pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type FreshDatabase, freshDatabase } from '../../../scripts/testing/services.ts'
import { unique, until } from '../testing/store/store.ts'
import { defineKind, type Ichido, open } from './index.ts'

/**
 * Garbage is most of what a job costs in Node and does not depend on the speed of the machine, so the budget is in bytes
 * (docs/architecture.md, "What a job costs").
 */
const SUBMIT_BYTES_MAX = 13_000
const SUBMIT_WITH_KEY_BYTES_MAX = 17_500
const DRAIN_BYTES_MAX = 16_000

const BATCH = 1_000
const ROUNDS = 8
const SAMPLE_BYTES = 4_096

let database: FreshDatabase
let pool: pg.Pool
let ichido: Ichido
beforeAll(async () => {
  database = await freshDatabase()
  pool = new pg.Pool({ connectionString: database.url })
  ichido = await open({ pool })
})
afterAll(async () => {
  await ichido.close()
  await pool.end()
  await database.leave()
})

/** The bytes that V8 allocates meanwhile, estimated from samples; most of them are garbage at the end. */
async function allocatedBytes(work: () => Promise<void>): Promise<number> {
  const session = new Session()
  session.connect()
  await session.post('HeapProfiler.startSampling', {
    samplingInterval: SAMPLE_BYTES,
    includeObjectsCollectedByMajorGC: true,
    includeObjectsCollectedByMinorGC: true,
  })
  await work()
  const { profile } = await session.post('HeapProfiler.stopSampling')
  session.disconnect()
  const total = (node: typeof profile.head): number =>
    node.children.reduce((bytes, child) => bytes + total(child), node.selfSize)
  return total(profile.head)
}

/** The least of some rounds: code is compiled in the first ones, and timers of the node fall into others. */
async function bytesPerJob(prepare: () => Promise<() => Promise<void>>): Promise<number> {
  let least = Number.POSITIVE_INFINITY
  for (let i = 0; i < ROUNDS; i++) least = Math.min(least, await allocatedBytes(await prepare()))
  return least / BATCH
}

function jobsOf(kind: string, keyed: boolean) {
  const key = unique('key')
  return Array.from({ length: BATCH }, (_, n) => ({
    kind,
    payload: { to: `user-${n}@example.org`, template: 'welcome', n },
    ...(keyed ? { key: `${key}-${n}` } : {}),
  }))
}

test.each([
  ['without keys', SUBMIT_BYTES_MAX, false],
  ['with keys', SUBMIT_WITH_KEY_BYTES_MAX, true],
])('a job of a batch %s allocates at most %i bytes', async (_, max, keyed) => {
  const bytes = await bytesPerJob(async () => {
    const jobs = jobsOf('welcome', keyed)
    return async () => {
      const outcomes = await ichido.batch(jobs)
      if (outcomes.some(({ status }) => status === 'rejected')) throw new Error('A job was refused')
    }
  })
  expect(bytes).toBeLessThan(max)
})

test(`a job that is leased, handled and finished allocates at most ${DRAIN_BYTES_MAX} bytes`, async () => {
  const heldOrReady = async () => {
    const { rows } = await pool.query(
      'SELECT (SELECT count(*) FROM ichido.ready) + (SELECT count(*) FROM ichido.held) AS n',
    )
    return rows[0].n as string
  }
  const bytes = await bytesPerJob(async () => {
    const kind = unique('kind')
    await pool.query('TRUNCATE ichido.ready')
    await ichido.batch(jobsOf(kind, false))
    return async () => {
      ichido.handle(defineKind(kind), () => {}, { concurrency: BATCH })
      await until('every job to end', async () => (await heldOrReady()) === '0')
    }
  })
  expect(bytes).toBeLessThan(DRAIN_BYTES_MAX)
})
