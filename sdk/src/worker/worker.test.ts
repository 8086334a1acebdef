import { beforeEach, expect, test } from 'vitest'
import { FakeWorld, settled } from '../../../scripts/testing/fake-world.ts'
import { defineKind } from '../client/kind.ts'
import { IchidoError, type LeaseShape } from '../protocol/index.ts'
import { Fatal } from './loop/failure.ts'
import { Stopped } from './loop/run-stop.ts'
import { HELD, LEASE, Plane, unavailable } from './testing/plane.ts'
import { type HandleOptions, type Handler, type HandlerContext, HandlerLoop } from './worker.ts'

/** When a run without a confirmed heartbeat is told, a little before it must have stopped. */
const TOLD_MS = 0.9 * 0.8 * 100_000

let world: FakeWorld
let plane: Plane
let troubles: unknown[]
beforeEach(() => {
  world = new FakeWorld()
  plane = new Plane()
  troubles = []
})

function loop(handler: Handler<unknown, unknown>, options: HandleOptions = {}): HandlerLoop<unknown, unknown> {
  const onTrouble = (error: unknown) => troubles.push(error)
  return new HandlerLoop(defineKind('work'), handler, options, { transport: plane, world, onTrouble })
}

const coded = (code: unknown) => Object.assign(new Error(`${code} it is`), { code })

/** Works on one lease, and lets the test see the signal that the handler was given. */
async function begin(lease: Partial<LeaseShape> = {}) {
  plane.work.push({ ...LEASE, ...lease })
  const { promise, resolve, reject } = Promise.withResolvers<unknown>()
  const given: { signal?: AbortSignal } = {}
  const running = loop(({ signal }) => {
    given.signal = signal
    return promise
  })
  await settled()
  if (given.signal === undefined) throw new Error('The handler was not called')
  return { running, resolve, reject, signal: given.signal }
}

test('a heartbeat every quarter of a lease keeps it until the report is accepted', async () => {
  const { resolve, running } = await begin()
  await world.pass(100_000)
  expect(plane.beats).toHaveLength(6)
  resolve('done')
  await settled()
  expect(plane.reports).toEqual([{ result: 'done' }])
  await world.pass(100_000)
  expect(plane.beats).toHaveLength(6)
  await running.close(0)
  expect(world.pendingMs).toEqual([])
})

test('a lost lease or a cancellation stops the run at the next heartbeat', async () => {
  const lost = await begin()
  plane.answerBeat = async () => ({ held: false, cancelRequested: false })
  await world.pass(20_000)
  expect(lost.signal.reason).toMatchObject({ name: 'Stopped', code: 'LEASE_LOST' })

  plane = new Plane()
  const canceled = await begin()
  plane.answerBeat = async () => ({ held: true, cancelRequested: true })
  await world.pass(20_000)
  expect(canceled.signal.reason).toMatchObject({ code: 'CANCELED' })
  canceled.reject(new Error('stopped'))
  await settled()
  expect(plane.reports).toMatchObject([{ code: 'CANCELED', retryable: true }])
})

test('a run stops by itself before its job is given to another worker', async () => {
  const { signal, reject } = await begin()
  plane.troubles.heartbeat.push(...Array.from({ length: 99 }, unavailable))
  await world.pass(TOLD_MS - 1)
  expect(signal.aborted).toBe(false)
  await world.pass(1)
  expect(signal.reason).toMatchObject({ code: 'CONTINUATION_LOST' })
  reject(new Error('stopped'))
  await settled()
  expect(plane.reports).toMatchObject([{ code: 'CONTINUATION_LOST', retryable: true }])
})

test('a handler that ignores its signal gets no heartbeats, and is named', async () => {
  const { signal } = await begin({ timeout_seconds: 5 })
  await world.pass(5_000)
  expect(signal.reason).toMatchObject({ code: 'TIMEOUT' })
  await world.pass(10_000)
  const { length } = plane.beats
  await world.pass(0.8 * 100_000)
  expect(plane.beats).toHaveLength(length)
  expect(troubles).toMatchObject([{ message: expect.stringContaining('ignored its signal') }])
})

