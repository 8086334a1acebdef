import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, expectTypeOf, test } from 'vitest'
import { z } from 'zod'
import { eachEmbedded, thrownBy } from '../testing/services/embedded.ts'
import { unique } from '../testing/store/store.ts'
import { defineKind, Fatal, type HandlerContext, InvalidValue, type Job, open } from './index.ts'

const FAST = { backoff: { baseSeconds: 0.1, jitter: 0 } }

test('the example of the design works as written', async () => {
  const dataDir = mkdtempSync(join(tmpdir(), 'ichido-open-'))
  const [url, id] = ['https://example.org/a.png', 7]
  const run = async (payload: { width: number }, _signal: AbortSignal) => payload.width * 100
  const seen: unknown[] = []

  const resize = defineKind('resize', {
    payload: z.object({ url: z.url(), width: z.int() }),
    result: z.object({ bytes: z.int() }),
    queue: 'media',
    maxAttempts: 5,
  })
  const ichido = await open({ dataDir })
  ichido.handle(
    resize,
    async ({ payload, signal, progress }) => {
      await progress({ percent: 40 })
      return { bytes: await run(payload, signal) }
    },
    { concurrency: 8 },
  )
  const job = await ichido.submit(resize, { url, width: 80 }, { key: `thumb-${id}` })
  for await (const e of job.watch()) seen.push([e.stage, e.data])
  const { bytes } = await job.result()
  const { policy, queue, idempotency_key } = await job.get()
  await ichido.close()

  expect(bytes).toBe(8_000)
  expect({ policy, queue, idempotency_key }).toEqual({
    policy: { max_attempts: 5 },
    queue: 'media',
    idempotency_key: 'thumb-7',
  })
  expect(seen).toEqual([
    ['run', { state: 'PENDING' }],
    ['run', { state: 'RUNNING', attempt: 1 }],
    ['progress', { percent: 40 }],
    ['run', { state: 'SUCCEEDED', attempt: 1 }],
  ])
  expectTypeOf(job).toEqualTypeOf<Job<{ bytes: number }>>()
  rmSync(dataDir, { recursive: true })
})

