import pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type FreshDatabase, freshDatabase } from '../../../../scripts/testing/services.ts'
import { size } from '../../../../scripts/testing/size.ts'
import { EmbeddedBus } from '../../bus/embedded.ts'
import { realWorld } from '../../node/world.ts'
import type { PostgresStore } from '../../store/engines/postgres/postgres.ts'
import { type Position, placeName } from '../../store/leasing/leased.ts'
import { command } from '../../store/port.ts'
import type { Work } from '../../store/statement.ts'
import { insertBulk } from '../../testing/store/bulk.ts'
import { nodes, type PlanNode } from '../../testing/store/explain.ts'
import { leasesFor, Scene } from '../../testing/store/scene.ts'
import { openNode, sql } from '../../testing/store/store.ts'
import { DEFAULT_LIMITS } from '../deps.ts'
import { createServices } from '../index.ts'
import { silentMeter } from '../system/meter.ts'
import { LeasePositions } from './lease-positions.ts'

/** Hazard 21: under an open snapshot a queue does not get slower with every lease. */

/** More leases than a queue needs before its scans continue from the position. */
const RUNS = size(13_000, 256_000)
const BATCH = 1_000

let database: FreshDatabase
let node: PostgresStore
let dump: pg.Client

beforeAll(async () => {
  database = await freshDatabase()
  node = await openNode(database.url)
  dump = new pg.Client(database.url)
  await dump.connect()
})

afterAll(async () => {
  await dump.end()
  await node.close()
  await database.leave()
})

/** The number of pages that the scan for runs reads. */
async function pagesRead(queue: string, from: Position | null): Promise<number> {
  const item = new Scene(node).leaseItem({ queues: [queue], max: 10 })
  const undo = new Error('This was a trial')
  let pages = 0
  const trial = command('explain', function* work(): Work<void> {
    const positions = new Map(from === null ? [] : [[placeName(queue, item.kinds), from]])
    const inner = leasesFor([item], positions).work(false)
    let next = inner.next()
    while (!next.done) {
      const step = next.value
      if (step.statement.name.startsWith('lease_runs')) {
        const postgres = `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ${step.statement.postgres}`
        const [row] = yield { ...step, statement: { name: '', postgres, sqlite: [] } }
        const plan: unknown = row?.['QUERY PLAN']
        const [{ Plan }] = plan as [{ Plan: PlanNode }]
        const scan = nodes(Plan).find((found) => found['Index Name'] === 'ready_order')
        pages = Number((scan as { 'Shared Hit Blocks'?: number } | undefined)?.['Shared Hit Blocks'] ?? 0)
        throw undo
      }
      next = inner.next(yield step)
    }
  })
  await node.write(trial).catch((error: unknown) => {
    if (error !== undo) throw error
  })
  return pages
}

test('leasing stays fast under an open snapshot', { timeout: 1_800_000 }, async () => {
  const queue = 'drained'
  await insertBulk(node, { count: RUNS, state: 'PENDING', queue })
  // Not through the store, whose statements have a timeout of ten seconds.
  await dump.query('UPDATE ichido.ready SET priority = 0 WHERE queue = $1', [queue])
  await dump.query('VACUUM ANALYZE ichido.ready')
  await dump.query('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM ichido.jobs LIMIT 1')

  const deps = { world: realWorld, store: node, bus: new EmbeddedBus(), meter: silentMeter, limits: DEFAULT_LIMITS }
  // One worker leases all of them.
  const { runs } = createServices(deps, { leases_per_worker_max: RUNS })
  let leased = 0
  while (leased < RUNS - BATCH) {
    const leases = await runs.lease('w', { queues: [queue], kinds: ['work'], max: BATCH, waitMs: 0 })
    leased += leases.length
    if (leases.length === 0) throw new Error('There is work left')
  }
  const [row] = await sql(
    node,
    `SELECT max(fair_tag) AS tag FROM ichido.runs WHERE queue = $1 AND state = 'ASSIGNED'`,
    queue,
  )
  const last = { priority: 0, fairTag: Number(row?.tag) }

  const full = await pagesRead(queue, null)
  const resumed = await pagesRead(queue, last)
  expect(full, 'the past is still there, and would be stepped over').toBeGreaterThan(leased / 100)
  expect(resumed).toBeLessThan(60)
  await dump.query('COMMIT')
})

test('scans of a busy queue continue from the position for 200 ms', async () => {
  let nowMs = 1_000
  const positions = new LeasePositions({ world: { ...realWorld, monotonic: () => nowMs }, store: node })
  const item = new Scene(node).leaseItem({ queues: ['q'] })
  const lease = (fairTag: number, priority = 0) => ({ queue: 'q', priority, fairTag }) as never
  expect(positions.from('q', item.kinds)).toBeNull()
  positions.record([item], [Array.from({ length: 9_999 }, (_, i) => lease(i))])
  expect(positions.from('q', item.kinds), 'too little has been leased').toBeNull()
  positions.record([item], [[lease(20_001), lease(20_002), lease(7, 3)]])
  expect(positions.from('q', item.kinds)).toEqual({ priority: 0, fairTag: 20_002 })
  expect(positions.from('q', ['other']), 'other kinds have another place').toBeNull()
  nowMs += 200
  expect(positions.from('q', item.kinds), 'from the beginning, now and then').toBeNull()
  expect(positions.from('q', item.kinds)).toEqual({ priority: 0, fairTag: 20_002 })
})

test('a lease is told a position only after a scan from the beginning', () => {
  let nowMs = 1_000
  const positions = new LeasePositions({ world: { ...realWorld, monotonic: () => nowMs }, store: node })
  const item = new Scene(node).leaseItem({ queues: ['q'] })
  const places = [{ queue: 'q', kinds: item.kinds }]
  const name = placeName('q', item.kinds)
  const leases = Array.from({ length: 10_000 }, (_, fairTag) => ({ queue: 'q', priority: 0, fairTag }) as never)
  positions.record([item], [leases])
  expect([positions.all(places), positions.all(places)], 'asking changes nothing').toEqual([new Map(), new Map()])
  positions.scanned([name], nowMs)
  expect(positions.all(places)).toEqual(new Map([[name, { priority: 0, fairTag: 9_999 }]]))
  nowMs += 200
  expect(positions.all(places)).toEqual(new Map())
})

test('runs before the position are found if there are none behind it', async () => {
  const scene = new Scene(node)
  const early = await scene.submitted({ fairTag: 5 })
  const late = await scene.submitted({ fairTag: 100 })
  const item = () => scene.leaseItem({ max: 5 })
  const from = new Map([[placeName(scene.queue, item().kinds), { priority: 0, fairTag: 100 }]])
  const lease = async () => (await node.write(leasesFor([item()], from))).flat()
  expect((await lease()).map(({ jobId }) => jobId)).toEqual([late])
  expect((await lease()).map(({ jobId }) => jobId)).toEqual([early])
})
