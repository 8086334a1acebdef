import pg from 'pg'
import { v7 } from 'uuid'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { type FreshDatabase, freshDatabase } from '../../../../scripts/testing/services.ts'
import { size } from '../../../../scripts/testing/size.ts'
import type { PostgresStore } from '../../../src/store/engines/postgres/postgres.ts'
import { cancelJob } from '../../../src/store/jobs/cancel-or-delete.ts'
import { type HeartbeatItem, heartbeatBatch } from '../../../src/store/leasing/heartbeat-runs.ts'
import { putQueue } from '../../../src/store/leasing/queues.ts'
import { releaseBatch } from '../../../src/store/leasing/release-runs.ts'
import { type FinishItem, finishBatch } from '../../../src/store/runs/finish-runs.ts'
import { submitJobs } from '../../../src/store/submission/submit-jobs.ts'
import { insertBulk } from '../../../src/testing/store/bulk.ts'
import { finished, leasesFor, renderForTest, Scene } from '../../../src/testing/store/scene.ts'
import { openNode, sql, until } from '../../../src/testing/store/store.ts'

/** Hazard 8: batches of several nodes over the same rows never deadlock. */

const BATCH = 500

let database: FreshDatabase
let observer: pg.Client

// Each test has its own database: 300,000 runs that have just ended would slow down the other tests.
beforeEach(async () => {
  database = await freshDatabase()
  observer = new pg.Client(database.url)
  await observer.connect()
})

afterEach(async () => {
  await observer.end()
  await database.leave()
})

test('finish, heartbeat and cancel of the same rows on three nodes do not deadlock', {
  timeout: 1_800_000,
}, async () => {
  const count = size(3_000, 300_000)
  const nodes = await threeNodes()
  const runs = await insertBulk(nodes[0], { count, state: 'RUNNING', workerId: 'w' })
  await observer.query('ANALYZE')
  const counts = { recorded: 0, repeated: 0, canceled: 0 }

  /** Each node visits all rows in its own random order, so that its batches overlap with those of the other nodes. */
  async function drain(node: PostgresStore): Promise<void> {
    const order = shuffled(runs)
    for (let at = 0; at < order.length; at += BATCH) {
      const some = order.slice(at, at + BATCH)
      const random = pick(order, BATCH)
      const [ended] = await Promise.all([
        node.write(finishBatch(some.map(report))),
        node.write(heartbeatBatch(random.map(heartbeat))),
        ...pick(order, 3).map(async ({ jobId }) => {
          const { kind } = await node.write(cancelJob(jobId))
          if (kind === 'requested') counts.canceled++
        }),
      ])
      for (const { kind } of ended) if (kind !== 'refused') counts[kind]++
    }
  }
  await Promise.all(nodes.map(drain))

  expect(counts.recorded).toBe(count)
  expect(counts.repeated).toBe(2 * count)
  expect(counts.canceled).toBeGreaterThan(0)
  const { rows } =
    await observer.query(`SELECT count(*)::int AS jobs, count(*) FILTER (WHERE version = 2)::int AS moved_once,
      count(ended_n)::int AS events FROM ichido.ended WHERE state IN ('SUCCEEDED', 'CANCELED')`)
  expect(rows).toEqual([{ jobs: count, moved_once: count, events: count }])
  expect(await deadlocksAfter(nodes)).toBe(0)
})

test('concurrent submits of many new users do not deadlock', async () => {
  const rounds = size(30, 1_000)
  const nodes = await threeNodes()
  for (let round = 0; round < rounds; round++) {
    const scenes = Array.from({ length: 12 }, () => new Scene(nodes[0]))
    const batch = () =>
      submitJobs(
        shuffled(scenes)
          .slice(0, 8)
          .map((scene) => scene.item()),
        renderForTest,
      )
    await Promise.all(Array.from({ length: 9 }, (_, i) => pickNode(nodes, i).write(batch())))
  }
  expect(await deadlocksAfter(nodes)).toBe(0)
})

