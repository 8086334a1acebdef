import { afterAll, beforeAll, expect, test } from 'vitest'
import { LOCAL_ADMIN } from '../services/access/access.ts'
import { type TestApp, testApp } from '../testing/http/app.ts'
import { eachEmbedded, thrownBy } from '../testing/services/embedded.ts'
import { unique } from '../testing/store/store.ts'
import { defineKind, Fatal, type Ichido, IchidoError, JobCanceled, JobFailed, open } from './index.ts'

eachEmbedded(({ ichido }) => {
  test('the lines of a handler are in the log before its outcome', async () => {
    const kind = defineKind(unique('logging'), { maxAttempts: 2, backoff: { baseSeconds: 0 } })
    ichido().handle(kind, async ({ log, job, progress }) => {
      log(`attempt ${job.attempt} begins`)
      await progress('half')
      log('and ends')
      if (job.attempt === 1) throw new Error('not yet')
    })
    const job = await ichido().submit(kind, null)
    await job.result()
    const { logs } = ichido().node.services
    const { data } = await logs.read(LOCAL_ADMIN, job.id, { after: null }, 100)
    const text = (runNo: number) => data.flatMap(({ run_no, text }) => (run_no === runNo ? text : [])).join('')
    expect([text(1), text(2)]).toEqual(['attempt 1 begins\nand ends\n', 'attempt 2 begins\nand ends\n'])
    expect(data.every(({ stream }) => stream === 'stdout')).toBe(true)
  })

  test('a refused event names the field as the handler knows it', async () => {
    const kind = defineKind(unique('telling'))
    ichido().handle(kind, async ({ progress }) => String(await thrownBy(progress({ run_at: 'a\0b' }))))
    const job = await ichido().submit(kind, null)
    expect(await job.result()).toBe('IchidoError: data.run_at has a NUL character in a string')
  })

  test('a job without a result rejects with JobFailed or JobCanceled, even after a watch', async () => {
    const kind = defineKind(unique('ending'))
    ichido().handle(kind, () => {
      throw new Fatal('NOT_FOUND', 'No such image')
    })
    const failed = await ichido().submit(kind, null)
    const states: unknown[] = []
    for await (const { data } of failed.watch()) states.push(data)
    expect(states.at(-1)).toMatchObject({ state: 'FAILED' })
    const error = await thrownBy(failed.result())
    expect(error).toBeInstanceOf(JobFailed)
    // The job's own code, which is not to be taken for one of Ichido's.
    expect(error).not.toBeInstanceOf(IchidoError)
    expect(error).toMatchObject({ code: 'NOT_FOUND', failure: { message: 'No such image' } })

    const canceled = await ichido().submit(unique('waiting'), null)
    await canceled.cancel()
    for await (const _ of canceled.watch());
    const why = await thrownBy(canceled.result())
    expect(why).toBeInstanceOf(JobCanceled)
    expect(why).toMatchObject({ code: 'CANCELED', jobId: canceled.id, message: `Job ${canceled.id} was canceled` })
  })
})

let served: TestApp
let remote: Ichido
beforeAll(async () => {
  served = await testApp('sqlite')
  remote = await open({ url: await served.app.listen({ host: '127.0.0.1', port: 0 }) })
})
afterAll(async () => {
  await remote.close()
  await served.close()
})

test('a job without a result rejects with the same classes over HTTP', async () => {
  const queue = unique('ended')
  const failing = await remote.submit(defineKind('fails', { queue, maxAttempts: 1 }), null)
  const { runs } = served.services
  const [lease] = await runs.lease('w', { queues: [queue], kinds: [], max: 1, waitMs: 0, startId: 'p' })
  const error = { code: 'NO_SUCH_IMAGE', message: 'Gone' }
  await runs.finish('w', lease?.lease_id ?? '', { verb: 'fail', error, retryable: false })
  const failed = await thrownBy(failing.result())
  expect(failed).toBeInstanceOf(JobFailed)
  expect(failed).toMatchObject({ code: 'NO_SUCH_IMAGE', state: 'FAILED', failure: error, jobId: failing.id })

  const canceled = await remote.submit('later', null, { delaySeconds: 60 })
  await canceled.cancel()
  expect(await thrownBy(canceled.result())).toBeInstanceOf(JobCanceled)
})

test('a refusal over HTTP names the option of the library', async () => {
  const submit = (options: object) => thrownBy(remote.submit('work', { run_at: 1 }, options))
  const refused: [options: object, field: string][] = [
    [{ delaySeconds: -1 }, 'delaySeconds'],
    [{ maxAttempts: 101 }, 'maxAttempts'],
    [{ timeoutSeconds: 0 }, 'timeoutSeconds'],
    [{ backoff: { capSeconds: -1 } }, 'backoff.capSeconds'],
    [{ estimatedCost: -1 }, 'estimatedCost'],
    [{ keyTtlHours: -1 }, 'keyTtlHours'],
    [{ reservationId: 'x' }, 'reservationId'],
    [{ uploadTtlSeconds: 0, artifacts: [{ name: 'a' }] }, 'uploadTtlSeconds'],
    [{ key: 'a b' }, 'key'],
  ]
  for (const [options, field] of refused) {
    expect(await submit(options)).toMatchObject({
      code: 'INVALID_PAYLOAD',
      message: expect.stringMatching(new RegExp(`^${field} `)),
      details: { field },
    })
  }
  expect(await submit({ delaySeconds: 1, runAt: new Date() })).toMatchObject({
    message: 'runAt and delaySeconds exclude each other',
  })
  const job = await remote.submit('work', null, { maxAttempts: 2, timeoutSeconds: 9, backoff: { baseSeconds: 1 } })
  expect((await job.get()).policy).toMatchObject({
    max_attempts: 2,
    timeout_seconds: 9,
    backoff: { base_seconds: 1 },
  })
})
