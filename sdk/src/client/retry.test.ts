import { expect, test } from 'vitest'
import { FakeWorld } from '../../../scripts/testing/fake-world.ts'
import { ERRORS, type ErrorCode, IchidoError } from '../protocol/index.ts'
import { platformWorld } from '../world.ts'
import {
  CostLimit,
  ForeignAnswer,
  KeyReused,
  MaxRetriesExceeded,
  NoAnswer,
  QuotaExceeded,
  Transient,
} from './errors.ts'
import { mayRetry, type Retry, type RetryOptions, retryAfterMs, retryDelayMs, retrying, typed } from './retry.ts'

const GONE = new NoAnswer('No answer')

test('exactly these error codes are retried', () => {
  const codes = Object.keys(ERRORS) as ErrorCode[]
  expect(codes.filter((code) => mayRetry(new IchidoError(code)))).toEqual([
    'REQUEST_TIMEOUT',
    'IDEMPOTENCY_IN_PROGRESS',
    'RATE_LIMITED',
    'INTERNAL',
    'ARTIFACTS_OFF',
    'LOG_UNAVAILABLE',
    'STORE_FULL',
    'UNAVAILABLE',
  ])
})

test.each([
  [200, false],
  [302, false],
  [400, false],
  [401, false],
  [403, false],
  [404, false],
  [408, true],
  [409, false],
  [413, false],
  [422, false],
  [425, false],
  [429, true],
  [500, true],
  [502, true],
  [503, true],
  [504, true],
])('a foreign %i: %s', (status, retried) => {
  expect(mayRetry(new ForeignAnswer(status, ''))).toBe(retried)
  expect(mayRetry(new ForeignAnswer(status, '', { shouldRetry: false }))).toBe(false)
  const never = [400, 401, 403, 404, 409].includes(status)
  expect(mayRetry(new ForeignAnswer(status, '', { shouldRetry: true }))).toBe(!never)
})

test('Should-Retry overrides the code, except for the statuses that are never retried', () => {
  expect(mayRetry(new IchidoError('UNAVAILABLE', '', {}, { shouldRetry: false }))).toBe(false)
  expect(mayRetry(new IchidoError('IDEMPOTENCY_IN_PROGRESS', '', {}, { shouldRetry: false }))).toBe(false)
  for (const code of ['QUOTA_EXCEEDED', 'COST_LIMIT_EXCEEDED', 'IDEMPOTENCY_KEY_REUSED', 'RESULT_NOT_READY'] as const) {
    expect(mayRetry(new IchidoError(code, '', {}, { shouldRetry: true }))).toBe(false)
  }
})

test('NoAnswer is retried; mistakes and aborts of the caller are not', () => {
  expect(mayRetry(GONE)).toBe(true)
  for (const error of [new TypeError('x'), new DOMException('', 'AbortError'), null, 'x', { status: 503 }]) {
    expect(mayRetry(error)).toBe(false)
  }
})

test('the delays are 1 s, 2 s, 4 s … ± 10 %, with a cap', () => {
  const delays = (random: number) => [1, 2, 3, 4, 20].map((tries) => retryDelayMs(tries, GONE, () => random))
  expect(delays(0.5)).toEqual([1_000, 2_000, 4_000, 8_000, 60_000])
  expect(delays(0)).toEqual([900, 1_800, 3_600, 7_200, 54_000])
  for (const [i, delay] of delays(0.999_999).entries()) {
    expect(delay / (delays(0.5)[i] ?? 0)).toBeCloseTo(1.1)
  }
})

test('a delay is never shorter than Retry-After, and has jitter', () => {
  const asked = (ms: number) => new IchidoError('UNAVAILABLE', '', {}, { retryAfterMs: ms })
  expect(retryDelayMs(1, asked(30_000), () => 0)).toBe(30_000)
  expect(retryDelayMs(1, asked(30_000), () => 0.5)).toBe(31_500)
  expect(retryDelayMs(3, asked(1_000), () => 0.5)).toBe(4_000)
})

test.each([
  ['7', 7_000],
  [' 0 ', 0],
  ['Sun, 06 Nov 1994 08:49:37 GMT', 10_000],
  ['Sun, 06 Nov 1994 08:00:00 GMT', 0],
  ['soon', undefined],
  ['-1', undefined],
  ['', undefined],
])('Retry-After: %s', (text, ms) => {
  const nowMs = Date.UTC(1994, 10, 6, 8, 49, 27)
  expect(retryAfterMs(new Headers({ 'retry-after': text }), nowMs)).toBe(ms)
})

test('a Retry-After date is compared with the Date of the answer', () => {
  const headers = { 'retry-after': 'Sun, 06 Nov 1994 08:49:37 GMT', date: 'Sun, 06 Nov 1994 08:49:32 GMT' }
  expect(retryAfterMs(new Headers(headers), Date.UTC(2031, 1, 1))).toBe(5_000)
})

/** Calls that fail with these, one after the other, and then go through; the tries' times in ms since the first. */
function scene(errors: unknown[], options: RetryOptions & { signal?: AbortSignal } = {}) {
  const world = new FakeWorld()
  const began = world.monotonic()
  const tried: number[] = []
  const retries: Retry[] = []
  const done = retrying(
    world,
    { onRetry: (retry) => void retries.push(retry), key: 'k', ...options },
    async (tries) => {
      tried.push(world.monotonic() - began)
      expect(tries).toBe(tried.length)
      const error = errors[tries - 1]
      if (error !== undefined) throw error
      return 'done'
    },
  )
  done.catch(() => {})
  return { world, tried, retries, done }
}

