import { beforeEach, expect, test } from 'vitest'
import { FakeWorld, settled } from '../../../../scripts/testing/fake-world.ts'
import { IchidoError, type LeaseShape } from '../../protocol/index.ts'
import { LEASE, Plane, unavailable } from '../testing/plane.ts'
import { type LoopOptions, type Outcome, type RunInHand, WorkerLoop } from './loop.ts'
import type { LeaseCall, Outbox, RunReport } from './ports.ts'

let world: FakeWorld
let plane: Plane
let troubles: unknown[]
let worked: RunInHand[]
let kept: Map<string, RunReport>
beforeEach(() => {
  world = new FakeWorld()
  plane = new Plane()
  troubles = []
  worked = []
  kept = new Map()
})

const outbox = (eager: boolean): Outbox => ({
  eager,
  async keep(lease, report) {
    kept.set(lease.lease_id, report)
  },
  async drop(lease) {
    kept.delete(lease.lease_id)
  },
})

function loop(options: Partial<LoopOptions> = {}, box?: Outbox): WorkerLoop {
  const work = async (run: RunInHand): Promise<Outcome> => {
    worked.push(run)
    return { result: { result: run.slot } }
  }
  const deps = { transport: plane, world, onTrouble: (error: unknown) => troubles.push(error) }
  return new WorkerLoop(
    { queues: ['q'], kinds: [], concurrency: 1, startAtOnce: false, work, ...options },
    box === undefined ? deps : { ...deps, outbox: box },
  )
}

const leases = (count: number): LeaseShape[] =>
  Array.from({ length: count }, (_, i) => ({ ...LEASE, lease_id: `lease ${i}` }))

test('a leased run is started by a separate call before the work', async () => {
  plane.work.push(LEASE)
  const running = loop()
  await settled()
  expect(plane.starts).toEqual(['lease'])
  expect(plane.polls[0]).not.toHaveProperty('startId')
  expect(plane.reports).toEqual([{ result: 0 }])
  await running.close(0)
})

test('a refused start does not begin the work; a lost one is repeated', async () => {
  plane.work.push(...leases(2))
  plane.troubles.start.push(new IchidoError('LEASE_LOST'), unavailable(), unavailable())
  const running = loop()
  await world.pass(5_000)
  expect(worked.map(({ lease }) => lease.lease_id)).toEqual(['lease 1'])
  expect(plane.reports).toHaveLength(1)
  expect(troubles).toHaveLength(3)
  await running.close(0)
})

test('a repeated start must be confirmed by a heartbeat before the work', async () => {
  plane.work.push(...leases(2))
  plane.started.add('lease 0').add('lease 1')
  plane.answerBeat = async () => ({ held: plane.beats.length > 1, cancelRequested: false })
  const running = loop()
  await world.pass(1_000)
  expect(plane.starts).toEqual(['lease 0', 'lease 1'])
  expect(plane.beats).toEqual([1, 1])
  expect(worked.map(({ lease }) => lease.lease_id)).toEqual(['lease 1'])
  await running.close(0)
})

test('a run whose start is not answered in time is released', async () => {
  plane.work.push(LEASE)
  plane.troubles.start.push(...Array.from({ length: 999 }, unavailable))
  const running = loop()
  await world.pass(100_000)
  expect(worked).toEqual([])
  expect(plane.starts).toEqual([])
  void running.close(0)
})

test('runs of a long poll are confirmed by a heartbeat before the work', async () => {
  const running = loop({ startAtOnce: true })
  let leased: ((leases: LeaseShape[]) => void) | undefined
  plane.lease = (call) => {
    plane.polls.push(call)
    return new Promise((resolve) => (leased = resolve))
  }
  await settled()
  await running.close(0)
  const again = loop({ startAtOnce: true })
  await world.pass(15_000)
  leased?.([LEASE])
  await settled()
  expect(plane.beats).toEqual([1])
  expect(worked).toHaveLength(1)
  await world.pass(15_000)
  plane.answerBeat = async () => ({ held: false, cancelRequested: false })
  leased?.([LEASE])
  await settled()
  expect(worked).toHaveLength(1)
  const closing = again.close(0)
  leased?.([])
  await closing
})

test('no two runs have the same slot at the same time', async () => {
  plane.work.push(...leases(5))
  const ends: (() => void)[] = []
  const work = (run: RunInHand) =>
    new Promise<Outcome>((resolve) => {
      worked.push(run)
      ends.push(() => resolve({ result: { result: null } }))
    })
  const running = loop({ concurrency: 3, work })
  await settled()
  ends[1]?.()
  await settled()
  ends[0]?.()
  await settled()
  expect(worked.map(({ slot }) => slot)).toEqual([0, 1, 2, 1, 0])
  for (const end of ends) end()
  await running.close(0)
})

test('runs that end during a report are reported together and replaced', async () => {
  plane.work.push(...leases(8))
  const running = loop({ concurrency: 4, startAtOnce: true })
  await settled()
  expect(plane.reports).toHaveLength(8)
  expect(plane.calls.report).toBe(2)
  expect(plane.polls.map(({ max, waitMs }) => [max, waitMs])).toEqual([
    [4, 20_000],
    [4, 0],
    [4, 0],
    [4, 20_000],
  ])
  await running.close(0)
})

