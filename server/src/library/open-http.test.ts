import { afterAll, beforeAll, expect, test } from 'vitest'
import { z } from 'zod'
import { LOCAL_ADMIN } from '../services/access/access.ts'
import { type TestApp, testApp } from '../testing/http/app.ts'
import { thrownBy } from '../testing/services/embedded.ts'
import { unique } from '../testing/store/store.ts'
import { defineKind, type Ichido, open } from './index.ts'

let served: TestApp
let url: string
let ichido: Ichido
beforeAll(async () => {
  served = await testApp('sqlite', { basePath: '/jobs' })
  const token = await served.token('ann', 'submitter')
  url = `${await served.app.listen({ host: '127.0.0.1', port: 0 })}/jobs/`
  ichido = await open({ url, token })
})
afterAll(async () => {
  await ichido.close()
  await served.close()
})

const sum = defineKind('sum', { payload: z.object({ of: z.array(z.int()) }), result: z.object({ sum: z.int() }) })

/** As a worker elsewhere would. */
async function work(queue = 'default'): Promise<void> {
  const call = { queues: [queue], kinds: ['sum'], max: 1, waitMs: 10_000, startId: 'p' }
  const [lease] = await served.services.runs.lease('w', call)
  if (lease === undefined) throw new Error('There should be a run to lease')
  await served.services.events.publish('w', lease.lease_id, { stage: 'progress', seq: 1, data: 'half' })
  const result = JSON.stringify({ sum: 6 })
  const report = { verb: 'finish', result, summaryText: null, freqsCsv: null, meta: null, costMicros: null } as const
  await served.services.runs.finish('w', lease.lease_id, report)
}

test('the API over HTTP is the same', async () => {
  const job = await ichido.submit(sum, { of: [1, 2, 3] }, { key: 'first', labels: { env: 'test' } })
  expect(job.replayed).toBe(false)
  expect(await ichido.submit(sum, { of: [1, 2, 3] }, { key: 'first', labels: { env: 'test' } })).toMatchObject({
    id: job.id,
    replayed: true,
  })
  const [result] = await Promise.all([job.result(), work()])
  expect(result).toEqual({ sum: 6 })
  const stages: unknown[] = []
  for await (const { stage, data } of job.watch()) stages.push([stage, data])
  expect(stages).toEqual([
    ['run', { state: 'PENDING' }],
    ['run', { state: 'RUNNING', attempt: 1 }],
    ['progress', 'half'],
    ['run', { state: 'SUCCEEDED', attempt: 1 }],
  ])
  expect(await ichido.job(job.id).get()).toMatchObject({ user_id: 'ann', state: 'SUCCEEDED', idempotency_key: 'first' })
  expect((await ichido.list({ label: 'env:test', state: 'SUCCEEDED' })).data).toMatchObject([{ job_id: job.id }])
})

test('a trigger works over HTTP as in process', async () => {
  const topic = unique('topic')
  const first = await ichido.trigger(topic, { id: 7 }, { dedupeKey: topic })
  expect(first).toMatchObject({ duplicate: false })
  expect(await ichido.trigger(topic, { id: 7 }, { dedupeKey: topic })).toEqual({ ...first, duplicate: true })
  expect(await ichido.trigger(topic)).toMatchObject({ duplicate: false })
})

test('refusals over HTTP have the same messages as in process', async () => {
  await ichido.submit(sum, { of: [1] }, { key: 'used' })
  const reused = await thrownBy(ichido.submit(sum, { of: [2] }, { key: 'used' }))
  expect(reused).toMatchObject({
    name: 'KeyReused',
    code: 'IDEMPOTENCY_KEY_REUSED',
    details: { job_id: expect.any(String), request_id: expect.any(String) },
  })
  expect(await ichido.submit(sum, { of: [3] }, { key: '"quoted' })).toMatchObject({ replayed: false })
  for (const key of ['日本', 'a b', '']) {
    const error = await thrownBy(ichido.submit(sum, { of: [3] }, { key }))
    expect(error).toMatchObject({
      code: 'INVALID_PAYLOAD',
      message: expect.stringMatching(/^key /),
      details: { field: 'key' },
    })
  }
})

test('a canceled job is reported, and the job of another user does not exist', async () => {
  const job = await ichido.submit(sum, { of: [] }, { delaySeconds: 60 })
  expect(await job.cancel()).toMatchObject({ state: 'CANCELED' })
  expect(await thrownBy(job.result())).toMatchObject({ name: 'JobCanceled', code: 'CANCELED' })
  const others = await served.services.submission.submit(LOCAL_ADMIN, { kind: unique('kind') }, { key: null })
  if (others.kind === 'refused') throw new Error('It should have been accepted')
  expect(await thrownBy(ichido.job(others.jobId).get())).toMatchObject({ code: 'NOT_FOUND' })
  expect(await thrownBy((await open({ url, token: 'wrong' })).list())).toMatchObject({ code: 'UNAUTHENTICATED' })
})

test('handlers and transactions require a store in the process', async () => {
  expect(() => ichido.handle(sum, () => ({ sum: 0 }))).toThrow(TypeError)
  expect(await thrownBy(ichido.submit(sum, { of: [] }, { tx: {} }))).toBeInstanceOf(TypeError)
})

test('in-process options and invalid URLs are refused', async () => {
  expect(await thrownBy(ichido.submit(sum, { of: [] }, { user: 'bob' }))).toMatchObject({
    message: 'user works in process only; over HTTP the token determines the owner',
  })
  await expect(open({ url: 'localhost:8001' })).rejects.toThrow(
    'url must begin with http:// or https://, but is "localhost:8001"',
  )
})

test('after close nothing is sent', async () => {
  const other = await open({ url, token: await served.token('bob', 'submitter') })
  await other.submit(sum, { of: [1] }, { key: 'before' })
  await other.close()
  expect(await thrownBy(other.submit(sum, { of: [2] }, { key: 'after' }))).toMatchObject({
    message: 'This Ichido was closed',
  })
  const { data } = await served.services.keys.list({ userId: 'bob', role: 'submitter' }, true, 9, null)
  expect(data).toMatchObject([{ key: 'before' }])
})