test('an answer with a cancellation gives the run no more time', async () => {
  const { signal } = await begin()
  plane.answerBeat = async () => ({ held: true, cancelRequested: true })
  await world.pass(0.8 * 100_000)
  expect(signal.reason).toMatchObject({ code: 'CANCELED' })
  expect(troubles).toHaveLength(1)
})

test('one call keeps many leases', async () => {
  plane.work.push(...Array.from({ length: 50 }, (_, i) => ({ ...LEASE, lease_id: `lease ${i}` })))
  const running = loop(() => new Promise(() => {}), { concurrency: 50 })
  await world.pass(60_000)
  expect(plane.beats).toEqual([50, 50, 50, 50])
  void running.close(0)
})

test('the deadline counts from when the last confirmed heartbeat was sent', async () => {
  const { signal } = await begin()
  plane.answerBeat = () => new Promise((resolve) => world.after(50_000, () => resolve(HELD)))
  await world.pass(20_000)
  plane.answerBeat = () => new Promise(() => {})
  await world.pass(15_000 + TOLD_MS - 20_000 - 1)
  expect(signal.aborted).toBe(false)
  await world.pass(1)
  expect(signal.aborted).toBe(true)
})

test('a report is retried in an outage, and the lease is kept meanwhile', async () => {
  const { resolve } = await begin()
  plane.troubles.report.push(...Array.from({ length: 8 }, unavailable))
  resolve('done')
  await world.pass(25_000)
  expect(plane.reports).toEqual([])
  expect(plane.beats).toEqual([1])
  await world.pass(25_000)
  expect(plane.reports).toEqual([{ result: 'done' }])
  expect(troubles).toHaveLength(8)
})

test('a report is given up when it can no longer be accepted', async () => {
  const { resolve } = await begin()
  plane.troubles.report.push(...Array.from({ length: 999 }, unavailable))
  plane.troubles.heartbeat.push(...Array.from({ length: 999 }, unavailable))
  resolve('done')
  await world.pass(160_000 + 30_000)
  expect(plane.reports).toEqual([])
  expect(plane.troubles.report.length).toBeGreaterThan(980)
  expect(plane.polls.at(-1)).toMatchObject({ waitMs: 20_000 })
})

test('a refused result fails the run with the refusal', async () => {
  const { resolve } = await begin()
  plane.refusals.push(new IchidoError('PAYLOAD_TOO_LARGE', 'The result is too large'))
  resolve('x')
  await settled()
  expect(plane.reports).toMatchObject([
    { code: 'PAYLOAD_TOO_LARGE', message: expect.stringContaining('too large'), retryable: false },
  ])
})

test('a result whose call timed out is sent again', async () => {
  const { resolve } = await begin()
  plane.troubles.report.push(new IchidoError('REQUEST_TIMEOUT'))
  resolve('x')
  await settled()
  await world.pass(1_000)
  expect(plane.reports).toMatchObject([{ result: 'x' }])
})

test('a run over its time limit fails, even if the handler returns a value', async () => {
  const { signal, resolve } = await begin({ timeout_seconds: 1.5 })
  await world.pass(1_499)
  expect(signal.aborted).toBe(false)
  await world.pass(1)
  expect(signal.reason).toEqual(new Stopped('TIMEOUT', 'The run took longer than 1.5 s'))
  resolve('half of it')
  await settled()
  expect(plane.reports).toEqual([{ code: 'TIMEOUT', message: 'The run took longer than 1.5 s', retryable: true }])
})

