import { beforeEach, expect, test } from 'vitest'
import { FakeWorld, settled } from '../../../../scripts/testing/fake-world.ts'
import { silentMeter } from '../../services/system/meter.ts'
import { Loop } from './loop.ts'

let world: FakeWorld
let ticks: number
let troubles: [string, unknown][]
let runs: [name: string, atMs: number][]
beforeEach(() => {
  world = new FakeWorld()
  ticks = 0
  troubles = []
  runs = []
})

function loop(tick: () => Promise<number | null> = async () => null, when = () => true): Loop {
  const onTrouble = (name: string, error: unknown) => troubles.push([name, error])
  const counted = () => {
    ticks++
    return tick()
  }
  const meter = { ...silentMeter, looped: (name: string, atMs: number) => void runs.push([name, atMs]) }
  return new Loop({ name: 'test', world, meter, intervalMs: () => 1_000, tick: counted, when, onTrouble })
}

test('ticks at once and then in its interval', async () => {
  const l = loop()
  l.start()
  await world.pass(2_500)
  expect(ticks).toBe(3)
  await l.stop()
  await world.pass(5_000)
  expect(ticks).toBe(3)
})

test.each([
  [200, 5],
  [0, 5],
  [-50, 5],
  [90_000, 1],
])('after a tick that returns %s ms the wait may be shorter, never longer', async (answer, expected) => {
  const l = loop(async () => (ticks < 5 ? answer : null))
  l.start()
  await world.pass(999)
  await l.stop()
  expect(ticks).toBe(expected)
})

test('an error is reported and does not end the loop', async () => {
  const l = loop(async () => {
    if (ticks < 3) throw new Error(`tick ${ticks}`)
    return null
  })
  l.start()
  await world.pass(2_000)
  expect(ticks).toBe(3)
  expect(troubles).toEqual([
    ['test', new Error('tick 1')],
    ['test', new Error('tick 2')],
  ])
  await l.stop()
})

test('can be started and stopped twice, and again', async () => {
  const l = loop()
  await l.stop()
  l.start()
  l.start()
  await world.pass(2_000)
  expect(ticks).toBe(3)
  await Promise.all([l.stop(), l.stop()])
  expect(world.pendingMs).toEqual([])
  l.start()
  await world.pass(0)
  expect(ticks).toBe(4)
  await l.stop()
})

test('stopping waits for the running tick, and none follows', async () => {
  const tick = Promise.withResolvers<null>()
  const l = loop(() => tick.promise)
  l.start()
  await world.pass(0)
  let stopped = false
  const stopping = l.stop().then(() => {
    stopped = true
  })
  await settled()
  expect(stopped).toBe(false)
  tick.resolve(null)
  await stopping
  await world.pass(10_000)
  expect(ticks).toBe(1)
})

test('a loop that is restarted during a tick is still one loop', async () => {
  let running = 0
  let most = 0
  const l = loop(async () => {
    most = Math.max(most, ++running)
    await new Promise<void>((resolve) => world.after(300, resolve))
    running--
    return null
  })
  l.start()
  await world.pass(100)
  const stopping = l.stop()
  l.start()
  await world.pass(10_000)
  await stopping
  expect(most).toBe(1)
  expect(ticks).toBe(8)
})

test('hurry() ticks at once, or right after the running tick', async () => {
  let tick = Promise.withResolvers<null>()
  const l = loop(() => tick.promise)
  l.hurry()
  await world.pass(5_000)
  expect(ticks).toBe(0)
  l.start()
  await world.pass(0)
  l.hurry()
  l.hurry()
  await world.pass(0)
  expect(ticks).toBe(1)
  tick.resolve(null)
  await world.pass(0)
  expect(ticks).toBe(2)
  await world.pass(500)
  tick = Promise.withResolvers()
  l.hurry()
  await world.pass(0)
  expect(ticks).toBe(3)
  tick.resolve(null)
  await world.pass(999)
  expect(ticks).toBe(3)
  await world.pass(1)
  expect(ticks).toBe(4)
  await l.stop()
})

test('is late when no tick has ended for five intervals and ten seconds', async () => {
  let intervalMs = 1_000
  let [failing, on] = [false, true]
  const tick = async () => {
    if (failing) throw new Error('failed')
    return null
  }
  const l = new Loop({
    name: 'test',
    world,
    meter: silentMeter,
    intervalMs: () => intervalMs,
    tick,
    when: () => on,
    onTrouble() {},
  })
  expect(l.late, 'not started').toBe(false)
  l.start()
  await world.pass(60_000)
  expect(l.late).toBe(false)
  failing = true
  await world.pass(10_000)
  expect(l.late, 'short intervals are given ten seconds').toBe(false)
  await world.pass(1_000)
  expect(l.late).toBe(true)
  failing = false
  await world.pass(1_000)
  expect(l.late).toBe(false)
  on = false
  await world.pass(60_000)
  expect(l.late, 'it was not its turn').toBe(false)
  on = true
  intervalMs = 10_000
  await world.pass(1_000)
  failing = true
  await world.pass(49_000)
  expect(l.late).toBe(false)
  await world.pass(2_000)
  expect(l.late).toBe(true)
  await l.stop()
  expect(l.late, 'stopped').toBe(false)
})

test('is late when a tick hangs', async () => {
  const tick = Promise.withResolvers<null>()
  const l = loop(() => tick.promise)
  l.start()
  await world.pass(10_001)
  expect(l.late).toBe(true)
  tick.resolve(null)
  await world.pass(0)
  expect(l.late).toBe(false)
  await l.stop()
})

test('reports when a tick last succeeded, not skipped or failed ticks', async () => {
  const beganMs = world.now()
  let on = true
  const l = loop(
    async () => {
      if (ticks === 2) throw new Error('failed')
      return null
    },
    () => on,
  )
  l.start()
  await world.pass(2_500)
  on = false
  await world.pass(2_000)
  on = true
  await world.pass(1_000)
  await l.stop()
  expect(ticks).toBe(4)
  expect(runs).toEqual([0, 2_000, 5_000].map((ms) => ['test', beganMs + ms]))
})
