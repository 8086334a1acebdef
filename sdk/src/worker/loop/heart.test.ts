import { beforeEach, expect, test } from 'vitest'
import { FakeWorld, settled } from '../../../../scripts/testing/fake-world.ts'
import { LEASE, Plane, unavailable } from '../testing/plane.ts'
import { Heart } from './heart.ts'
import type { Hold } from './ports.ts'
import { RunStop, Stopped } from './run-stop.ts'

const ONE_S = 1_000
/** A quarter of the time of LEASE. */
const BEAT_MS = 15_000

let world: FakeWorld
let plane: Plane
let heart: Heart
beforeEach(() => {
  world = new FakeWorld()
  plane = new Plane()
  heart = new Heart({ world, transport: plane, onTrouble() {} })
})

function hold(leaseId: string): { hold: Hold; run: RunStop } {
  const run = new RunStop()
  const sent = { monotonic: world.monotonic() }
  return { hold: heart.hold({ ...LEASE, lease_id: leaseId }, sent, run), run }
}

const codeOf = ({ signal }: RunStop) => (signal.reason instanceof Stopped ? signal.reason.code : signal.reason)

test('a cancellation stops a run before its next heartbeat', async () => {
  const [one, other] = [hold('one'), hold('other')]
  await world.pass(ONE_S)
  expect(plane.listened).toEqual([[]])
  plane.cancel(['one', 'not ours'])
  await settled()
  expect(codeOf(one.run)).toBe('CANCELED')
  expect(other.run.signal.aborted).toBe(false)
  expect(plane.beats).toEqual([])
})

test('the next call knows the canceled leases, and does not come at once', async () => {
  hold('one')
  await world.pass(ONE_S)
  plane.cancel(['one', 'not ours'])
  await settled()
  expect(plane.listened).toHaveLength(1)
  await world.pass(ONE_S)
  expect(plane.listened).toEqual([[], ['one', 'not ours']])
})

test('there is no long poll for short runs, or without runs', async () => {
  hold('short').hold.letGo()
  await world.pass(ONE_S)
  expect(plane.listened).toEqual([])
  const { hold: long } = hold('long')
  await world.pass(ONE_S)
  expect(plane.listened).toHaveLength(1)
  long.letGo()
  await world.pass(60 * ONE_S)
  expect(plane.listened).toHaveLength(1)
  // Called off, not given up.
  hold('next')
  await world.pass(ONE_S)
  expect(plane.listened).toHaveLength(2)
})

test('a failed long poll is repeated after an answered heartbeat', async () => {
  plane.troubles.cancels.push(unavailable())
  plane.troubles.heartbeat.push(unavailable())
  hold('one')
  await world.pass(2 * BEAT_MS - ONE_S)
  expect(plane.beats).toEqual([1])
  expect(plane.listened).toHaveLength(1)
  await world.pass(3 * ONE_S)
  expect(plane.beats).toEqual([1, 1])
  expect(plane.listened).toHaveLength(2)
})
