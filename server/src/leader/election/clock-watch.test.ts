import { beforeEach, expect, test } from 'vitest'
import { FakeWorld } from '../../../../scripts/testing/fake-world.ts'
import { ClockWatch } from './clock-watch.ts'

const MINUTE_MS = 60_000

let world: FakeWorld
let watch: ClockWatch
beforeEach(() => {
  world = new FakeWorld()
  watch = new ClockWatch(world)
})

const look = () => watch.observe(world.now(), world.monotonic())

test('a clock without jumps is trusted, also before the first look', async () => {
  expect(watch.evenMs).toBeGreaterThan(1e15)
  look()
  await world.pass(86_400_000)
  look()
  expect(watch.evenMs).toBeGreaterThan(1e15)
})

test.each([10 * MINUTE_MS, -10 * MINUTE_MS, 2_500, -2_500])(
  'after a jump of %s ms only the time since the jump is trusted',
  async (ms) => {
    look()
    await world.pass(1_000)
    world.jump(ms)
    look()
    expect(watch.evenMs).toBe(0)
    await world.pass(MINUTE_MS)
    look()
    expect(watch.evenMs).toBe(MINUTE_MS)
    world.jump(-ms)
    look()
    expect(watch.evenMs).toBe(0)
  },
)

test('drift is not a jump, however long it lasts', async () => {
  for (let second = 0; second < 1_000; second++) {
    look()
    await world.pass(1_000)
    world.jump(10)
  }
  look()
  expect(watch.evenMs).toBeGreaterThan(1e15)
})

test('a slow answer is not a jump', async () => {
  look()
  const askedMs = world.monotonic()
  const storeMs = world.now()
  await world.pass(30_000)
  watch.observe(storeMs, askedMs)
  look()
  await world.pass(1_000)
  look()
  expect(watch.evenMs).toBeGreaterThan(1e15)
})
