import type { JobListFilter } from '@ichido/sdk'
import { expect, test } from 'vitest'
import { LOCAL_ADMIN } from '../services/access/access.ts'
import { eachEmbedded, thrownBy } from '../testing/services/embedded.ts'
import { unique, until } from '../testing/store/store.ts'
import { defineKind, type JobEvent, type JobState } from './index.ts'

async function all(events: AsyncIterable<JobEvent>): Promise<JobEvent[]> {
  const seen: JobEvent[] = []
  for await (const event of events) seen.push(event)
  return seen
}

eachEmbedded(({ ichido, engine }) => {
  test('the same key is the same job, in any order of members', async () => {
    const kind = unique('keyed')
    const first = await ichido().submit(kind, { a: 1, b: { c: 2, d: 3 } }, { key: kind })
    const again = await ichido().submit(kind, { b: { d: 3, c: 2 }, a: 1 }, { key: kind })
    expect([first.replayed, again.replayed, again.id === first.id]).toEqual([false, true, true])
    expect((await ichido().list({ key: kind })).data).toHaveLength(1)
  })

  test('concurrent submissions with one key are one job', async () => {
    const kind = unique('crowd')
    const jobs = await Promise.all(Array.from({ length: 50 }, () => ichido().submit(kind, null, { key: kind })))
    expect(new Set(jobs.map(({ id }) => id)).size).toBe(1)
    expect(jobs.filter(({ replayed }) => !replayed)).toHaveLength(1)
  })

  test('the same key with another payload or policy is refused and names the first job', async () => {
    const kind = defineKind(unique('mismatch'))
    const first = await ichido().submit(kind, { n: 1 }, { key: kind.name })
    const refused = { code: 'IDEMPOTENCY_KEY_REUSED', details: { job_id: first.id } }
    expect(await thrownBy(ichido().submit(kind, { n: 2 }, { key: kind.name }))).toMatchObject(refused)
    expect(await thrownBy(ichido().submit(kind, { n: 1 }, { key: kind.name, priority: 1 }))).toMatchObject(refused)
    const patient = defineKind(kind.name, { maxAttempts: 9 })
    expect(await thrownBy(ichido().submit(patient, { n: 1 }, { key: kind.name }))).toMatchObject(refused)
    expect((await ichido().list({ kind: kind.name })).data).toHaveLength(1)
  })

  test('a repeated trigger makes one job', async () => {
    const topic = unique('topic')
    const input = { kind: topic, payload: { order: { $from: 'id' } }, on: { topic } }
    await ichido().node.services.definitions.create(LOCAL_ADMIN, topic, input)
    const send = () => ichido().trigger(topic, { id: 7 }, { dedupeKey: topic })
    const sent = await Promise.all([send(), send(), send()])
    expect(new Set(sent.map(({ id }) => id)).size).toBe(1)
    expect(sent.filter(({ duplicate }) => !duplicate)).toHaveLength(1)
    const jobs = await until('the job', async () => {
      const { data } = await ichido().list({ kind: topic })
      return data.length > 0 ? data : undefined
    })
    expect(jobs).toMatchObject([{ definition: topic }])
    expect(
      await ichido()
        .job(jobs[0]?.job_id ?? '')
        .get(),
    ).toMatchObject({ payload: { order: 7 } })
    expect(await ichido().trigger(topic)).toMatchObject({ duplicate: false, createdAt: expect.any(Date) })
  })

  test('a refused trigger names the field', async () => {
    const field = async (sent: Promise<unknown>) => (await thrownBy(sent)) as { details: { field: string } }
    expect(await field(ichido().trigger('two words'))).toMatchObject({ details: { field: 'topic' } })
    const key = ichido().trigger('t', null, { dedupeKey: 'two words' })
    expect(await field(key)).toMatchObject({ details: { field: 'dedupeKey' } })
    expect(await field(ichido().trigger('t', 'x'.repeat(256 * 1024)))).toMatchObject({ details: { field: 'data' } })
  })

  test('a trigger that JSON would change, or with an unknown option, is not recorded', async () => {
    const topic = unique('topic')
    expect(await thrownBy(ichido().trigger(topic, { tags: [new Map()] }))).toMatchObject({
      name: 'InvalidValue',
      message: 'data.tags[0] is a Map, which JSON cannot hold: use Object.fromEntries(map)',
    })
    // Ignored, it would make each repetition a trigger of its own.
    const misspelled = { dedupe_key: topic } as object
    expect(await thrownBy(ichido().trigger(topic, null, misspelled))).toMatchObject({
      message: 'dedupe_key is not an option of a trigger; the options are dedupeKey, signal',
    })
    expect(
      (await ichido().node.services.triggers.list(LOCAL_ADMIN, { topic, definition: null, state: null }, 10, null))
        .data,
    ).toEqual([])
  })

  test('a job belongs to the given user, with the limits and keys of that user', async () => {
    const [kind, ann, bob] = [unique('owned'), unique('ann'), unique('bob')]
    await ichido().node.services.quotas.put(LOCAL_ADMIN, ann, { max_concurrent: 1, cost_limit: null, period: 'month' })
    const first = await ichido().submit(kind, null, { user: ann, key: kind })
    expect(await first.get()).toMatchObject({ user_id: ann })
    expect(await thrownBy(ichido().submit(kind, null, { user: ann }))).toMatchObject({ code: 'QUOTA_EXCEEDED' })
    for (const options of [{ user: bob, key: kind }, { key: kind }]) {
      expect(await ichido().submit(kind, null, options)).toMatchObject({ replayed: false })
    }
    // The process itself may ask for more than those that it submits for.
    const high = { priority: 101 }
    expect(await thrownBy(ichido().submit(kind, null, { user: bob, ...high }))).toMatchObject({
      code: 'INVALID_PAYLOAD',
      details: { field: 'priority' },
    })
    expect(await (await ichido().submit(kind, null, high)).get()).toMatchObject({ user_id: 'local', ...high })
    const nobody = await thrownBy(ichido().submit(kind, null, { user: 'a b' }))
    expect(nobody).toMatchObject({ code: 'INVALID_PAYLOAD', details: { field: 'user' } })
  })

  test('an unknown option is refused at run time', async () => {
    const kind = unique('leftover')
    const leftover = { jobId: 'a' } as object
    expect(await thrownBy(ichido().submit(kind, null, leftover))).toMatchObject({
      message: expect.stringMatching(/^jobId is not an option of a submission; the options are key, /),
    })
    for (const option of [leftover, { user: 'bob' }, { tx: {} }]) {
      expect(await ichido().batch([{ kind, payload: null, ...option }])).toMatchObject([{ status: 'rejected' }])
    }
    expect((await ichido().list({ kind })).data).toEqual([])
  })

  test('every option of a submission is stored', async () => {
    const kind = defineKind(unique('options'), {
      queue: 'slow',
      priority: 1,
      maxAttempts: 7,
      timeoutSeconds: 30,
      leaseTtlSeconds: 40,
      continuationSeconds: 50,
      backoff: { baseSeconds: 1, capSeconds: 2, jitter: 0.5 },
    })
    const traceparent = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
    const runAt = new Date(Date.now() + 3_600_000)
    const job = await ichido().submit(kind, 1, {
      key: kind.name,
      priority: 5,
      runAt,
      labels: { env: 'test' },
      estimatedCost: 0.25,
      keyTtlHours: 48,
      traceparent,
      callbackUrl: 'https://example.org/ended',
    })
    expect(await job.get()).toMatchObject({
      kind: kind.name,
      queue: 'slow',
      user_id: 'local',
      state: 'PENDING',
      priority: 5,
      run_at: runAt.toISOString(),
      labels: { env: 'test' },
      estimated_cost: 0.25,
      traceparent,
      callback: { url: 'https://example.org/ended', delivery: null },
      idempotency_key: kind.name,
      policy: {
        max_attempts: 7,
        timeout_seconds: 30,
        lease_ttl_seconds: 40,
        continuation_seconds: 50,
        backoff: { base_seconds: 1, cap_seconds: 2, jitter: 0.5 },
      },
    })
    const [key] = await ichido().node.services.keys.get({ userId: 'local', role: 'admin' }, kind.name)
    expect(Date.parse(key?.expires_at ?? '') - Date.parse(key?.created_at ?? '')).toBe(48 * 3_600_000)
  })

  test('a job takes its reservation', async () => {
    const caller = { userId: 'local', role: 'admin' } as const
    const { reservation_id } = await ichido().node.services.reservations.reserve(caller)
    const job = await ichido().submit(unique('reserved'), null, { reservationId: reservation_id })
    expect(await ichido().node.services.reservations.get(caller, reservation_id)).toMatchObject({
      state: 'consumed',
      job_id: job.id,
    })
    const again = ichido().submit(unique('reserved'), null, { reservationId: reservation_id })
    expect(await thrownBy(again)).toMatchObject({ code: 'RESERVATION_NOT_ACTIVE' })
  })

  test('lists continue at the cursor and accept the filters of HTTP', async () => {
    const kind = unique('listed')
    const ids: string[] = []
    for (let i = 0; i < 5; i++) {
      ids.unshift((await ichido().submit(kind, i, { labels: { even: String(i % 2 === 0) } })).id)
    }
    const first = await ichido().list({ kind, limit: 3 })
    const rest = await ichido().list({ kind, limit: 3, cursor: first.next_cursor ?? '' })
    expect([...first.data, ...rest.data].map(({ job_id }) => job_id)).toEqual(ids)
    expect(rest.next_cursor).toBeNull()
    expect((await ichido().list({ kind, label: 'even:true' })).data).toHaveLength(3)
    expect((await ichido().list({ kind, state: 'SUCCEEDED,FAILED' })).data).toEqual([])
    expect((await ichido().list({ kind, state: 'PENDING', queue: 'default' })).data).toHaveLength(5)
  })

  test('lists obey the filters by user and by time', async () => {
    const kind = unique('filtered')
    const ann = unique('ann')
    await ichido().submit(kind, null)
    const { id } = await ichido().submit(kind, null, { user: ann })
    const listed = async (filter: JobListFilter) => (await ichido().list({ kind, ...filter })).data.length
    expect((await ichido().list({ user_id: ann })).data).toMatchObject([{ job_id: id, user_id: ann }])
    expect(await listed({ user_id: unique('bob') })).toBe(0)
    const [past, future] = ['2001-02-03T04:05:06Z', '2101-02-03T04:05:06+01:00']
    expect([await listed({ created_after: past }), await listed({ created_after: future })]).toEqual([2, 0])
    expect([await listed({ created_before: past }), await listed({ created_before: future })]).toEqual([0, 2])
  })

  test.each([
    [{ state: 'ASLEEP' as JobState }, 'state'],
    [{ label: 'without a value' }, 'label'],
    [{ limit: 0 }, 'limit'],
    [{ limit: 1e9 }, 'limit'],
    [{ cursor: 'nowhere' }, 'cursor'],
  ])('a list with %o is refused', async (filter, field) => {
    const error = await thrownBy(ichido().list(filter))
    expect(error).toMatchObject({ code: 'INVALID_PAYLOAD', message: expect.stringContaining(field) })
  })

  test.each(['nowhere', '', '00000000-0000-7000-8000-000000000000'])('the job %j does not exist', async (id) => {
    const job = ichido().job(id)
    const calls = [job.get(), job.state(), job.cancel(), job.result(), job.watch().next()]
    for (const error of await Promise.all(calls.map(thrownBy))) expect(error).toMatchObject({ code: 'NOT_FOUND' })
  })

  test('every watcher sees every event once, in order, even if it resumes or starts late', async () => {
    const kind = defineKind(unique('watched'))
    const job = await ichido().submit(kind, null)
    const early = [all(job.watch()), all(job.watch())]
    ichido().handle(kind, async ({ progress }) => {
      for (let n = 1; n <= 20; n++) await progress({ n })
    })
    const [one, two] = await Promise.all(early)
    expect(one?.map(({ cursor }) => cursor)).toEqual(Array.from({ length: 23 }, (_, i) => i + 1))
    expect(one?.filter(({ stage }) => stage === 'progress').map(({ seq, data }) => ({ seq, data }))).toEqual(
      Array.from({ length: 20 }, (_, i) => ({ seq: i + 1, data: { n: i + 1 } })),
    )
    expect(two).toEqual(one)
    expect(await all(job.watch())).toEqual(one)
    expect(await all(job.watch({ after: 10 }))).toEqual(one?.slice(10))
    expect(await all(job.watch({ after: 23 }))).toEqual([])
  })

  test('an abort ends a wait', async () => {
    const job = await ichido().submit(unique('endless'), null)
    const controller = new AbortController()
    const { signal } = controller
    const waits = [job.result({ signal }), all(job.watch({ signal }))].map(thrownBy)
    controller.abort(new Error('enough'))
    expect(await Promise.all(waits)).toEqual([new Error('enough'), new Error('enough')])
  })

  test('a handler knows its attempt', async () => {
    const kind = defineKind(unique('told'))
    const traceparent = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
    ichido().handle(kind, ({ job }) => job)
    const job = await ichido().submit(kind, null, { traceparent })
    const leaseId = expect.stringMatching(/^[0-9a-f-]{36}\.[\w-]{22}$/)
    expect(await job.result()).toEqual({ id: job.id, attempt: 1, leaseId, traceparent })
  })

  test('tx requires PostgreSQL and a client', async () => {
    for (const tx of [true, 'tx', {}, null]) {
      const error = await thrownBy(ichido().submit(unique('tx'), null, { tx }))
      expect(error).toBeInstanceOf(TypeError)
      expect(String(error)).toContain(engine === 'sqlite' ? 'tx needs PostgreSQL' : 'tx must be a client of pg')
    }
  })
})