test.each<[string, unknown, object]>([
  ['an error', new RangeError('out of range'), { code: 'RangeError', message: 'out of range', retryable: true }],
  ['an error of nothing', new Error(''), { code: 'Error', message: 'Error', retryable: true }],
  ['Fatal', new Fatal('NO_SUCH_FILE', 'a.png'), { code: 'NO_SUCH_FILE', message: 'a.png', retryable: false }],
  ['an answer of Ichido', new IchidoError('QUOTA_EXCEEDED', 'full'), { code: 'QUOTA_EXCEEDED', retryable: true }],
  ['something else', 'text', { code: 'ERROR', message: 'text', retryable: true }],
  ['nothing', undefined, { code: 'ERROR', message: 'undefined', retryable: true }],
  ['an error of the system', coded('ENOENT'), { code: 'ENOENT', message: 'ENOENT it is', retryable: true }],
  ['an error of a database', coded('23505'), { code: '23505' }],
  ['an error with a code of its own sort', coded('not/for-us'), { code: 'Error' }],
  ['an error with a number', coded(20), { code: 'Error' }],
  ['an object', { code: 'OBJ', n: 1 }, { code: 'OBJ', message: '{"code":"OBJ","n":1}', retryable: true }],
  ['a large object', { text: 'x'.repeat(99_999) }, { message: `{"text":"${'x'.repeat(9_991)}` }],
  ['an object without JSON', { n: 1n }, { code: 'ERROR', message: '[object Object]' }],
  ['NUL and half a character', new Error('a\0b\ud83d'), { message: 'ab\ufffd' }],
  ['a very long text', new Error('x'.repeat(99_999)), { message: 'x'.repeat(10_000) }],
])('the thrown %s is reported', async (_, thrown, report) => {
  const { reject } = await begin()
  reject(thrown)
  await settled()
  expect(plane.reports).toMatchObject([report])
})

test('the traceback contains the causes of an error', async () => {
  const root = Object.assign(new Error('no such host'), { cause: 'the cable' })
  const { reject } = await begin()
  reject(new Error('cannot save', { cause: new TypeError('cannot send', { cause: root }) }))
  await settled()
  const [report] = plane.reports
  expect(report).toMatchObject({ code: 'Error', message: 'cannot save' })
  const traceback = String(Object(report).traceback)
  const said = traceback.split('\n').filter((line) => !line.startsWith('    at '))
  expect(said).toEqual([
    'Error: cannot save',
    'Caused by: TypeError: cannot send',
    'Caused by: Error: no such host',
    'Caused by: the cable',
  ])
  expect(traceback.match(/worker\.test\.ts/g)?.length).toBeGreaterThanOrEqual(3)
})

test('an error that is its own cause is reported', async () => {
  const error = new Error('round and round')
  error.cause = error
  const { reject } = await begin()
  reject(error)
  await settled()
  expect(plane.reports).toMatchObject([{ message: 'round and round', traceback: expect.any(String) }])
})

test('an error because of a stop costs no retry; Fatal stays Fatal', async () => {
  const stopped = await begin()
  const closing = stopped.running.close(0)
  await world.pass(0)
  stopped.reject(stopped.signal.reason)
  await closing
  const fatal = await begin()
  const closed = fatal.running.close(0)
  await world.pass(0)
  fatal.reject(new Fatal('BROKEN'))
  await closed
  expect(plane.reports).toMatchObject(['released', { code: 'BROKEN', retryable: false }])
})

test('close leaves and names a handler that continues 10 s after its stop', async () => {
  plane.work.push({ ...LEASE, timeout_seconds: 3600 }, { ...LEASE, lease_id: 'other', job_id: 'another job' })
  const { promise, reject } = Promise.withResolvers<unknown>()
  const signals: AbortSignal[] = []
  const heeding = (signal: AbortSignal) =>
    new Promise((_, giveUp) => signal.addEventListener('abort', () => giveUp(signal.reason)))
  const heedless = ({ signal, job }: HandlerContext<unknown>) => {
    signals.push(signal)
    return job.id === 'job' ? promise : heeding(signal)
  }
  const running = loop(heedless, { concurrency: 2 })
  await settled()
  let closed = false
  const closing = running.close(5_000).then(() => {
    closed = true
  })
  await world.pass(5_000)
  expect(signals.map(({ aborted }) => aborted)).toEqual([true, true])
  expect(plane.reports).toEqual(['released'])
  await world.pass(9_999)
  expect([closed, troubles]).toEqual([false, []])
  await world.pass(1)
  await closing
  expect(troubles).toEqual([
    new Error('Closed, but the handler of work ignored its signal and still runs: job job, attempt 1'),
  ])
  expect(world.pendingMs).toEqual([])
  const { length } = plane.beats
  reject(new Error('too late'))
  await Promise.all(running.leftBehind)
  await world.pass(200_000)
  expect(running.leftBehind).toHaveLength(1)
  expect(plane.reports).toEqual(['released'])
  expect(plane.beats).toHaveLength(length)
  expect(troubles).toHaveLength(1)
})

