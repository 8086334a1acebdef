import type { World } from '@ichido/sdk'
import { expect, test } from 'vitest'
import { realWorld } from '../node/world.ts'
import { eachEmbedded, embedded, thrownBy } from '../testing/services/embedded.ts'
import { unique, until } from '../testing/store/store.ts'
import { defineKind } from './index.ts'

const FAST = { backoff: { baseSeconds: 0.1, jitter: 0 } }

function aborted(signal: AbortSignal): Promise<unknown> {
  return new Promise((resolve) => signal.addEventListener('abort', () => resolve(signal.reason)))
}

/** Time that passes 50 times as fast. */
const hurried: World = {
  ...realWorld,
  monotonic: () => realWorld.monotonic() * 50,
  after: (ms, callback) => realWorld.after(ms / 50, callback),
}

eachEmbedded(({ ichido, storage, engine }) => {
  test('a waiting job is canceled at once', async () => {
    const kind = defineKind(unique('waiting'))
    const job = await ichido().submit(kind, null)
    const result = thrownBy(job.result())
    expect(await job.cancel()).toMatchObject({ state: 'CANCELED' })
    expect(await result).toMatchObject({ name: 'JobCanceled', code: 'CANCELED' })
    expect(await job.cancel()).toMatchObject({ state: 'CANCELED' })
    let called = false
    ichido().handle(kind, () => {
      called = true
    })
    const next = await ichido().submit(kind, null)
    // The queue was served beyond the canceled job.
    await until('the next job', async () => (await next.state()) === 'SUCCEEDED')
    expect(called).toBe(true)
    expect((await job.get()).runs).toMatchObject([{ state: 'CANCELED', started_at: null }])
    expect(await thrownBy(next.cancel())).toMatchObject({ code: 'ALREADY_ENDED', details: { state: 'SUCCEEDED' } })
  })

  test.each([
    ['returns a result all the same', (reason: unknown) => ({ reason: String(reason) })],
    [
      'gives up',
      (reason: unknown) => {
        throw reason
      },
    ],
  ])('a canceled running job ends canceled when its handler %s', async (_, end) => {
    // No heartbeat comes in time to tell it.
    const kind = defineKind(unique('canceled'), { leaseTtlSeconds: 3600, continuationSeconds: 3600 })
    const began = Promise.withResolvers<void>()
    let reason: unknown
    ichido().handle(kind, async ({ signal }) => {
      began.resolve()
      reason = await aborted(signal)
      return end(reason)
    })
    const job = await ichido().submit(kind, null)
    await began.promise
    expect(await job.cancel()).toMatchObject({ state: 'RUNNING', cancel_requested_at: expect.any(String) })
    expect(await thrownBy(job.result())).toMatchObject({ name: 'JobCanceled', code: 'CANCELED' })
    expect(reason).toMatchObject({ name: 'Stopped', code: 'CANCELED' })
    expect((await job.get()).runs).toHaveLength(1)
  })

  test('a run over its time limit is stopped and retried like any failure', async () => {
    const kind = defineKind(unique('slow'), { ...FAST, timeoutSeconds: 0.2, maxAttempts: 2 })
    const reasons: unknown[] = []
    ichido().handle(kind, async ({ signal }) => {
      reasons.push(await aborted(signal))
      return 'half of it'
    })
    const job = await ichido().submit(kind, null)
    const error = { code: 'TIMEOUT', message: 'The run took longer than 0.2 s' }
    expect(await thrownBy(job.result())).toMatchObject({
      name: 'JobFailed',
      code: 'TIMEOUT',
      state: 'FAILED',
      failure: error,
    })
    expect(reasons).toMatchObject([error, error])
    expect((await job.get()).runs).toMatchObject([{ state: 'FAILED' }, { state: 'FAILED', retry_count: 1 }])
  })

  test('never more runs at once than the concurrency', async () => {
    const kind = defineKind(unique('many'))
    const jobs = await Promise.all(Array.from({ length: 12 }, () => ichido().submit(kind, null)))
    let now = 0
    let most = 0
    const full = Promise.withResolvers<void>()
    ichido().handle(
      kind,
      async () => {
        most = Math.max(most, ++now)
        if (now === 4) full.resolve()
        await full.promise
        await new Promise((resolve) => setImmediate(resolve))
        now--
      },
      { concurrency: 4 },
    )
    await Promise.all(jobs.map((job) => job.result()))
    expect(most).toBe(4)
  })

  test('a run that outlives its lease time keeps its lease', async () => {
    const kind = defineKind(unique('long'), { leaseTtlSeconds: 2, continuationSeconds: 3 })
    // Longer than lease and continuation together. Both are longer than a busy machine may keep a process waiting.
    ichido().handle(kind, async ({ signal }) => {
      await new Promise((resolve) => setTimeout(resolve, 6_500))
      return signal.aborted
    })
    const job = await ichido().submit(kind, null)
    expect(await job.result()).toBe(false)
    expect(await job.get()).toMatchObject({ state: 'SUCCEEDED', attempt: 1, retry_count: 0 })
  })

  test('delayed jobs do not run early', async () => {
    const kind = defineKind(unique('delayed'))
    ichido().handle(kind, () => {}, { concurrency: 3 })
    const runAt = new Date(Date.now() + 2_000)
    const delayed = await ichido().submit(kind, null, { delaySeconds: 0.5 })
    const later = await ichido().submit(kind, null, { runAt })
    await Promise.all([delayed.result(), later.result()])
    for (const job of [delayed, later]) {
      const { run_at, started_at, created_at } = await job.get()
      expect(Date.parse(run_at)).toBeGreaterThan(Date.parse(created_at))
      expect(Date.parse(started_at ?? '')).toBeGreaterThanOrEqual(Date.parse(run_at))
    }
    expect((await later.get()).run_at).toBe(runAt.toISOString())
  })

  test('higher priorities go first; equal ones keep their order', async () => {
    const kind = defineKind(unique('ordered'), { priority: 2 })
    for (const [n, priority] of [0, 5, undefined, -5, 5, 0].entries()) {
      await ichido().submit(kind, n, priority === undefined ? {} : { priority })
    }
    const order: unknown[] = []
    const done = Promise.withResolvers<void>()
    ichido().handle(kind, ({ payload }) => {
      if (order.push(payload) === 6) done.resolve()
    })
    await done.promise
    expect(order).toEqual([1, 4, 2, 0, 5, 3])
  })

  test('close waits for runs and takes no more work; later calls are refused', async () => {
    const place = storage()
    const own = await embedded(place)
    const kind = defineKind(unique('drained'))
    const began = Promise.withResolvers<void>()
    const end = Promise.withResolvers<string>()
    own.handle(kind, () => {
      began.resolve()
      return end.promise
    })
    const first = await own.submit(kind, null)
    await began.promise
    const second = await own.submit(kind, null)
    const [result, never] = [first.result(), thrownBy(second.result())]
    const closing = own.close()
    expect(own.close()).toBe(closing)
    expect(() => own.handle(kind, () => 'x')).toThrow('This Ichido was closed')
    end.resolve('done')
    await closing
    await own.close()
    expect(await result).toBe('done')
    const closed = new Error('This Ichido was closed')
    expect(await never).toEqual(closed)
    for (const call of [() => own.submit(kind, null), () => own.list(), () => first.get(), () => first.result()]) {
      expect(await thrownBy(call())).toEqual(closed)
    }
    expect(own.troubles).toEqual([])

    const after = await embedded(place)
    expect(await after.job(first.id).state()).toBe('SUCCEEDED')
    expect(await after.job(second.id).get()).toMatchObject({ state: 'PENDING', attempt: 0 })
    await after.close()
  })

  test('a run that exceeds the drain time is stopped and released without a retry', async () => {
    const place = storage()
    const own = await embedded(place)
    const kind = defineKind(unique('stubborn'), FAST)
    const began = Promise.withResolvers<void>()
    own.handle(kind, async ({ signal }) => {
      began.resolve()
      throw await aborted(signal)
    })
    const job = await own.submit(kind, null)
    await began.promise
    await own.close({ drainMs: 50 })

    const after = await embedded(place)
    expect((await after.job(job.id).get()).runs).toMatchObject([
      { state: 'FAILED', error: { code: 'RELEASED' }, retry_count: 0 },
      { state: 'PENDING', retry_count: 0 },
    ])
    after.handle(kind, ({ job: { attempt } }) => attempt)
    expect(await after.job(job.id).result()).toBe(2)
    await after.close()
  })

  test('a handler that ignores its stop keeps its run, not the process', async () => {
    const place = storage()
    const own = await embedded(place, hurried)
    const kind = defineKind(unique('deaf'), FAST)
    const began = Promise.withResolvers<void>()
    const end = Promise.withResolvers<string>()
    own.handle(kind, () => {
      began.resolve()
      return end.promise
    })
    const job = await own.submit(kind, null)
    await began.promise
    await own.close({ drainMs: 0 })
    expect(own.troubles).toMatchObject([
      {
        message: expect.stringMatching(`Closed, but the handler of ${kind.name} .*: job ${job.id}, attempt 1$`),
      },
    ])

    if (engine === 'sqlite') {
      // The next process that opens the folder takes over its runs.
      expect(await thrownBy(embedded(place))).toMatchObject({ name: 'StoreInUse' })
      end.resolve('unheard')
      const after = await until('the folder to be free', () => embedded(place).catch(() => null))
      after.handle(kind, ({ job: { attempt } }) => attempt)
      expect(await after.job(job.id).result()).toBe(2)
      await after.close()
    } else {
      end.resolve('unheard')
      expect(await ichido().job(job.id).get()).toMatchObject({ state: 'RUNNING', runs: [{ state: 'RUNNING' }] })
    }
    expect(own.troubles).toHaveLength(1)
  })

  test('an invalid kind or handler is refused and does not affect others', async () => {
    const kind = defineKind(unique('good'))
    ichido().handle(kind, () => 'done')
    for (const bad of ['text', undefined, null, {}, { name: 'a b', queue: 'default', options: {} }]) {
      expect(() => ichido().handle(bad as never, () => {})).toThrow(TypeError)
    }
    expect(() => ichido().handle('text' as never, () => {})).toThrow(
      'A kind must come from defineKind(), but it is string',
    )
    const other = defineKind(unique('other'))
    expect(() => ichido().handle(other, undefined as never)).toThrow(`The handler of ${other.name} must be a function`)
    expect(() => ichido().handle(kind, () => 'a stub')).toThrow(`The kind ${kind.name} already has a handler`)
    expect(await (await ichido().submit(kind, null)).result()).toBe('done')
  })

  test('after close no timer keeps the process alive', async () => {
    const pending = new Map<() => void, number>()
    const after: World['after'] = (ms, callback) => {
      const callOff = realWorld.after(ms, () => {
        pending.delete(over)
        callback()
      })
      const over = () => {
        pending.delete(over)
        callOff()
      }
      pending.set(over, ms)
      return over
    }
    const own = await embedded(storage(), { ...realWorld, after })
    const kind = defineKind(unique('busy'))
    own.handle(kind, ({ progress }) => progress('half'))
    const job = await own.submit(kind, null, { key: kind.name })
    expect(await own.submit(kind, null, { key: kind.name })).toMatchObject({ replayed: true })
    for await (const _ of job.watch());
    expect(await job.result()).toBeNull()
    await own.close()
    expect([...pending.values()]).toEqual([])
  })

  test('close is quick without runs', async () => {
    const own = await embedded(storage())
    own.handle(defineKind(unique('idle')), () => {})
    const began = performance.now()
    await own.close()
    expect(performance.now() - began).toBeLessThan(10_000)
  })
})
