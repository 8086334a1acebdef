import { afterEach, beforeEach, expect, test } from 'vitest'
import { FakeWorld } from '../../../scripts/testing/fake-world.ts'
import { NoAnswer } from '../client/errors.ts'
import { AutoOutbox } from './auto-outbox.ts'
import { turns } from './browser.ts'
import type { OutboxLock } from './ports.ts'
import { answered, FakeNetwork } from './testing/given.ts'
import { MemoryDisk } from './testing/memory-store.ts'

let disk: MemoryDisk
let network: FakeNetwork
let world: FakeWorld
let arrived: string[]
let trouble: unknown
let lock: OutboxLock
const opened: AutoOutbox<string>[] = []

beforeEach(() => {
  disk = new MemoryDisk()
  network = new FakeNetwork()
  world = new FakeWorld()
  arrived = []
  trouble = undefined
  lock = turns()
})
afterEach(async () => {
  await Promise.all(opened.splice(0).map((outbox) => outbox.close()))
  expect(world.pendingMs).toEqual([])
})

function open(onTrouble?: (error: unknown) => void): AutoOutbox<string> {
  const outbox = new AutoOutbox<string>({
    store: disk.store(),
    send: async ({ body }) => {
      arrived.push(body)
      if (trouble !== undefined) throw trouble
    },
    lock,
    network,
    world,
    onTrouble,
  })
  opened.push(outbox)
  return outbox
}

test('an item is sent right after put', async () => {
  const outbox = open()
  await outbox.put('a')
  await world.pass(0)
  expect(arrived).toEqual(['a'])
})

test('items of a closed page are sent in order when the network is back', async () => {
  network.set(false)
  const outbox = open()
  for (const body of ['a', 'b', 'c']) await outbox.put(body)
  await outbox.close()
  open()
  await world.pass(3_600_000)
  expect(arrived).toEqual([])
  network.set(true)
  await world.pass(0)
  expect(arrived).toEqual(['a', 'b', 'c'])
})

test('stored items are sent when the outbox is opened', async () => {
  network.set(false)
  await open().put('a')
  network.isOnline = true
  open()
  await world.pass(0)
  expect(arrived).toEqual(['a'])
})

test('without an answer it retries forever, with growing pauses', async () => {
  trouble = new NoAnswer('reset')
  const outbox = open()
  await world.pass(0)
  await outbox.put('a')
  await world.pass(0)
  const waits: number[] = []
  for (let i = 0; i < 9; i++) {
    const [ms = 0] = world.pendingMs
    waits.push(ms)
    await world.pass(ms)
  }
  expect(waits).toEqual([1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000])
  expect(arrived).toHaveLength(10)
  trouble = undefined
  await world.pass(60_000)
  expect(disk.items.size).toBe(0)
})

test('an error answer is retried when due, and fails after the third attempt', async () => {
  trouble = answered(503)
  const outbox = open()
  await outbox.put('a')
  await world.pass(0)
  const [first = 0] = world.pendingMs
  await world.pass(first)
  const [second = 0] = world.pendingMs
  expect([first, second]).toEqual([16_000, 32_000])
  await world.pass(second)
  expect(arrived).toHaveLength(3)
  expect(await outbox.list()).toMatchObject([{ status: 'failed', attempts: 3 }])
  expect(world.pendingMs).toEqual([])

  trouble = undefined
  const [item] = await outbox.list()
  await outbox.retry(item?.id ?? '')
  await world.pass(0)
  expect(await outbox.list()).toEqual([])
})

test('after the clock was set back, an attempt is not delayed until it catches up', async () => {
  trouble = answered(503)
  await open().put('a')
  await world.pass(0)
  world.jump(-30 * 86_400_000)
  network.set(true)
  await world.pass(0)
  expect(arrived).toHaveLength(2)
  expect(world.pendingMs[0]).toBeLessThanOrEqual(3_600_000)
})

test('a broken store is reported and tried again', async () => {
  const told: unknown[] = []
  const outbox = open((error) => told.push(error))
  await outbox.put('a')
  disk.onWrite = () => {
    throw new Error('The disk is full')
  }
  await world.pass(5_000)
  expect(told.length).toBeGreaterThan(1)
  expect(String(told[0])).toContain('The disk is full')
  disk.onWrite = () => {}
  await world.pass(60_000)
  expect(disk.items.size).toBe(0)
})
