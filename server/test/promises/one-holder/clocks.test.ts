import { setTimeout as pause } from 'node:timers/promises'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type FreshDatabase, freshDatabase } from '../../../../scripts/testing/services.ts'
import { size } from '../../../../scripts/testing/size.ts'
import { defineKind, type Ichido, open } from '../../../src/library/index.ts'
import { realWorld } from '../../../src/node/world.ts'
import { type ShiftedClock, shiftedClock } from '../../../src/testing/store/shifted-clock.ts'

/** Hazard 5 with all background loops: two nodes, their election, leader and workers, and clocks that jump. */

const JUMP_MS = 600_000
const JOBS = size(10, 500)
const LONGEST_MS = 3_000
/** Lease and timeout are shorter than a jump ahead. The continuation time is long enough for a busy machine. */
const kind = defineKind('work', { leaseTtlSeconds: 2, continuationSeconds: 8, timeoutSeconds: 60 })

let database: FreshDatabase
let clock: ShiftedClock
let nodes: [Ichido, Ichido]
/** How far the clock of the second node is ahead. */
let aheadMs = 0
const worked = new Map<string, number>()

beforeAll(async () => {
  database = await freshDatabase()
  clock = await shiftedClock(database.url)
  const onTrouble = (where: string, error: unknown) => console.error(where, error)
  const storage = { pool: clock.pool, onTrouble }
  const ahead = { ...realWorld, now: () => realWorld.now() + aheadMs }
  nodes = [await open(storage), await open({ ...storage, world: ahead })]
  for (const node of nodes) {
    const work = async ({ payload, job }: { payload: unknown; job: { id: string } }) => {
      worked.set(job.id, (worked.get(job.id) ?? 0) + 1)
      await pause(Number(payload))
    }
    node.handle(kind, work, { concurrency: JOBS })
  }
})
afterAll(async () => {
  for (const node of nodes) await node.close()
  await clock.pool.end()
  await database.leave()
})

test.each([
  ['database', JUMP_MS],
  ['database', -JUMP_MS],
  ['node', JUMP_MS],
  ['node', -JUMP_MS],
] as const)('the clock of a %s jumps by %i ms: no job is lost, doubled or timed out', async (whose, jumpMs) => {
  const submit = async (n: number) => {
    const payload = (LONGEST_MS * (n + 1)) / JOBS
    const key = `${whose}.${jumpMs}.${n}`
    // Both nodes submit with one key and get one job, before and after the jump.
    const [job, same] = await Promise.all(nodes.map((node) => node.submit(kind, payload, { key })))
    if (job === undefined || same?.id !== job.id) throw new Error('A key names one job')
    return job
  }
  const numbers = Array.from({ length: JOBS }, (_, n) => n)
  const jobs = await Promise.all(numbers.map(submit))
  await pause(LONGEST_MS / 4)
  if (whose === 'database') await clock.shift(jumpMs)
  else aheadMs += jumpMs
  expect((await Promise.all(numbers.map(submit))).map(({ id }) => id)).toEqual(jobs.map(({ id }) => id))
  for (const job of jobs) {
    await job.result()
    expect(await job.get()).toMatchObject({ state: 'SUCCEEDED', attempt: 1, runs: [{ state: 'SUCCEEDED' }] })
    expect(worked.get(job.id)).toBe(1)
  }
})
