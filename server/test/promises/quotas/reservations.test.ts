import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { v7 } from 'uuid'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type FreshDatabase, freshDatabase } from '../../../../scripts/testing/services.ts'
import { size } from '../../../../scripts/testing/size.ts'
import { EmbeddedBus } from '../../../src/bus/embedded.ts'
import { realWorld } from '../../../src/node/world.ts'
import { DEFAULT_LIMITS } from '../../../src/services/deps.ts'
import { createServices, type Services } from '../../../src/services/index.ts'
import { silentMeter } from '../../../src/services/system/meter.ts'
import { openPostgres, type PostgresStore } from '../../../src/store/engines/postgres/postgres.ts'
import { openSqlite } from '../../../src/store/engines/sqlite/sqlite.ts'
import { findQuota, findReservation, setQuota } from '../../../src/store/limits/quotas.ts'
import { unnamed } from '../../../src/store/statement.ts'
import { reserveSlot } from '../../../src/store/submission/reservations.ts'
import { submitJobs } from '../../../src/store/submission/submit-jobs.ts'
import { Gate } from '../../../src/testing/store/gate.ts'
import { interpose } from '../../../src/testing/store/interpose.ts'
import { only, renderForTest, Scene } from '../../../src/testing/store/scene.ts'
import { shiftedClock } from '../../../src/testing/store/shifted-clock.ts'
import { openNode, sql, unique } from '../../../src/testing/store/store.ts'

/** Hazard 2: quotas are never exceeded, on two nodes, with reservations that expire during the wait. */

const LIMIT = 5
const QUOTA = { maxConcurrent: LIMIT, costLimitMicros: null, period: 'month' } as const

let database: FreshDatabase
let nodes: PostgresStore[] = []

beforeAll(async () => {
  database = await freshDatabase()
  nodes = [await openNode(database.url), await openNode(database.url)]
})

afterAll(async () => {
  for (const node of nodes) await node.close()
  await database.leave()
})

const firstNode = () => only(nodes.slice(0, 1))

describe('a reservation expires between the lock on its user and the count', () => {
  const ttlMs = 1_000

  async function fill(scene: Scene) {
    await scene.store.write(setQuota(scene.userId, QUOTA))
    for (let i = 1; i < LIMIT; i++) await scene.submitted()
    const reservationId = v7()
    await scene.store.write(reserveSlot(reservationId, scene.userId, ttlMs))
    const state = async () => (await scene.store.read(findReservation(reservationId)))?.state
    return { reservationId, state, submit: submitJobs([scene.item(), scene.item({ reservationId })], renderForTest) }
  }

  test('its slot is either free or used by a submit of the batch, not both (sqlite)', async () => {
    let nowMs = 1_000_000
    const store = openSqlite({ now: () => nowMs })
    const { submit, state } = await fill(new Scene(store))
    const held = interpose(submit, 'lock_users', () => {
      nowMs += ttlMs
      return undefined
    })
    expect((await store.write(held)).map(({ kind }) => kind)).toEqual(['refused', 'created'])
    expect(await state()).toBe('consumed')
    await store.close()
  })

  test('its slot is either free or used by a submit of the batch, not both (postgres)', async () => {
    const { submit, state, reservationId } = await fill(new Scene(firstNode()))
    const text = `SELECT pg_sleep((expires_at - now_ms()) / 1000.0 + 0.01) FROM ichido.job_reservations WHERE reservation_id = $1`
    const wait = { kind: 'query', statement: unnamed(text), params: [reservationId] } as const
    const outcomes = await firstNode().write(interpose(submit, 'lock_users', () => wait))
    expect(outcomes.map(({ kind }) => kind)).toEqual(['refused', 'created'])
    expect(await state()).toBe('consumed')
  })
})