test('a call is retried until it succeeds', async () => {
  const { world, tried, retries, done } = scene([GONE, new IchidoError('INTERNAL')])
  await world.pass(10_000)
  expect(await done).toBe('done')
  expect(tried).toEqual([0, 1_000, 3_000])
  expect(retries).toMatchObject([
    { error: GONE, tries: 1, delayMs: 1_000, key: 'k' },
    { error: { code: 'INTERNAL' }, tries: 2, delayMs: 2_000, key: 'k' },
  ])
  expect(world.pendingMs).toEqual([])
})

test('after three tries MaxRetriesExceeded has the cause, the key and the tries', async () => {
  const last = new IchidoError('UNAVAILABLE', 'The store is gone', { request_id: 'r' }, { retryAfterMs: 7_000 })
  const { world, tried, done } = scene([GONE, GONE, last])
  await world.pass(60_000)
  const error = await done.catch((thrown: unknown) => thrown)
  expect(tried).toHaveLength(3)
  expect(error).toBeInstanceOf(MaxRetriesExceeded)
  expect(error).toBeInstanceOf(Transient)
  expect(error).toBeInstanceOf(IchidoError)
  expect(error).toMatchObject({
    name: 'MaxRetriesExceeded',
    code: 'UNAVAILABLE',
    tries: 3,
    key: 'k',
    cause: last,
    details: { request_id: 'r' },
    retryAfterMs: 7_000,
    message:
      'Gave up after 3 tries: The store is gone. The job may have been created; submit again with the key k to get one job',
  })
})

test('a refusal is not retried, and has the class for its code', async () => {
  for (const [code, type] of [
    ['QUOTA_EXCEEDED', QuotaExceeded],
    ['COST_LIMIT_EXCEEDED', CostLimit],
    ['IDEMPOTENCY_KEY_REUSED', KeyReused],
  ] as const) {
    const { tried, done } = scene([new IchidoError(code, 'no', { job_id: 'j' })])
    const error = await done.catch((thrown: unknown) => thrown)
    expect(error).toBeInstanceOf(type)
    expect(error).toMatchObject({ name: type.name, code, message: 'no', details: { job_id: 'j' } })
    expect(tried).toHaveLength(1)
  }
  const missing = new IchidoError('NOT_FOUND')
  await expect(scene([missing]).done).rejects.toBe(missing)
})

test('the total time is bounded, and no wait exceeds it', async () => {
  const asked = new IchidoError('UNAVAILABLE', 'later', {}, { retryAfterMs: 3_600_000 })
  const { world, tried, done } = scene([asked], { tries: 10 })
  await expect(done).rejects.toMatchObject({ name: 'Transient', cause: asked, retryAfterMs: 3_600_000 })
  expect(tried).toEqual([0])
  expect(world.pendingMs).toEqual([])
  const short = scene([GONE, GONE, GONE, GONE], { tries: 10, totalMs: 4_000 })
  await short.world.pass(60_000)
  await expect(short.done).rejects.toMatchObject({ name: 'MaxRetriesExceeded', tries: 3 })
  expect(short.tried).toEqual([0, 1_000, 3_000])
})

test('a try that times out is retried; the error says that the job may exist', async () => {
  const world = new FakeWorld()
  const tried: number[] = []
  const done = retrying(world, { timeoutMs: 5_000, tries: 2, key: 'client-1' }, (_, signal) => {
    tried.push(world.monotonic())
    return new Promise((_resolve, reject) => signal.addEventListener('abort', () => reject(signal.reason)))
  })
  done.catch(() => {})
  await world.pass(20_000)
  const error = await done.catch((thrown: unknown) => thrown)
  expect(error).toMatchObject({ name: 'MaxRetriesExceeded', key: 'client-1', cause: { name: 'NoAnswer' } })
  expect(String(error)).toContain('No answer within 5 s')
  expect(String(error)).toContain('The job may have been created; submit again with the key client-1 to get one job')
  expect(tried.map((ms) => ms - (tried[0] ?? 0))).toEqual([0, 6_000])
})

test('a call can be aborted before a try, during a try and during a wait', async () => {
  const why = new Error('enough')
  await expect(scene([], { signal: AbortSignal.abort(why) }).done).rejects.toBe(why)
  const controller = new AbortController()
  const { world, tried, done } = scene([GONE], { signal: controller.signal })
  await world.pass(500)
  controller.abort(why)
  await expect(done).rejects.toBe(why)
  await world.pass(5_000)
  expect(tried).toEqual([0])
  expect(world.pendingMs).toEqual([])
  const during = new AbortController()
  const held = retrying(new FakeWorld(), { signal: during.signal }, (_, signal) => {
    during.abort(why)
    return Promise.reject(signal.reason)
  })
  await expect(held).rejects.toBe(why)
})

test('an error of onRetry ends the call', async () => {
  const why = new Error('not again')
  const onRetry = () => {
    throw why
  }
  const { tried, done } = scene([GONE], { onRetry })
  await expect(done).rejects.toBe(why)
  expect(tried).toEqual([0])
})

test('typed() does not change a Transient', () => {
  const error = new MaxRetriesExceeded(GONE, 'k', 3)
  expect(typed(error)).toBe(error)
  const quota = new QuotaExceeded('QUOTA_EXCEEDED')
  expect(typed(quota)).toBe(quota)
})

test('ids of the platform are UUIDs of version 7, and differ', () => {
  const ids = Array.from({ length: 100 }, () => platformWorld.uuid())
  for (const id of ids) expect(id).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/)
  expect(new Set(ids).size).toBe(100)
  const ms = Number.parseInt(ids[0]?.replace('-', '').slice(0, 12) ?? '', 16)
  expect(Math.abs(Date.now() - ms)).toBeLessThan(60_000)
})