test('shuffled batches that replace expired keys of one user do not deadlock', async () => {
  const nodes = await threeNodes()
  const scene = new Scene(nodes[0])
  const keys = Array.from({ length: 400 }, (_, i) => `k${i}`)
  for (let round = 0; round < size(6, 100); round++) {
    const batch = () =>
      submitJobs(
        shuffled(keys).map((key) => scene.item({ key })),
        renderForTest,
      )
    const batches = await Promise.all(Array.from({ length: 6 }, (_, i) => pickNode(nodes, i).write(batch())))
    const outcomes = batches.flat()
    expect(outcomes.filter(({ kind }) => kind === 'created')).toHaveLength(keys.length)
    expect(outcomes.filter(({ kind }) => kind === 'replayed')).toHaveLength(5 * keys.length)
    const user = scene.userId
    await sql(nodes[0], `UPDATE ichido.runs SET state = 'CANCELED' WHERE user_id = $1 AND state = 'PENDING'`, user)
    await observer.query('UPDATE ichido.idempotency_keys SET expires_at = 0 WHERE user_id = $1', [user])
  }
  expect(await deadlocksAfter(nodes)).toBe(0)
})

test('leases from shuffled queues do not deadlock while queues are paused and limited', async () => {
  const nodes = await threeNodes()
  const scene = new Scene(nodes[0])
  const queues = Array.from({ length: 8 }, (_, i) => `${scene.queue}-${i}`)
  await scene.submitAll(queues.flatMap((queue) => Array.from({ length: 20 }, () => scene.item({ queue }))))
  const settings = [{ paused: true }, { paused: false, maxConcurrent: 3 }, { maxConcurrent: null }]
  const rounds = size(30, 1_000)
  let put = 0
  const setting = async (node: PostgresStore) => {
    for (let i = 0; i < rounds; i++, put++)
      for (const queue of shuffled(queues).slice(0, 2))
        await node.write(putQueue(queue, settings[i % 3] ?? {}, { id: v7(), actor: 'op' }))
  }
  const leasing = async (node: PostgresStore, kinds: string[]) => {
    while (put < 2 * rounds) {
      const [leases] = await node.write(leasesFor([scene.leaseItem({ queues: shuffled(queues), kinds, max: 2 })]))
      for (const lease of leases ?? []) await node.write(releaseBatch([scene.releaseItem(lease)]))
    }
  }
  const [a, b, c] = nodes
  await Promise.all([setting(a), setting(b), leasing(b, ['work']), leasing(c, []), leasing(a, ['work'])])
  expect(await deadlocksAfter(nodes)).toBe(0)
})

type ThreeNodes = [PostgresStore, PostgresStore, PostgresStore]

async function threeNodes(): Promise<ThreeNodes> {
  return [await openNode(database.url), await openNode(database.url), await openNode(database.url)]
}

/** A backend reports its counts when it ends, at the latest. */
async function deadlocksAfter(nodes: ThreeNodes): Promise<number> {
  for (const node of nodes) await node.close()
  const others = 'SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()'
  await until('the nodes to be gone', async () => (await observer.query(others)).rowCount === 0)
  const text = 'SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()'
  return Number((await observer.query(text)).rows[0].deadlocks)
}

const pickNode = (nodes: ThreeNodes, i: number): PostgresStore => nodes[i % 3] ?? nodes[0]

type BulkRun = { jobId: string }

const heartbeat = ({ jobId }: BulkRun): HeartbeatItem => ({ jobId, workerId: 'w', leaseId: `${jobId}.t` })

function report(run: BulkRun): FinishItem {
  const guards = { version: null, leaderEpoch: null, outcomeHash: 'hash', nextRunId: run.jobId, random: 0 }
  return { ...heartbeat(run), ...guards, report: finished() }
}

function pick<T>(list: readonly T[], count: number): T[] {
  const picked = Array.from({ length: count }, () => list[Math.floor(Math.random() * list.length)])
  return picked.filter((value) => value !== undefined)
}

function shuffled<T>(list: readonly T[]): T[] {
  return list
    .map((value) => ({ value, at: Math.random() }))
    .sort((a, b) => a.at - b.at)
    .map(({ value }) => value)
}
