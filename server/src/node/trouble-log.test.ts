import { beforeEach, expect, test } from 'vitest'
import { FakeWorld, settled } from '../../../scripts/testing/fake-world.ts'
import { LockTimeout, StoreFull, StoreUnavailable } from '../core/node/store-errors.ts'
import type { FullTime } from '../services/system/alerts.ts'
import { TroubleLog } from './trouble-log.ts'

let world: FakeWorld
let lines: unknown[]
let isAway: boolean
let log: TroubleLog
beforeEach(() => {
  world = new FakeWorld()
  lines = []
  isAway = true
  log = new TroubleLog({
    logger: { warn: (...args: unknown[]) => void lines.push(args) },
    world,
    askStore: async () => {
      if (isAway) throw new Error('away')
    },
  })
})

test('the same error is logged once a minute, another at once', async () => {
  const error = new Error('full')
  for (let i = 0; i < 3; i++) log.on('archive', error)
  log.on('archive', new Error('gone'))
  log.on('reap', error)
  expect(lines).toHaveLength(3)
  expect(lines[0]).toEqual([{ where: 'archive', err: error }, 'archive: Error: full'])
  await world.pass(60_000)
  log.on('archive', error)
  expect(lines).toHaveLength(4)
})

test('an unreachable store is one line for all, and one when it answers again', async () => {
  const away = () => log.on('reap', new StoreUnavailable('PostgreSQL cannot be reached'))
  away()
  log.on('schedule', new StoreUnavailable('PostgreSQL cannot be reached either'))
  await world.pass(120_000)
  away()
  expect(lines).toEqual([[{ where: 'reap', why: 'PostgreSQL cannot be reached' }, 'the store cannot be reached']])
  isAway = false
  await world.pass(1_000)
  expect(lines.slice(1)).toEqual([['the store answers again']])
  expect(world.pendingMs).toEqual([])
  away()
  await settled()
  expect(lines).toHaveLength(4)
})

test('a full disk is one line, and one when it has space again', () => {
  const full = new StoreFull('store', 'that holds DATA_DIR')
  const time: FullTime = { alertId: '', place: 'store', message: full.message, beganAtMs: 1, endedAtMs: null }
  log.onFull(time)
  for (const loop of ['reap', 'elect', 'evidence']) log.on(loop, full)
  log.onFull({ ...time, endedAtMs: 2 })
  expect(lines).toEqual([
    [{ place: 'store', why: expect.stringMatching(/^The disk that holds DATA_DIR is full\. Free/) }, 'a disk is full'],
    [{ place: 'store' }, 'the disk has room again'],
  ])
})

test.each([
  new LockTimeout('canceling statement due to lock timeout'),
  new StoreUnavailable('PostgreSQL is blocked: deadlock detected', {
    cause: Object.assign(new Error(), { code: '40P01' }),
  }),
])('a store that is held up is not out of reach: %s', async (error) => {
  for (let i = 0; i < 3; i++) log.on('redrive', error)
  await settled()
  const said = [{ where: 'redrive', why: error.message }, 'another transaction blocks the store']
  expect(lines).toEqual([said])
  expect(world.pendingMs).toEqual([])
  log.on('reap', new StoreUnavailable('PostgreSQL cannot be reached'))
  expect(lines.at(-1)).toEqual([expect.anything(), 'the store cannot be reached'])
})

test('a closed log does not wait for the store', async () => {
  log.on('reap', new StoreUnavailable('PostgreSQL cannot be reached'))
  await settled()
  expect(world.pendingMs).toHaveLength(1)
  log.close()
  await settled()
  log.on('elect', new StoreUnavailable('the pool has ended'))
  await settled()
  expect(world.pendingMs).toEqual([])
  expect(lines).toHaveLength(1)
})
