import type { SeriesShape } from '@ichido/sdk/protocol'
import { sleep } from '@ichido/sdk/world'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type FreshDatabase, freshDatabase } from '../../../../scripts/testing/services.ts'
import { size } from '../../../../scripts/testing/size.ts'
import { realWorld } from '../../../src/node/world.ts'
import { LOCAL_ADMIN } from '../../../src/services/access/access.ts'
import { openPostgres } from '../../../src/store/engines/postgres/postgres.ts'
import { NodeProcess } from '../../../src/testing/nodes/node-process.ts'
import { type TestServices, testServices } from '../../../src/testing/services/services.ts'
import { integer } from '../../../src/testing/store/rows.ts'
import { only } from '../../../src/testing/store/scene.ts'
import { type ShiftedClock, shiftedClock } from '../../../src/testing/store/shifted-clock.ts'
import { sql, until } from '../../../src/testing/store/store.ts'

/** Real processes on PostgreSQL, whose clock the test moves from minute to minute. */

const MINUTE_MS = 60_000
const QUEUE = 'series'
/** Jobs that each node runs in each minute. */
const JOBS = 5
const MINUTES = size(2, 6)

let database: FreshDatabase
let clock: ShiftedClock
let opened: TestServices
const nodes: NodeProcess[] = []
const startNode = async () => {
  const node = await NodeProcess.start(database.url, { shifted: true })
  nodes.push(node)
  return node
}

beforeAll(async () => {
  database = await freshDatabase()
  clock = await shiftedClock(database.url)
  const { now, monotonic } = realWorld
  const store = await openPostgres({ pool: clock.pool, now, monotonic, sleep: (ms) => sleep(realWorld, ms) })
  opened = await testServices('postgres', {}, { store, remove: async () => {} })
  for (let i = 0; i < 3; i++) await startNode()
})
afterAll(async () => {
  for (const node of nodes) await node.end('SIGKILL')
  await opened.close()
  await clock.pool.end()
  await database.leave()
})

type Points = Pick<SeriesShape, 'points'>
const pointsOf = async (node: NodeProcess) => ((await node.do({ name: 'series', queue: QUEUE })) as Points).points
const minutesAgo = async (minutes: number) =>
  (await opened.services.series.read('1h', QUEUE)).points.at(-1 - minutes) as Points['points'][number]

/** Moves to the same second of another minute, so that no minute ends meanwhile, and lets each loop look at the clock. */
async function pass(minutes: number): Promise<void> {
  const { store } = opened.services.deps
  const ms = integer(only(await sql(store, 'SELECT CAST(now_ms() AS bigint) % 60000 AS ms')), 'ms')
  await clock.shift(minutes * MINUTE_MS + 5_000 - ms)
  await opened.services.settings.put(LOCAL_ADMIN, 'retain_batch_max', 501 + ++passed)
}
let passed = 0

/** A minute in which each of the nodes runs its jobs, and a leader measures. */
async function workMinute(working: readonly NodeProcess[]): Promise<void> {
  await Promise.all(working.map((node) => node.do({ name: 'work', queue: QUEUE, jobs: JOBS })))
  await until('the counts of the minute', async () => (await minutesAgo(0)).succeeded >= working.length * JOBS)
  await until('the sample of the minute', async () => (await minutesAgo(0)).sampled)
}

test('three nodes count each job once; a killed leader costs a minute, which is marked', async () => {
  for (let minute = 0; minute < MINUTES; minute++) {
    await pass(1)
    await workMinute(nodes)
  }
  await pass(1)
  const leader = await until('a leader', async () => nodes.find(({ standing }) => standing?.leads))
  const others = nodes.filter((node) => node !== leader)
  await until('the sample of the minute', async () => (await minutesAgo(0)).sampled)
  await leader.do({ name: 'work', queue: QUEUE, jobs: JOBS })
  // The counts of its last second are only in its memory.
  await leader.end('SIGKILL')
  const { succeeded: counted } = await minutesAgo(0)
  await Promise.all(others.map((node) => node.do({ name: 'work', queue: QUEUE, jobs: JOBS })))
  const both = counted + others.length * JOBS
  await until('the counts of the others', async () => (await minutesAgo(0)).succeeded === both)
  // The next minute has no leader.
  await pass(2)
  for (let minute = 0; minute < MINUTES; minute++) {
    await workMinute(others)
    await pass(1)
  }

  const [first, second] = await Promise.all(others.map(pointsOf))
  const known = (points: Points['points'] | undefined) =>
    points?.filter(({ complete }) => complete).slice(-2 * MINUTES - 2)
  expect(known(first)).toHaveLength(2 * MINUTES + 2)
  expect(known(second)).toEqual(known(first))
  const rows = (known(first) ?? []).map(({ submitted, started, succeeded, sampled, sampled_minutes, ready }) => ({
    counts: [submitted, started, succeeded],
    sampled,
    sampled_minutes,
    ready,
  }))
  const whole = (count: number) => ({
    counts: [count, count, count],
    sampled: true,
    sampled_minutes: 1,
    ready: expect.any(Number),
  })
  expect(rows.slice(0, MINUTES)).toEqual(Array(MINUTES).fill(whole(3 * JOBS)))
  expect(rows.slice(MINUTES + 2)).toEqual(Array(MINUTES).fill(whole(2 * JOBS)))
  const [killed, gap] = rows.slice(MINUTES, MINUTES + 2)
  for (const count of killed?.counts ?? []) {
    expect(count).toBeGreaterThanOrEqual(2 * JOBS)
    expect(count).toBeLessThanOrEqual(3 * JOBS)
  }
  expect(killed).toMatchObject({ sampled: true, sampled_minutes: 1 })
  expect(gap).toEqual({ counts: [0, 0, 0], sampled: false, sampled_minutes: 0, ready: null })

  // A node that starts later gives the same answer, also when it is the only one.
  const later = await startNode()
  for (const node of others) await node.end('SIGTERM')
  expect((await pointsOf(later)).filter(({ complete }) => complete).slice(-2 * MINUTES - 2)).toEqual(known(first))
}, 180_000)
