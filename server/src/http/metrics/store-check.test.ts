import { expect, test } from 'vitest'
import { sharedRead } from '../../services/wait.ts'
import { rationedRead } from './store-check.ts'

test('calls during a read share it, and a later call reads again', async () => {
  let readings = 0
  const read = sharedRead(async () => ++readings)
  expect(await Promise.all([read(), read(), read()])).toEqual([1, 1, 1])
  expect(await read()).toBe(2)
})

test('a failure is shared, not kept', async () => {
  let readings = 0
  const read = sharedRead(async () => {
    if (++readings === 1) throw new Error('once')
    return readings
  })
  expect(await Promise.allSettled([read(), read()])).toMatchObject([{ status: 'rejected' }, { status: 'rejected' }])
  expect(await read()).toBe(2)
})

test('a read is cached in proportion to its cost, and never for long', async () => {
  let nowMs = 0
  let tookMs = 10
  let readings = 0
  const read = rationedRead({ monotonic: () => nowMs }, async () => {
    nowMs += tookMs
    return ++readings
  })
  expect([await read(), await read()]).toEqual([1, 2])
  tookMs = 100
  expect(await read()).toBe(3)
  nowMs += 999
  expect(await read()).toBe(3)
  nowMs += 1
  tookMs = 60_000
  expect(await read()).toBe(4)
  nowMs += 4_999
  expect(await read()).toBe(4)
  nowMs += 1
  expect(await read()).toBe(5)
})
