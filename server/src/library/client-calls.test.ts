import { type BatchItem, Client, defineKind, httpTransport, type Job, type UploadProgress } from '@ichido/sdk/client'
import { afterAll, beforeAll, describe, expect, expectTypeOf, test } from 'vitest'
import { z } from 'zod'
import { LOCAL_ADMIN } from '../services/access/access.ts'
import { type TestApp, testApp } from '../testing/http/app.ts'
import { sha256Of, someBytes, testBlobs } from '../testing/services/artifacts.ts'
import { thrownBy } from '../testing/services/embedded.ts'
import { unique } from '../testing/store/store.ts'
import { CostLimit, KeyReused, QuotaExceeded } from './index.ts'
import { localTransport } from './local-transport.ts'

/** Two parts of an upload over HTTP. */
const BYTES = 5 * 1024 * 1024

let http: TestApp
let close: () => Promise<void>
const clients: Record<string, Client> = {}
beforeAll(async () => {
  const place = await testBlobs()
  http = await testApp('sqlite', { deps: { blobs: place.blobs } })
  const url = await http.app.listen({ host: '127.0.0.1', port: 0 })
  const noTx = () => Promise.reject(new Error('No test here has a transaction'))
  clients['over HTTP'] = new Client(httpTransport({ url }))
  clients['in process'] = new Client(localTransport(http.services, LOCAL_ADMIN, noTx))
  close = async () => {
    await http.close()
    place.remove()
  }
})
afterAll(() => close())