test('close waits for an undelivered report', async () => {
  const { running, reject, signal } = await begin()
  plane.troubles.release.push(...Array.from({ length: 5 }, unavailable))
  const closing = running.close(0)
  await world.pass(0)
  reject(signal.reason)
  await world.pass(30_000)
  await closing
  expect(plane.reports).toEqual(['released'])
  expect(running.leftBehind).toEqual([])
})

test('close gives up undelivered reports after 10 s, and names their jobs', async () => {
  const { running, reject, signal } = await begin({ lease_ttl_seconds: 3600, continuation_seconds: 3600 })
  const away = async () => {
    throw unavailable()
  }
  Object.assign(plane, { release: away, heartbeat: away, lease: away })
  let closed = false
  const closing = running.close(5_000).then(() => {
    closed = true
  })
  await world.pass(5_000)
  reject(signal.reason)
  await world.pass(9_999)
  expect(closed).toBe(false)
  await world.pass(1)
  await closing
  const given = troubles.filter((error) => !(error instanceof IchidoError))
  expect(given).toEqual([new Error('Closed, but the outcome of a run of work was not delivered: job job, attempt 1')])
  const { length } = troubles
  expect(world.pendingMs).toEqual([])
  await world.pass(60_000)
  expect(troubles).toHaveLength(length)
  expect(running.leftBehind).toEqual([])
})

test.each(['release', 'lease'])('close ends without an answer to a %s', async (verb) => {
  const { running, reject, signal } = await begin()
  Object.assign(plane, { [verb]: () => new Promise(() => {}) })
  const closing = running.close(0)
  await world.pass(0)
  reject(signal.reason)
  await world.pass(10_000)
  await closing
  expect(world.pendingMs).toEqual([])
})

test('a failed poll is repeated with its id', async () => {
  plane.troubles.lease.push(unavailable(), unavailable())
  const running = loop(() => 'done')
  await world.pass(3_000)
  plane.work.push(LEASE)
  await running.close(0)
  const [first, second, third] = plane.polls
  expect(plane.polls).toHaveLength(3)
  expect(second?.pollId).toBe(first?.pollId)
  expect(third?.pollId).toBe(first?.pollId)
  expect(troubles).toEqual([unavailable(), unavailable()])
  expect(plane.reports).toEqual(['released'])
})

test('after an answered poll the next one has a new id', async () => {
  plane.work.push(LEASE, { ...LEASE, lease_id: 'second' })
  const running = loop(() => 'done')
  await settled()
  await running.close(0)
  // The second lease comes with the answer to the first report.
  expect(plane.polls.map(({ waitMs }) => waitMs)).toEqual([20_000, 0, 0, 20_000])
  expect(new Set(plane.polls.map(({ pollId }) => pollId)).size).toBe(4)
  expect(new Set(plane.polls.map(({ startId }) => startId)).size).toBe(1)
})

test('a run that arrives after the drain time is released', async () => {
  let leased: ((leases: LeaseShape[]) => void) | undefined
  plane.lease = () => new Promise((resolve) => (leased = resolve))
  const seen: boolean[] = []
  const running = loop(({ signal }) => void seen.push(signal.aborted))
  await settled()
  const closing = running.close(0)
  await world.pass(1)
  leased?.([LEASE])
  await closing
  expect(seen).toEqual([])
  expect(plane.reports).toEqual(['released'])
})

test('a run starts only while there is room', async () => {
  plane.work.push(...Array.from({ length: 7 }, (_, i) => ({ ...LEASE, lease_id: `lease ${i}` })))
  let now = 0
  let most = 0
  const ends: (() => void)[] = []
  const running = loop(
    async () => {
      most = Math.max(most, ++now)
      await new Promise<void>((resolve) => ends.push(resolve))
      now--
    },
    { concurrency: 3 },
  )
  await settled()
  expect(plane.polls.map(({ max }) => max)).toEqual([3])
  while (ends.length > 0) {
    ends.shift()?.()
    await settled()
  }
  expect(most).toBe(3)
  expect(plane.reports).toHaveLength(7)
  await running.close(0)
})

test.each([0, -1, 1.5, Number.NaN])('concurrency %s is refused', (concurrency) => {
  expect(() => loop(() => 'done', { concurrency })).toThrow('concurrency must be a whole number from 1')
})