describe('a clock is set back', () => {
  const ONE = { ...QUOTA, maxConcurrent: 1 }
  const NOT_ACTIVE = [{ kind: 'refused', refusal: { code: 'RESERVATION_NOT_ACTIVE' } }]

  test('a submit with a reservation that expired, and whose slot was taken, is refused', async () => {
    const { url, leave } = await freshDatabase()
    const { pool, shift } = await shiftedClock(url)
    const { now, monotonic } = realWorld
    const given = { pool, now, monotonic, sleep: (ms: number) => sleep(ms) }
    const [store, other] = [await openPostgres(given), await openPostgres(given)]
    const gates = new pg.Client(url)
    await gates.connect()
    const scene = new Scene(store)
    await store.write(setQuota(scene.userId, ONE))
    const reservationId = v7()
    await scene.reserve(60_000, reservationId)
    await shift(61_000)

    const gate = await Gate.shut(gates)
    const taking = store.write(gate.hold(submitJobs([scene.item()], renderForTest)))
    await gate.reached()
    await shift(-30_000)
    const bringing = other.write(submitJobs([scene.item({ reservationId })], renderForTest))
    await gate.someoneWaits()
    await gate.open()
    expect(await taking).toMatchObject([{ kind: 'created' }])
    expect(await bringing).toMatchObject(NOT_ACTIVE)
    expect(await store.read(findQuota(scene.userId))).toMatchObject({ activeJobs: 1, activeReservations: 0 })

    for (const node of [store, other]) await node.close()
    await gates.end()
    await pool.end()
    await leave()
  })

  test("a cost that is charged after midnight counts against the new day's limit", async () => {
    const midnightMs = Date.UTC(2030, 0, 2)
    let nowMs = midnightMs
    const store = openSqlite({ now: () => nowMs })
    const scene = new Scene(store)
    await store.write(setQuota(scene.userId, { ...QUOTA, costLimitMicros: 10, period: 'day' }))
    await scene.submitted({ estimatedCostMicros: 10 })
    nowMs = midnightMs - 1
    const submit = submitJobs([scene.item({ estimatedCostMicros: 10 })], renderForTest)
    const held = interpose(submit, 'lock_users', () => {
      nowMs = midnightMs
      return undefined
    })
    expect(await store.write(held)).toMatchObject([{ refusal: { code: 'COST_LIMIT_EXCEEDED' } }])
    await store.close()
  })
})

describe('100 concurrent submits and reservations on two nodes', () => {
  test('there are never more than five, at any instant', { timeout: 600_000 }, async () => {
    const services = nodes.map((store) =>
      createServices({ world: realWorld, store, bus: new EmbeddedBus(), meter: silentMeter, limits: DEFAULT_LIMITS }),
    )
    for (let round = 0; round < size(3, 60); round++) {
      const userId = unique('user')
      await firstNode().write(setQuota(userId, QUOTA))
      const sampler = await sample(userId)
      const admitted = await storm(services, userId, round)
      const { highest, samples } = await sampler.stop()
      expect(highest, `${samples} samples`).toBeLessThanOrEqual(LIMIT)
      expect(samples).toBeGreaterThan(10)
      expect(admitted, 'slots were freed and taken again').toBeGreaterThan(LIMIT)
      expect(await mostAtOnce(userId)).toBeLessThanOrEqual(LIMIT)
    }
  })
})

