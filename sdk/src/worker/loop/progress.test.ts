import { beforeEach, expect, test } from 'vitest'
import { FakeWorld, settled } from '../../../../scripts/testing/fake-world.ts'
import { defineKind } from '../../client/kind.ts'
import { ECO2_STAGES, IchidoError, type LeaseShape } from '../../protocol/index.ts'
import { HELD, LEASE, Plane, unavailable } from '../testing/plane.ts'
import { type Handler, HandlerLoop } from '../worker.ts'

let world: FakeWorld
let plane: Plane
let troubles: unknown[]
beforeEach(() => {
  world = new FakeWorld()
  plane = new Plane()
  troubles = []
})

async function run(handler: Handler<unknown, unknown>, lease: Partial<LeaseShape> = {}) {
  plane.work.push({ ...LEASE, ...lease })
  const onTrouble = (error: unknown) => troubles.push(error)
  const loop = new HandlerLoop(defineKind('work'), handler, {}, { transport: plane, world, onTrouble })
  await settled()
  return loop
}

test('progress is numbered from 1; waiting events share a call, as they were published', async () => {
  const data = { percent: 0 }
  await run(async ({ progress }) => {
    await progress(undefined)
    for (data.percent = 1; data.percent < 4; data.percent++) void progress(data)
  })
  expect(plane.published).toEqual([
    [['progress', 1, null]],
    [
      ['progress', 2, { percent: 1 }],
      ['progress', 3, { percent: 2 }],
      ['progress', 4, { percent: 3 }],
    ],
  ])
  expect(plane.reports).toEqual([{ result: null }])
})

test('stages have the ranges of the job, and other numbers are refused', async () => {
  const problems: unknown[] = []
  await run(
    async ({ progress }) => {
      await progress('vision', 0, { found: 1 })
      await progress('done', 1)
      await progress('queued', 9, 'undeclared')
      await progress('a lone text')
      for (const [stage, sub] of [
        ['vision', 10],
        ['vision', -1],
        ['rule', 0.5],
        ['queued', 10],
      ] as const) {
        await progress(stage, sub, null).catch((error: unknown) => problems.push(error))
      }
    },
    { stages: ECO2_STAGES },
  )
  expect(plane.published.flat()).toEqual([
    ['vision', 10, { found: 1 }],
    ['done', 51, null],
    ['queued', 9, 'undeclared'],
    ['progress', 1, 'a lone text'],
  ])
  expect(problems).toHaveLength(4)
  expect(problems[0]).toEqual(new RangeError('The stage vision of this job has the numbers 0 to 9, not 10'))
  expect(plane.reports).toEqual([{ result: null }])
})

test('a lost call is repeated with the same seq, before the outcome', async () => {
  plane.troubles.publish.push(unavailable(), unavailable())
  await run(({ progress }) => {
    void progress({ n: 1 })
    void progress({ n: 2 })
    return 'done'
  })
  expect([plane.published, plane.reports]).toEqual([[], []])
  await world.pass(2_000)
  expect(plane.published.flat()).toEqual([
    ['progress', 1, { n: 1 }],
    ['progress', 2, { n: 2 }],
  ])
  expect(plane.reports).toEqual([{ result: 'done' }])
  expect(plane.calls.publish).toBe(3)
  expect(world.pendingMs.every((ms) => ms < 60_000)).toBe(true)
})

test('a stop rejects progress() in an outage; the event is still sent', async () => {
  plane.troubles.publish.push(...Array.from({ length: 5 }, unavailable))
  const heard: unknown[] = []
  await run(
    async ({ progress, signal }) => {
      await progress(1).catch((error: unknown) => heard.push(error))
      expect(signal.aborted).toBe(true)
      await progress('last word')
    },
    { timeout_seconds: 1 },
  )
  await world.pass(999)
  expect(heard).toEqual([])
  await world.pass(1)
  expect(heard).toMatchObject([{ code: 'TIMEOUT' }])
  await world.pass(20_000)
  expect(plane.published.flat().map(([, , data]) => data)).toEqual([1, 'last word'])
  expect(plane.reports).toMatchObject([{ code: 'TIMEOUT' }])
})

test('a refused event rejects only its own call', async () => {
  plane.refusedStage = 'bad'
  const heard: unknown[] = []
  await run(async ({ progress }) => {
    void progress(1)
    void progress('bad', 1)
    void progress(2)
    await progress('bad', 2).catch((error: unknown) => heard.push(error))
    return 'done'
  })
  expect(plane.published.flat().map(([, seq]) => seq)).toEqual([1, 2])
  expect(heard).toMatchObject([{ code: 'INVALID_PAYLOAD' }])
  expect(troubles).toHaveLength(2)
  expect(plane.reports).toEqual([{ result: 'done' }])
})

test('data that is not JSON, and too many events, are refused', async () => {
  const heard: unknown[] = []
  const release = Promise.withResolvers<void>()
  plane.holdPublish = release.promise
  await run(async ({ progress }) => {
    await progress({ n: 1n }).catch((error: unknown) => heard.push(error))
    const told = Array.from({ length: 10_200 }, (_, i) => progress(i))
    setImmediate(release.resolve)
    for (const one of await Promise.allSettled(told)) if (one.status === 'rejected') heard.push(one.reason)
  })
  await settled()
  expect(heard[0]).toBeInstanceOf(TypeError)
  expect(String(heard[1])).toContain('10000 events wait to be sent')
  expect(Math.max(...plane.published.map((call) => call.length))).toBe(100)
})

test('events are sent before the outcome, even through a long outage', async () => {
  const away = () => Array.from({ length: 999 }, unavailable)
  plane.troubles.publish.push(...away())
  plane.troubles.heartbeat.push(...away())
  await run(({ progress }) => void progress(1), { timeout_seconds: 30 })
  await world.pass(600_000)
  expect([plane.published, plane.reports]).toEqual([[], []])
  expect(troubles.filter((error) => !(error instanceof IchidoError))).toEqual([])
  plane.troubles.publish.splice(0)
  await world.pass(5_000)
  expect(plane.published).toEqual([[['progress', 1, 1]]])
  expect(plane.reports).toEqual([{ result: null }])
})

test('events of a run that stops in an outage are dropped and reported', async () => {
  plane.troubles.publish.push(...Array.from({ length: 999 }, unavailable))
  const loop = await run(({ progress }) => void progress(1))
  await world.pass(20_000)
  expect(plane.reports).toEqual([])
  loop.hurry()
  await settled()
  expect(plane.reports).toEqual([{ result: null }])
  expect(troubles.map(String)).toEqual(['IchidoError: Events of job job were not delivered (1): down'])
})

test('a lost lease ends the wait for events', async () => {
  plane.troubles.publish.push(...Array.from({ length: 100 }, unavailable))
  plane.answerBeat = async () => ({ ...HELD, held: false })
  let told: Promise<void> | undefined
  await run(({ progress, signal }) => {
    told = progress(2)
    return new Promise((resolve) => signal.addEventListener('abort', () => resolve(null)))
  })
  await world.pass(20_000)
  await expect(told).rejects.toMatchObject({ code: 'LEASE_LOST' })
})
