import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type FreshDatabase, freshDatabase } from '../../../../scripts/testing/services.ts'
import { size } from '../../../../scripts/testing/size.ts'
import type { Definition } from '../../../src/core/schedule/definition.ts'
import { realWorld } from '../../../src/node/world.ts'
import type { PostgresStore } from '../../../src/store/engines/postgres/postgres.ts'
import { beginBackfill, findBackfill } from '../../../src/store/schedules/backfills.ts'
import { NodeProcess } from '../../../src/testing/nodes/node-process.ts'
import { again, BY, define, EVERY_SECOND, ledger } from '../../../src/testing/nodes/ticker.ts'
import { openNode, sql, until } from '../../../src/testing/store/store.ts'

/** Real processes on PostgreSQL: whatever happens to the leader, each tick creates one job. */

const SECOND = 1_000
/** Retention removes jobs soon after their end. */
const SETTINGS = { job_retention_seconds: 0.001, retain_interval_seconds: 0.2 }
let database: FreshDatabase
let store: PostgresStore
/** The running nodes. */
const nodes: NodeProcess[] = []

beforeAll(async () => {
  database = await freshDatabase()
  store = await openNode(database.url)
  for (const [name, value] of Object.entries(SETTINGS)) {
    await sql(store, `INSERT INTO ichido.settings VALUES ($1, $2, 0, 'tester')`, name, JSON.stringify(value))
  }
  await Promise.all([start(), start(), start()])
})
afterAll(async () => {
  for (const node of nodes) await node.end('SIGKILL')
  await store.close()
  await database.leave()
})

async function start(): Promise<void> {
  nodes.push(await NodeProcess.start(database.url))
}

async function killLeader(): Promise<void> {
  const leader = await leaderOf(nodes)
  nodes.splice(nodes.indexOf(leader), 1)
  await leader.end('SIGKILL')
}

const leaderOf = (nodes: readonly NodeProcess[]) =>
  until('a leader', async () => nodes.find(({ standing }) => standing?.leads))

/** Ends new jobs and counts them by tick. The leader's retention then removes them. */
async function endJobs(store: PostgresStore, { id }: Definition, seen: Map<number, number>): Promise<void> {
  const ended = await sql(
    store,
    `WITH d AS (DELETE FROM ichido.ready r USING ichido.jobs j
        WHERE r.definition_id = $1 AND r.worker_id IS NULL AND j.id = r.job_id RETURNING r.*, j.scheduled_for),
      e AS (INSERT INTO ichido.ended (job_id, run_no, run_id, user_id, latest, state, attempt, retry_count, version, run_at, fair_tag,
          created_at, finished_at, n)
        SELECT job_id, run_no, run_id, user_id, true, 'SUCCEEDED', attempt, retry_count, version, run_at, fair_tag, created_at,
          now_ms(), n FROM d)
      SELECT scheduled_for FROM d`,
    id,
  )
  for (const { scheduled_for } of ended) seen.set(Number(scheduled_for), (seen.get(Number(scheduled_for)) ?? 0) + 1)
}

/** One tick per second from the first one on, with one job each. */
const eachOnce = (firstMs: number, count: number) =>
  Array.from({ length: count }, (_, i) => [firstMs + i * SECOND, 1] as const)

async function jobsByTick(store: PostgresStore, { id }: Definition): Promise<(readonly [number, number])[]> {
  const rows = await sql(
    store,
    `SELECT scheduled_for, count(*) AS count FROM ichido.jobs WHERE definition_id = $1 GROUP BY 1 ORDER BY 1`,
    id,
  )
  return rows.map(({ scheduled_for, count }) => [Number(scheduled_for), Number(count)] as const)
}

describe('a schedule with a tick every second', () => {
  test('each tick creates one job despite killed leaders, retention and a backfill', async () => {
    const [ticks, kills] = [size(6, 200), size(1, 20)]
    await leaderOf(nodes)
    const endsAtMs = Math.ceil(realWorld.now() / SECOND) * SECOND + (ticks + 1) * SECOND
    const [kept, removed] = [await define(store, { endsAtMs }), await define(store, { endsAtMs })]
    const [firstKeptMs, firstMs] = [kept.nextTickAtMs ?? 0, removed.nextTickAtMs ?? 0]
    const count = (endsAtMs - firstMs) / SECOND
    const seen = new Map<number, number>()
    const dealtWith = async () => (await ledger(store, kept)).length

    for (let kill = 0; kill < kills; kill++) {
      await until('the next ticks', async () => (await dealtWith()) >= Math.floor((count * kill) / kills))
      await killLeader()
      await endJobs(store, removed, seen)
      // The node that is killed last is not replaced.
      if (kill < kills - 1) await start()
    }
    for (const definition of [kept, removed]) {
      await until('the end of the schedule', async () => (await again(store, definition)).nextTickAtMs === null)
    }
    await endJobs(store, removed, seen)

    expect(await jobsByTick(store, kept)).toEqual(eachOnce(firstKeptMs, (endsAtMs - firstKeptMs) / SECOND))
    expect([...seen].sort(([a], [b]) => a - b)).toEqual(eachOnce(firstMs, count))
    const entries = await ledger(store, removed)
    expect(entries.map(({ outcome }) => outcome)).toEqual(Array(count).fill('job'))

    await until('retention', async () => (await jobsByTick(store, removed)).length === 0)
    const backfillId = realWorld.uuid()
    const range = { fromMs: firstMs, toMs: endsAtMs, schedule: EVERY_SECOND, matched: count }
    await store.write(beginBackfill({ backfillId, definition: removed, ...range }, BY()))
    await until('the backfill', async () => (await store.read(findBackfill(backfillId)))?.state === 'done')
    expect(await store.read(findBackfill(backfillId))).toMatchObject({ made: 0, madeBefore: count })
    expect(await jobsByTick(store, removed)).toEqual([])
    expect(await ledger(store, removed)).toEqual(entries)
  })

  test('a leader that was paused until another node led duplicates no tick', async () => {
    const leader = await leaderOf(nodes)
    const endsAtMs = Math.ceil(realWorld.now() / SECOND) * SECOND + size(7, 30) * SECOND
    const definition = await define(store, { endsAtMs })
    const firstMs = definition.nextTickAtMs ?? 0
    await until('a tick', async () => (await ledger(store, definition)).length > 0)
    leader.signal('SIGSTOP')
    const next = await leaderOf(nodes.filter((node) => node !== leader))
    await until('a tick of the next leader', async () => (await ledger(store, definition)).length > 1)
    leader.signal('SIGCONT')
    await until('the former leader to know', async () => leader.standing?.leads === false)
    await until('the end of the schedule', async () => (await again(store, definition)).nextTickAtMs === null)
    const count = (endsAtMs - firstMs) / SECOND
    expect(await jobsByTick(store, definition)).toEqual(eachOnce(firstMs, count))
    expect(await ledger(store, definition)).toHaveLength(count)
    expect(next.standing?.leads).toBe(true)
  })
})
