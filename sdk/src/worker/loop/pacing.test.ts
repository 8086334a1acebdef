import { expect, test } from 'vitest'
import { FakeWorld } from '../../../../scripts/testing/fake-world.ts'
import { Pacing } from './pacing.ts'

const LONG_MS = 20_000

test('long polls follow each other without a pause', () => {
  const pacing = new Pacing(new FakeWorld())
  expect(pacing.waitMs).toBe(LONG_MS)
  expect([pacing.answered(LONG_MS, 0), pacing.answered(5, 3), pacing.answered(LONG_MS, 0)]).toEqual([0, 0, 0])
  expect(pacing.waitMs).toBe(LONG_MS)
})

test('cut long polls are replaced by short ones, 5 to 30 s apart, for some time', async () => {
  const world = new FakeWorld()
  const pacing = new Pacing(world)
  expect(pacing.failed(10_000, true)).toBe(1_000)
  expect(pacing.failed(10_000, true)).toBe(5_000)
  expect(pacing.waitMs).toBe(0)
  const pauses = Array.from({ length: 6 }, () => pacing.answered(20, 0))
  expect(pauses).toEqual([7_500, 11_250, 16_875, 25_312.5, 30_000, 30_000])
  // Work makes it eager again.
  expect(pacing.answered(20, 1)).toBe(0)
  expect(pacing.answered(20, 0)).toBe(5_000)
  await world.pass(300_000)
  expect(pacing.waitMs).toBe(LONG_MS)
})

test('restarts of the control plane do not end long polls', () => {
  const pacing = new Pacing(new FakeWorld())
  for (let restarts = 0; restarts < 5; restarts++) {
    pacing.failed(10_000, true)
    pacing.failed(3, false)
    expect(pacing.waitMs).toBe(LONG_MS)
  }
})

test('answers that come too early count as cuts', () => {
  const pacing = new Pacing(new FakeWorld())
  expect([pacing.answered(10, 0), pacing.answered(10, 0)]).toEqual([1_000, 5_000])
  expect(pacing.waitMs).toBe(0)
})

test('in an outage the pauses grow, and long polls continue after it', () => {
  const pacing = new Pacing(new FakeWorld())
  const pauses = Array.from({ length: 7 }, () => pacing.failed(3, true))
  expect(pauses).toEqual([1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000])
  expect(pacing.waitMs).toBe(LONG_MS)
  pacing.answered(LONG_MS, 0)
  expect(pacing.failed(3, false)).toBe(1_000)
})

test('pauses have jitter', () => {
  const world = new FakeWorld()
  const at = (random: number) => new Pacing(Object.assign(new FakeWorld(), { random: () => random })).failed(0, false)
  expect([at(0), at(0.999)]).toEqual([800, expect.closeTo(1_200, -1)])
  expect(world.random()).toBe(0.5)
})