eachEmbedded(({ ichido }) => {
  const jobsOf = async (kind: string) => (await ichido().list({ kind })).data

  test('types go from the schemas to payload, handler and result', async () => {
    const kind = defineKind(unique('typed'), {
      payload: z.object({ at: z.iso.datetime().transform((text) => new Date(text)), n: z.int().default(3) }),
      result: z.object({ year: z.string().transform(Number) }),
      maxAttempts: 1,
    })
    ichido().handle(kind, ({ payload }) => {
      expectTypeOf(payload).toEqualTypeOf<{ at: Date; n: number }>()
      return { year: String(payload.at.getUTCFullYear() + payload.n) }
    })
    const job = await ichido().submit(kind, { at: '2031-05-06T07:08:09Z' })
    const result = await job.result()
    expectTypeOf(result).toEqualTypeOf<{ year: number }>()
    expectTypeOf(ichido().job(job.id, kind)).toEqualTypeOf<Job<{ year: number }>>()
    expect(result).toEqual({ year: 2034 })
    expect(await ichido().job(job.id, kind).result()).toEqual({ year: 2034 })
    // Kept as it was given, and as it was returned.
    expect((await job.get()).payload).toEqual({ at: '2031-05-06T07:08:09Z' })
    expect(await ichido().job(job.id).result()).toEqual({ year: '2034' })
  })

  test('wrong types do not compile', () => {
    const kind = defineKind(unique('strict'), {
      payload: z.object({ width: z.int() }),
      result: z.object({ bytes: z.int() }),
    })
    const never = () => {
      // @ts-expect-error a member is missing
      void ichido().submit(kind, {})
      // @ts-expect-error a member has another type
      void ichido().submit(kind, { width: 'wide' })
      // @ts-expect-error the result lacks a member
      ichido().handle(kind, () => ({}))
      // @ts-expect-error the result has another type
      ichido().handle(kind, async () => ({ bytes: 'many' }))
      // @ts-expect-error no state has this name
      void ichido().list({ state: 'RUNING' })
      void ichido().list({ state: 'RUNNING,PENDING' })
      void ichido().submit('any', { whatever: 1 })
      ichido().handle(defineKind('any'), ({ payload }) => {
        expectTypeOf(payload).toBeUnknown()
      })
    }
    expectTypeOf(never).toBeFunction()
    expectTypeOf<HandlerContext<{ width: number }>['payload']>().toEqualTypeOf<{ width: number }>()
  })

  test('a payload that its schema refuses is not stored; the message names the field', async () => {
    const kind = defineKind(unique('checked'), { payload: z.object({ image: z.object({ url: z.url() }) }) })
    const error = await thrownBy(ichido().submit(kind, { image: { url: 'nowhere' } }))
    expect(error).toBeInstanceOf(InvalidValue)
    expect(String(error)).toContain('payload.image.url: Invalid URL')
    expect(await jobsOf(kind.name)).toEqual([])
  })

  test.each<[string, string, () => unknown, object]>([
    ['NUL', 'payload', () => 'a\0b', {}],
    ['half a character', 'payload', () => ({ 'a\ud800': 1 }), {}],
    ['a number beyond 2^53', 'payload', () => 2 ** 60, {}],
    ['a priority of 5000', 'priority', () => null, { priority: 5_000 }],
    ['a label with NUL', 'labels.a', () => null, { labels: { a: 'b\0' } }],
    ['a label of half a character', 'labels.a', () => null, { labels: { a: '\ud800' } }],
    ['a negative cost', 'estimatedCost', () => null, { estimatedCost: -1 }],
    ['two times', 'runAt and delaySeconds exclude', () => null, { delaySeconds: 1, runAt: new Date() }],
    ['a time long ago', 'runAt', () => null, { runAt: new Date(0) }],
    ['no attempt', 'maxAttempts', () => null, { maxAttempts: 0 }],
    ['a timeout of 0', 'timeoutSeconds', () => null, { timeoutSeconds: 0 }],
    ['a jitter above 1', 'backoff.jitter', () => null, { backoff: { jitter: 2 } }],
    ['a negative backoff', 'backoff.baseSeconds', () => null, { backoff: { baseSeconds: -1 } }],
    ['a negative delay', 'delaySeconds', () => null, { delaySeconds: -1 }],
    ['a key of no time', 'keyTtlHours', () => null, { keyTtlHours: 0 }],
    ['no reservation', 'reservationId', () => null, { reservationId: 'x' }],
    ['a name of the wire in a label', 'labels.run_at', () => null, { labels: { run_at: 'b\0' } }],
    ['a text as time', 'runAt', () => null, { runAt: 'tomorrow' }],
    ['a time that is none', 'runAt', () => null, { runAt: new Date('nope') }],
    ['an empty key', 'key', () => null, { key: '' }],
    ['a key with a space', 'key', () => null, { key: 'a b' }],
    ['a number as key', 'key', () => null, { key: 42 }],
    ['true as key', 'key', () => null, { key: true }],
    ['a long key', 'key', () => null, { key: 'k'.repeat(257) }],
  ])('%s is refused, and the message names %s', async (_, field, payload, options) => {
    const kind = unique('refused')
    const error = await thrownBy(ichido().submit(kind, payload(), options))
    expect(error).toMatchObject({ name: 'IchidoError', code: 'INVALID_PAYLOAD' })
    expect(String(error)).toMatch(new RegExp(`IchidoError: ${field} .{5,}`))
    expect(await jobsOf(kind)).toEqual([])
  })

  test.each<[string, () => unknown]>([
    ['payload.n is a BigInt', () => ({ n: 1n })],
    ['payload is a function', () => () => {}],
    ['payload.self is circular', circular],
    [`payload${'[0]'.repeat(64)} is nested more`, () => JSON.parse('['.repeat(65) + ']'.repeat(65))],
  ])('a payload that JSON cannot hold is refused before it is sent: %s', async (message, payload) => {
    const kind = unique('refused')
    const error = await thrownBy(ichido().submit(kind, payload()))
    expect(error).toBeInstanceOf(InvalidValue)
    expect(String(error)).toContain(message)
    expect(await ichido().batch([{ kind, payload: payload() }])).toMatchObject([
      { status: 'rejected', reason: { name: 'InvalidValue' } },
    ])
    expect(await jobsOf(kind)).toEqual([])
  })

  test('the limits of a submission override those of its kind', async () => {
    const kind = defineKind(unique('own'), {
      maxAttempts: 5,
      timeoutSeconds: 60,
      backoff: { baseSeconds: 9, jitter: 0 },
    })
    const own = { maxAttempts: 2, timeoutSeconds: 30, backoff: { baseSeconds: 1, capSeconds: 2 } }
    const policies = [await ichido().submit(kind, null), await ichido().submit(kind, null, own)].map(
      async (job) => (await job.get()).policy,
    )
    expect(await Promise.all(policies)).toMatchObject([
      { max_attempts: 5, timeout_seconds: 60, backoff: { base_seconds: 9, jitter: 0 } },
      { max_attempts: 2, timeout_seconds: 30, backoff: { base_seconds: 1, cap_seconds: 2, jitter: 0 } },
    ])
    const [inBatch] = await ichido().batch([{ kind: kind.name, payload: null, ...own }])
    const job = inBatch?.status === 'fulfilled' ? await inBatch.value.get() : null
    expect(job?.policy).toMatchObject({ max_attempts: 2, timeout_seconds: 30, backoff: { base_seconds: 1 } })
    const another = { backoff: { type: 'exponential', delay: 1 } } as object
    expect(await thrownBy(ichido().submit(kind, null, another))).toMatchObject({
      message: 'type is not an option of backoff; the options are baseSeconds, capSeconds, jitter',
    })
  })

  test('a payload over 1 MiB is refused; a smaller one is stored whole', async () => {
    const kind = defineKind(unique('large'))
    const error = await thrownBy(ichido().submit(kind, 'é'.repeat(512 * 1024)))
    expect(error).toMatchObject({ code: 'PAYLOAD_TOO_LARGE' })
    ichido().handle(kind, ({ payload }) => String(payload).length)
    const job = await ichido().submit(kind, 'é'.repeat(512 * 1024 - 1))
    expect(await job.result()).toBe(512 * 1024 - 1)
  })

  test('the handler gets the payload as JSON, and the key stands for that', async () => {
    const kind = defineKind(unique('json'))
    const given = { at: new Date(0), gone: undefined, list: [null] }
    const job = await ichido().submit(kind, given, { key: kind.name })
    const json = { at: '1970-01-01T00:00:00.000Z', list: [null] }
    expect((await job.get()).payload).toEqual(json)
    expect(await ichido().submit(kind, json, { key: kind.name })).toMatchObject({ id: job.id, replayed: true })
  })

  test('an error of a handler is retried with growing delays', async () => {
    const kind = defineKind(unique('flaky'), { ...FAST, result: z.string() })
    const attempts: number[] = []
    ichido().handle(kind, ({ job }) => {
      attempts.push(job.attempt)
      if (job.attempt < 3) throw new Error(`attempt ${job.attempt}`)
      return 'done'
    })
    const job = await ichido().submit(kind, null)
    expect(await job.result()).toBe('done')
    expect(attempts).toEqual([1, 2, 3])
    const { runs, ...detail } = await job.get()
    expect(detail).toMatchObject({ state: 'SUCCEEDED', attempt: 3, retry_count: 2, error: null })
    expect(runs).toMatchObject([
      { run_no: 1, state: 'FAILED', attempt: 1, retry_count: 0, error: { code: 'Error', message: 'attempt 1' } },
      { run_no: 2, state: 'FAILED', attempt: 2, retry_count: 1, error: { code: 'Error', message: 'attempt 2' } },
      { run_no: 3, state: 'SUCCEEDED', attempt: 3, retry_count: 2, error: null },
    ])
    const pauses = runs.slice(1).map((run, i) => Date.parse(run.run_at) - Date.parse(runs[i]?.finished_at ?? ''))
    expect(pauses.map((ms, i) => ms >= 100 * 2 ** i && ms < 60_000)).toEqual([true, true])
    for (const { started_at, run_at } of runs)
      expect(Date.parse(started_at ?? '')).toBeGreaterThanOrEqual(Date.parse(run_at))
  })

  test('Fatal is not retried; the job becomes a dead letter', async () => {
    const kind = defineKind(unique('fatal'), FAST)
    let calls = 0
    ichido().handle(kind, () => {
      calls++
      throw new Fatal('NO_SUCH_IMAGE', 'The image is gone')
    })
    const job = await ichido().submit(kind, null)
    expect(await thrownBy(job.result())).toMatchObject({
      name: 'JobFailed',
      code: 'NO_SUCH_IMAGE',
      jobId: job.id,
      message: `Job ${job.id} ended FAILED: NO_SUCH_IMAGE: The image is gone`,
      state: 'FAILED',
      failure: { code: 'NO_SUCH_IMAGE', message: 'The image is gone' },
    })
    expect(calls).toBe(1)
    expect(await ichido().sql('SELECT * FROM ichido.dead_letters WHERE job_id = $1', job.id)).toMatchObject([
      { error_code: 'NO_SUCH_IMAGE', error_message: 'The image is gone', retry_count: 1, user_id: 'local' },
    ])
  })

  test('after its last attempt the job is a dead letter with the last error', async () => {
    const kind = defineKind(unique('hopeless'), { ...FAST, maxAttempts: 2 })
    ichido().handle(kind, ({ job }) => {
      throw new RangeError(`attempt ${job.attempt}: a\0b${'😀'.slice(0, 1)}`)
    })
    const job = await ichido().submit(kind, null)
    expect(await thrownBy(job.result())).toMatchObject({
      name: 'JobFailed',
      code: 'RangeError',
      failure: { code: 'RangeError', message: 'attempt 2: ab\ufffd', traceback: expect.any(String) },
    })
    expect(await job.get()).toMatchObject({ state: 'FAILED', attempt: 2, retry_count: 1 })
    expect(await ichido().sql('SELECT * FROM ichido.dead_letters WHERE job_id = $1', job.id)).toMatchObject([
      { error_code: 'RangeError', retry_count: 2 },
    ])
  })

  test.each<[string, () => unknown, string, string]>([
    ['does not fit its schema', () => ({ bytes: 'many' }), 'INVALID_VALUE', 'result.bytes: '],
    ['is no JSON', () => ({ bytes: 1, items: [0, { big: 1n }] }), 'INVALID_VALUE', 'result.items[1].big is a BigInt'],
    ['has half a character', () => ({ bytes: 1, half: '\ud800' }), 'INVALID_PAYLOAD', 'result.half has half of'],
    ['is too large', () => ({ bytes: 1, text: 'é'.repeat(2 ** 21) }), 'PAYLOAD_TOO_LARGE', 'larger than 4194304 bytes'],
  ])('a result that %s fails the job without a retry', async (_, result, code, message) => {
    const schema = z.looseObject({ bytes: z.int() })
    const kind = defineKind(unique('result'), { ...FAST, result: schema })
    ichido().handle(kind, () => result() as z.input<typeof schema>)
    const job = await ichido().submit(kind, null)
    expect(await thrownBy(job.result())).toMatchObject({
      name: 'JobFailed',
      code,
      failure: { code, message: expect.stringContaining(message) },
    })
    expect((await job.get()).runs).toHaveLength(1)
  })

  test('a stored payload that no longer matches its schema fails the job', async () => {
    const name = unique('changed')
    const job = await ichido().submit(name, { old: true })
    ichido().handle(defineKind(name, { payload: z.object({ fresh: z.boolean() }) }), () => {})
    expect(await thrownBy(job.result())).toMatchObject({
      code: 'INVALID_VALUE',
      failure: { message: expect.stringContaining('payload.fresh: ') },
    })
  })

  test('a handler that returns nothing has the result null', async () => {
    const kind = defineKind(unique('silent'))
    ichido().handle(kind, () => {})
    expect(await (await ichido().submit(kind, undefined)).result()).toBeNull()
  })

  function circular(): unknown {
    const value: Record<string, unknown> = {}
    value.self = value
    return value
  }
})