describe.each(['over HTTP', 'in process'])('%s', (how) => {
  const client = () => {
    const found = clients[how]
    if (found === undefined) throw new Error('It is there while tests run')
    return found
  }
  const limit = (max_concurrent: number | null, cost_limit: number | null) =>
    http.services.quotas.put(LOCAL_ADMIN, LOCAL_ADMIN.userId, { max_concurrent, cost_limit, period: 'day' })

  test('each job of a batch has its own outcome at its index', async () => {
    const kind = unique('batch')
    await client().submit(kind, 1, { key: kind })
    const outcomes = await client().batch([
      { kind, payload: 1, key: kind },
      { kind, payload: 2, key: kind },
      { kind: 'no kind', payload: 3 },
      { kind, payload: 4, delaySeconds: 60 },
    ])
    expect(outcomes).toMatchObject([
      { status: 'fulfilled', value: { replayed: true, warnings: [] } },
      { status: 'rejected', reason: { name: 'KeyReused', code: 'IDEMPOTENCY_KEY_REUSED' } },
      { status: 'rejected', reason: { code: 'INVALID_PAYLOAD', details: { field: 'kind' } } },
      { status: 'fulfilled', value: { replayed: false } },
    ])
    expect((await client().list({ kind })).data).toHaveLength(2)
    const error = await thrownBy(client().batch([]))
    expect(error).toMatchObject({ code: 'INVALID_PAYLOAD', details: { field: 'jobs' } })
  })

  test('a job that its kind refuses does not affect the others of a batch', async () => {
    const kind = defineKind(unique('batch'), {
      payload: z.object({ n: z.int().transform(BigInt) }),
      result: z.object({ sum: z.int().transform(String) }),
    })
    const half = { n: 1.5 }
    const outcomes = await client().batch([
      { kind, payload: { n: 1 } },
      { kind, payload: half },
      { kind: kind.name, payload: 'of no schema' },
      { kind, payload: { n: 4 }, runAt: new Date('nope') },
      { kind, payload: { n: 5 } },
    ])
    expect(outcomes).toMatchObject([
      { status: 'fulfilled' },
      { status: 'rejected', reason: { name: 'InvalidValue', message: expect.stringContaining('payload.n: ') } },
      { status: 'fulfilled' },
      { status: 'rejected', reason: { code: 'INVALID_PAYLOAD', message: 'runAt must be a valid Date' } },
      { status: 'fulfilled' },
    ])
    const ids = outcomes.map((outcome) => (outcome.status === 'fulfilled' ? outcome.value.id : null))
    const payloads = ids.map(async (id) => (id === null ? null : (await client().job(id).get()).payload))
    expect(await Promise.all(payloads)).toEqual([{ n: 1 }, null, 'of no schema', null, { n: 5 }])
    expect((await client().list({ kind: kind.name })).data).toHaveLength(3)
    expect(await client().batch([{ kind, payload: half }])).toMatchObject([{ status: 'rejected' }])
    expectTypeOf(outcomes[0]).toEqualTypeOf<PromiseSettledResult<Job<{ sum: string }>>>()
    expectTypeOf(outcomes[2]).toEqualTypeOf<PromiseSettledResult<Job>>()
    const never = () => {
      void client().batch([
        { kind: 'any', payload: { m: 1 } },
        // @ts-expect-error a payload that is not of its kind
        { kind, payload: { m: 1 } },
      ])
      const many = [1, 2].map((n) => ({ kind, payload: { n }, key: String(n) }))
      expectTypeOf(client().batch(many)).resolves.toEqualTypeOf<PromiseSettledResult<Job<{ sum: string }>>[]>()
      const items: BatchItem[] = [
        { kind, payload: null },
        { kind: 'any', payload: 1 },
      ]
      expectTypeOf(client().batch(items)).resolves.toEqualTypeOf<PromiseSettledResult<Job>[]>()
    }
    expectTypeOf(never).toBeFunction()
  })

  test.each([42, true, {}])('%o as key is refused', async (value) => {
    const [kind, key] = [unique('keyed'), value as never]
    const refused = {
      code: 'INVALID_PAYLOAD',
      message: 'key must be a string',
      details: { field: 'key' },
    }
    expect(await thrownBy(client().submit(kind, 1, { key }))).toMatchObject(refused)
    const outcomes = await client().batch([{ kind, payload: 1, key }])
    expect(outcomes).toMatchObject([{ status: 'rejected', reason: refused }])
    expect((await client().list({ kind })).data).toEqual([])
    const job = await client().submit(kind, 1)
    await job.cancel()
    expect(await thrownBy(job.retry({ payload: 2, key }))).toMatchObject({
      code: 'INVALID_PAYLOAD',
      message: expect.stringContaining('key must be a string'),
    })
  })

  test('a job is retried, or replaced by a new one', async () => {
    const job = await client().submit(unique('again'), { n: 1 })
    expect(await thrownBy(job.retry())).toMatchObject({ code: 'NOT_ENDED' })
    await job.cancel()
    const again = await job.retry()
    expect([again.id, await again.state()]).toEqual([job.id, 'PENDING'])
    await job.cancel()
    const key = unique('"odd\\key')
    const other = await job.retry({ payload: { n: 2 }, key })
    expect(await other.get()).toMatchObject({ payload: { n: 2 }, replaces_job_id: job.id, idempotency_key: key })
    expect(await job.retry({ payload: { n: 2 }, key })).toMatchObject({ id: other.id, replayed: true })
    expect(await thrownBy(job.retry({ payload: { n: 3 }, key }))).toBeInstanceOf(KeyReused)
    expect(await thrownBy(job.retry())).toMatchObject({ code: 'ALREADY_REPLACED', details: { job_id: other.id } })
  })

  test('reservations are held, consumed and released; a full quota has its own class', async () => {
    const { active_jobs: active } = await limit(null, null)
    await limit(active + 1, 0)
    const { reservations } = client()
    const held = await reservations.reserve({ ttlSeconds: 60 })
    expect(held).toMatchObject({
      state: 'active',
      quota_warnings: [`${active + 1} of ${active + 1} concurrent jobs in use`],
    })
    const kind = unique('reserved')
    for (const call of [() => reservations.reserve(), () => client().submit(kind, null)]) {
      expect(await thrownBy(call())).toBeInstanceOf(QuotaExceeded)
    }
    const { reservation_id: reservationId } = held
    const costly = client().submit(kind, null, { reservationId, estimatedCost: 1 })
    expect(await thrownBy(costly)).toBeInstanceOf(CostLimit)
    expect((await reservations.list({ active: true })).data).toMatchObject([{ reservation_id: reservationId }])
    expect(await reservations.release(reservationId)).toMatchObject({ state: 'released' })
    const job = await client().submit(kind, null)
    await limit(null, null)
    const { reservation_id: second } = await reservations.reserve()
    expect(await reservations.consume(second, job.id)).toMatchObject({ state: 'consumed', job_id: job.id })
    expect((await reservations.list({ active: true })).data).toEqual([])
    expect(await thrownBy(reservations.reserve({ ttlSeconds: -1 }))).toMatchObject({
      message: expect.stringMatching(/^ttlSeconds must /),
      details: { field: 'ttlSeconds' },
    })
    expect(await thrownBy(reservations.list({ cursor: 'x' }))).toMatchObject({ details: { field: 'cursor' } })
  })

  test('an artifact is uploaded with progress, listed and downloaded', async () => {
    const bytes = someBytes(BYTES)
    const job = await client().submit(unique('files'), null, {
      artifacts: [{ name: 'data.bin', sizeBytes: BYTES }, { name: 'empty' }],
      uploadTtlSeconds: 60,
    })
    const told: UploadProgress[] = []
    const { artifacts } = client()
    const sent = await artifacts.upload(bytes, {
      name: 'data.bin',
      jobId: job.id,
      onProgress: (progress) => void told.push(progress),
    })
    expect(sent).toMatchObject({ state: 'ready', job_id: job.id, size_bytes: BYTES, sha256: sha256Of(bytes) })
    const parts = how === 'over HTTP' ? [{ sentBytes: 4 * 1024 * 1024, totalBytes: BYTES }] : []
    expect(told).toEqual([...parts, { sentBytes: BYTES, totalBytes: BYTES }])
    expect((await artifacts.upload(new Uint8Array(), { name: 'empty', jobId: job.id })).size_bytes).toBe(0)
    expect((await artifacts.list(job.id)).map(({ name, state }) => [name, state])).toEqual([
      ['data.bin', 'ready'],
      ['empty', 'ready'],
    ])
    expect(await job.get()).toMatchObject({ awaits_artifacts: false })
    const stream = await artifacts.download(sent.artifact_id)
    expect(sha256Of(Buffer.from(await new Response(stream).arrayBuffer()))).toBe(sent.sha256)
  })

  test('an upload that cannot be sent is refused with its name', async () => {
    const job = await client().submit(unique('files'), null, { artifacts: [{ name: 'a', sizeBytes: 3 }] })
    const send = (options: { name: string; jobId?: string; sha256?: string }) =>
      thrownBy(client().artifacts.upload(new Uint8Array(4), { jobId: job.id, ...options }))
    expect(await send({ name: '../x' })).toMatchObject({ code: 'INVALID_PAYLOAD', details: { field: 'name' } })
    expect(await send({ name: 'a' })).toMatchObject({ code: 'INVALID_PAYLOAD', details: { field: 'sizeBytes' } })
    expect(await send({ name: 'a', sha256: 'x' })).toMatchObject({ details: { field: 'sha256' } })
    expect(await send({ name: 'b' })).toMatchObject({ code: 'NOT_FOUND' })
    const why = new Error('enough')
    const aborted = client().artifacts.upload(new Uint8Array(3), {
      name: 'a',
      jobId: job.id,
      signal: AbortSignal.abort(why),
    })
    expect(await thrownBy(aborted)).toBe(why)
    expect(await client().artifacts.list(job.id)).toMatchObject([{ name: 'a', state: 'awaited' }])
  })
})