test('many reports use two calls at once; each leases as many runs as it frees', async () => {
  plane.work.push(...leases(1_700))
  const { report } = plane
  const answers: (() => void)[] = []
  plane.report = async (reports, next) => {
    const answered = await report.call(plane, reports, next)
    await new Promise<void>((resolve) => answers.push(resolve))
    return answered
  }
  const running = loop({ concurrency: 1_000, startAtOnce: true })
  await settled()
  const asked = () => plane.polls.slice(1).map(({ max }) => max)
  expect(asked()).toEqual([500, 500])
  expect(worked).toHaveLength(1_000)
  expect(new Set(plane.polls.map(({ pollId }) => pollId)).size).toBe(3)
  answers.shift()?.()
  await settled()
  expect(asked()).toEqual([500, 500, 500])
  expect(worked).toHaveLength(1_500)
  while (answers.length > 0) {
    answers.shift()?.()
    await settled()
  }
  expect(worked).toHaveLength(1_700)
  expect(plane.reports).toHaveLength(1_700)
  await running.close(0)
})

test('a lost poll is repeated unchanged', async () => {
  plane.work.push(...leases(2))
  const ends: (() => void)[] = []
  const work = (run: RunInHand) => {
    worked.push(run)
    return new Promise<Outcome>((resolve) => ends.push(() => resolve({ result: { result: run.slot } })))
  }
  const { lease } = plane
  plane.lease = (call, signal) => {
    if (plane.polls.length === 1) plane.troubles.lease.push(unavailable())
    return lease.call(plane, call, signal)
  }
  const running = loop({ concurrency: 4, startAtOnce: true, work })
  await settled()
  // While it pauses, a run ends: there is room for three.
  ends[0]?.()
  await settled()
  const [, lost, again] = plane.polls
  expect(lost).toMatchObject({ max: 2 })
  expect(again).toMatchObject({ max: 2, pollId: lost?.pollId })
  ends[1]?.()
  await running.close(0)
})

test('no new poll takes the room of the runs of a lost answer', async () => {
  plane.work.push(...leases(4))
  const ends: (() => void)[] = []
  const work = (run: RunInHand) =>
    new Promise<Outcome>((resolve) => ends.push(() => resolve({ result: { result: run.slot } })))
  const asked: (LeaseCall | null)[] = []
  const { report } = plane
  plane.report = (reports, next) => {
    asked.push(next)
    return report.call(plane, reports, next)
  }
  plane.troubles.report.push(unavailable())
  const running = loop({ concurrency: 4, startAtOnce: true, work })
  await settled()
  for (const end of ends.slice(0, 2)) end()
  await settled()
  // Their reports are on their way again when another one ends: there is room for one, and for two that may be there already.
  ends[2]?.()
  await settled()
  await world.pass(1_000)
  const [lost, alone, again] = asked
  expect([lost?.max, alone, again?.max]).toEqual([2, null, 2])
  expect(again?.pollId).toBe(lost?.pollId)
  ends[3]?.()
  await running.close(0)
})

test('a report and a poll are repeated after Retry-After, without loss', async () => {
  const tooMany = () => new IchidoError('RATE_LIMITED', 'Too many', {}, { retryAfterMs: 7_000 })
  plane.work.push(LEASE)
  plane.troubles.lease.push(tooMany())
  plane.troubles.report.push(tooMany())
  const running = loop()
  await world.pass(7_700)
  expect(plane.polls).toHaveLength(1)
  await world.pass(600)
  expect(worked).toHaveLength(1)
  await world.pass(6_400)
  expect(plane.reports).toEqual([])
  await world.pass(1_500)
  expect(plane.reports).toEqual([{ result: 0 }])
  await running.close(0)
})

test('a call that is refused because of one report is split', async () => {
  plane.work.push(...leases(3))
  plane.troubles.report.push(new IchidoError('PAYLOAD_TOO_LARGE'), new IchidoError('PAYLOAD_TOO_LARGE'))
  const running = loop({ concurrency: 3, startAtOnce: true })
  await settled()
  expect(plane.reports).toMatchObject([{ result: 1 }, { result: 2 }, { code: 'PAYLOAD_TOO_LARGE', retryable: false }])
  await running.close(0)
})

test('an eager outbox keeps each report from before the call until its answer', async () => {
  plane.work.push(LEASE)
  plane.troubles.report.push(unavailable())
  const running = loop({}, outbox(true))
  await settled()
  expect([...kept.values()]).toEqual([{ leaseId: 'lease', result: { result: 0 } }])
  await world.pass(1_000)
  expect(plane.reports).toHaveLength(1)
  expect(kept.size).toBe(0)
  await running.close(0)
})

test('stored reports wait for the next start when the process must end', async () => {
  plane.work.push(LEASE)
  plane.troubles.report.push(...Array.from({ length: 999 }, unavailable))
  const running = loop({}, outbox(false))
  await settled()
  const closing = running.close(5_000)
  await world.pass(5_000)
  await world.pass(40_000)
  await closing
  expect(kept.size).toBe(1)
  expect(plane.reports).toEqual([])
})

test('a permanently refused report is not kept', async () => {
  plane.work.push(LEASE)
  plane.refusals.push(new IchidoError('LEASE_LOST'), new IchidoError('LEASE_LOST'))
  const running = loop({}, outbox(true))
  await settled()
  expect(kept.size).toBe(0)
  expect(troubles).toMatchObject([{ code: 'LEASE_LOST' }])
  await running.close(0)
})

test('giving up long polls is reported once', async () => {
  plane.lease = async () => []
  const running = loop()
  await world.pass(60_000)
  expect(troubles.map(String)).toEqual([expect.stringContaining('A proxy may cut long calls')])
  await running.close(0)
})