/** Takes and frees slots in every way, concurrently and through the batchers of both nodes. */
async function storm(services: readonly Services[], userId: string, round: number): Promise<number> {
  const caller = { userId, role: 'submitter' } as const
  const queue = unique('queue')
  const on = (i: number) => only(services.slice(i % 2, (i % 2) + 1))
  let admitted = 0
  const refusals: unknown[] = []

  async function submit(i: number, reservation_id?: string): Promise<void> {
    const input = { kind: 'work', queue, payload: i, reservation_id }
    const outcome = await on(i).submission.submit(caller, input, { key: i % 3 === 0 ? `${round}/${i}` : null })
    if (outcome.kind === 'created') admitted++
    else if (outcome.kind === 'refused') refusals.push(outcome.refusal.code)
  }

  async function reserve(i: number): Promise<void> {
    try {
      const { reservation_id } = await on(i).reservations.reserve(caller, i % 4 === 0 ? 0.02 : 5)
      admitted++
      if (i % 4 === 0) return
      await sleep(Math.random() * 20)
      if (i % 4 === 1) await on(i + 1).reservations.release(caller, reservation_id)
      else await submit(i + 1, reservation_id)
    } catch (error) {
      refusals.push(error instanceof Error && 'code' in error ? error.code : error)
    }
  }

  let working = true
  async function work(i: number): Promise<void> {
    while (working) {
      const leases = await on(i).runs.lease(`w${i}`, {
        queues: [queue],
        kinds: ['work'],
        max: 2,
        waitMs: 0,
        startId: 's',
      })
      for (const { lease_id, job_id } of leases) {
        if (Math.random() < 0.3) await on(i).jobs.cancel(caller, job_id)
        const report = {
          verb: 'finish',
          result: '1',
          summaryText: null,
          freqsCsv: null,
          meta: null,
          costMicros: null,
        } as const
        await on(i).runs.finish(`w${i}`, lease_id, report)
      }
      if (leases.length === 0) await sleep(2)
    }
  }
  const workers = [work(0), work(1)]
  const calls = Array.from({ length: 100 }, async (_, i) => {
    await sleep(Math.random() * 150)
    return i % 2 === 0 ? submit(i) : reserve(i)
  })
  await Promise.all(calls)
  working = false
  await Promise.all(workers)
  expect(['QUOTA_EXCEEDED', 'RESERVATION_NOT_ACTIVE']).toEqual(expect.arrayContaining([...new Set(refusals)]))
  return admitted
}

/** Counts the used slots as fast as possible, on its own connection, in one snapshot each. */
async function sample(userId: string) {
  const client = new pg.Client(database.url)
  await client.connect()
  const text = `SELECT (SELECT count(*) FROM ichido.ready WHERE user_id = $1) + (SELECT count(*) FROM ichido.held WHERE user_id = $1)
    + (SELECT count(*) FROM ichido.job_reservations WHERE user_id = $1 AND consumed_at IS NULL AND released_at IS NULL
      AND expires_at > (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS in_use`
  let [running, highest, samples] = [true, 0, 0]
  const sampling = (async () => {
    while (running) {
      const { rows } = await client.query<{ in_use: string }>(text, [userId])
      highest = Math.max(highest, Number(rows[0]?.in_use))
      samples++
    }
  })()
  return {
    async stop() {
      running = false
      await sampling
      await client.end()
      return { highest, samples }
    },
  }
}

/** Computed from the tables alone: jobs and reservations count from their creation to their end. */
async function mostAtOnce(userId: string): Promise<number> {
  const rows = await sql(
    firstNode(),
    `SELECT j.created_at AS from_ms, r.finished_at AS to_ms FROM ichido.jobs j
        JOIN ichido.runs r ON r.job_id = j.id AND r.latest WHERE j.user_id = $1
      UNION ALL SELECT created_at, least(consumed_at, released_at, expires_at) FROM ichido.job_reservations WHERE user_id = $1`,
    userId,
  )
  const changes = rows.flatMap(({ from_ms, to_ms }) => [
    { atMs: Number(from_ms), by: 1 },
    { atMs: to_ms === null ? Number.MAX_SAFE_INTEGER : Number(to_ms), by: -1 },
  ])
  // At the same millisecond an end comes first: because of the lock, a slot is taken only after it was freed.
  changes.sort((a, b) => a.atMs - b.atMs || a.by - b.by)
  let [inUse, highest] = [0, 0]
  for (const { by } of changes) {
    inUse += by
    highest = Math.max(highest, inUse)
  }
  expect(rows.length).toBeGreaterThan(LIMIT)
  return highest
}
