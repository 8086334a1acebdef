import { expect, test } from 'vitest'
import { EVERY_EVENT, FIRST_EVENT } from '../../store/events/all-events.ts'
import { eachServices } from '../../testing/services/each-services.ts'
import { thrownBy } from '../../testing/services/embedded.ts'
import { removeEventsOf, sql, unique, until } from '../../testing/store/store.ts'
import { LOCAL_ADMIN } from '../access/access.ts'

const STAGES = ['vision', 'rule', 'answer', 'reward', 'done']

eachServices(({ services, submit }) => {
  const events = () => services().events
  const finished = {
    verb: 'finish',
    result: null,
    summaryText: null,
    freqsCsv: null,
    meta: null,
    costMicros: null,
  } as const

  async function running(input: object = {}): Promise<{ jobId: string; leaseId: string }> {
    const queue = unique('queue')
    const jobId = await submit(LOCAL_ADMIN, { queue, ...input })
    return { jobId, leaseId: await lease(queue) }
  }

  async function lease(queue: string): Promise<string> {
    const call = { queues: [queue], kinds: ['work'], max: 1, waitMs: 30_000, startId: 'p' }
    const [leased] = await services().runs.lease('w', call)
    if (leased === undefined) throw new Error('There should be a run to lease')
    return leased.lease_id
  }

  test('an event is stored once, under the next cursor, and a repeat leaves no gap', async () => {
    const { jobId, leaseId } = await running()
    const publish = (seq: number, data: unknown) => events().publish('w', leaseId, { stage: 'progress', seq, data })
    expect(await publish(2, { percent: 50 })).toBe(true)
    expect(await publish(2, { percent: 99 })).toBe(false)
    // A late event with a lower seq is delivered in the order of arrival.
    expect(await publish(1, undefined)).toBe(true)
    const { events: seen, ended } = await events().read(LOCAL_ADMIN, jobId, 0, 0)
    expect(seen.map(({ cursor, stage, seq, data }) => ({ cursor, stage, seq, data }))).toEqual([
      { cursor: 1, stage: 'run', seq: 1, data: { state: 'PENDING' } },
      { cursor: 2, stage: 'run', seq: 2, data: { state: 'RUNNING', attempt: 1 } },
      { cursor: 3, stage: 'progress', seq: 2, data: { percent: 50 } },
      { cursor: 4, stage: 'progress', seq: 1, data: null },
    ])
    expect(ended).toBe(false)
    for (const { timestamp } of seen) expect(new Date(timestamp).toISOString()).toBe(timestamp)
  })

  test('many concurrent events are stored without a gap', async () => {
    const { jobId, leaseId } = await running()
    const publish = (seq: number) => events().publish('w', leaseId, { stage: 'progress', seq, data: seq })
    await Promise.all(Array.from({ length: 50 }, (_, i) => publish(i % 25)))
    const { events: seen } = await events().read(LOCAL_ADMIN, jobId, 2, 0)
    expect(seen.map(({ cursor }) => cursor)).toEqual(Array.from({ length: 25 }, (_, i) => i + 3))
    expect(seen.map(({ seq }) => seq).toSorted((a, b) => a - b)).toEqual(Array.from({ length: 25 }, (_, i) => i))
  })

  test('a waiting reader gets the next event, and the end', async () => {
    const { jobId, leaseId } = await running()
    const next = events().read(LOCAL_ADMIN, jobId, 2, 30_000)
    await events().publish('w', leaseId, { stage: 'progress', seq: 1, data: 'x' })
    expect(await next).toMatchObject({ events: [{ cursor: 3, data: 'x' }], ended: false })
    const last = events().read(LOCAL_ADMIN, jobId, 3, 30_000)
    await services().runs.finish('w', leaseId, finished)
    // Only the next read may know that it was the last one.
    expect(await last).toMatchObject({ events: [{ cursor: 4, data: { state: 'SUCCEEDED' } }] })
    expect(await events().read(LOCAL_ADMIN, jobId, 4, 30_000)).toEqual({ events: [], ended: true })
    expect(await events().read(LOCAL_ADMIN, jobId, 99, 30_000)).toEqual({ events: [], ended: true })
  })

  test('without events the answer is empty', async () => {
    const { jobId } = await running()
    expect(await events().read(LOCAL_ADMIN, jobId, 2, 20)).toEqual({ events: [], ended: false })
  })

  test('a long list has pages, and only the last has ended', async () => {
    const jobId = await submit(LOCAL_ADMIN)
    const { store } = services().deps
    await sql(
      store,
      `INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at)
        WITH RECURSIVE s(n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM s WHERE n < 1500)
        SELECT r.job_id, s.n, 'progress', s.n, 'work', 'null', 0 FROM s, ichido.runs r WHERE r.job_id = $1`,
      jobId,
    )
    await sql(store, 'UPDATE ichido.runs SET last_event_n = 1500 WHERE job_id = $1', jobId)
    await services().jobs.cancel(LOCAL_ADMIN, jobId)
    const first = await events().read(LOCAL_ADMIN, jobId, 0, 0)
    expect([first.events.length, first.ended]).toEqual([1_000, false])
    const second = await events().read(LOCAL_ADMIN, jobId, first.events.at(-1)?.cursor ?? 0, 0)
    expect([second.events.length, second.ended]).toEqual([501, true])
    expect(second.events.at(-1)).toMatchObject({ cursor: 1501, data: { state: 'CANCELED' } })
  })

  test('large events have pages of a few MiB with at least one event', async () => {
    const { jobId, leaseId } = await running()
    const data = 'x'.repeat(60_000)
    const list = Array.from({ length: 200 }, (_, i) => ({ stage: 'progress', seq: i + 1, data }))
    await events().publishAll('w', leaseId, list)
    await services().runs.finish('w', leaseId, finished)
    const pages: number[][] = []
    for (let [after, ended] = [0, false]; !ended; ) {
      const page = await events().read(LOCAL_ADMIN, jobId, after, 0)
      expect(JSON.stringify(page).length).toBeLessThan(4.5 * 1024 * 1024)
      pages.push(page.events.map(({ cursor }) => cursor))
      after = page.events.at(-1)?.cursor ?? after
      ended = page.ended
    }
    expect(pages.map(({ length }) => length)).toEqual([72, 70, 61])
    expect(pages.flat()).toEqual(Array.from({ length: 203 }, (_, i) => i + 1))
  })

  test('each attempt counts from the start, and the job does not end in between', async () => {
    const queue = unique('queue')
    const jobId = await submit(LOCAL_ADMIN, { queue, backoff: { base_seconds: 0 } })
    for (const attempt of [1, 2]) {
      const leaseId = await lease(queue)
      await events().publish('w', leaseId, { stage: 'progress', seq: 7, data: attempt })
      const fail = { verb: 'fail', error: { code: 'C', message: 'm' }, retryable: true } as const
      await services().runs.finish('w', leaseId, attempt === 1 ? fail : finished)
      expect((await events().read(LOCAL_ADMIN, jobId, 0, 0)).ended).toBe(attempt === 2)
    }
    const { events: seen } = await events().read(LOCAL_ADMIN, jobId, 0, 0)
    expect(seen.filter(({ stage }) => stage === 'progress').map(({ seq }) => seq)).toEqual([7, 1_000_007])
    expect(seen.map(({ cursor }) => cursor)).toEqual(seen.map((_, i) => i + 1))
  })

  test('of 64 publishers of the same event, the data of the first is kept', async () => {
    const { jobId, leaseId } = await running()
    const racers = Array.from({ length: 64 }, (_, i) => i)
    const accepted = await Promise.all(
      racers.map((data) => events().publish('w', leaseId, { stage: 'progress', seq: 7, data })),
    )
    expect(accepted.filter(Boolean)).toHaveLength(1)
    const { events: seen } = await events().read(LOCAL_ADMIN, jobId, 2, 0)
    expect(seen.map(({ cursor, data }) => [cursor, data])).toEqual([[3, accepted.indexOf(true)]])
    expect((await services().jobs.get(LOCAL_ADMIN, jobId)).once.duplicates_refused).toBe(63)
  })

  test('the test of the seed: parallel stages out of order arrive by cursor', async () => {
    const { jobId, leaseId } = await running({ kind: 'work', domain: 'scan', stages: 'eco2' })
    const vision = { stage: 'vision', seq: 10, data: { status: 'done' } }
    expect([await events().publish('w', leaseId, vision), await events().publish('w', leaseId, vision)]).toEqual([
      true,
      false,
    ])
    const rest = [50, 41, 40, 30, 19, 20, 11].map((seq) => ({ stage: STAGES[Math.floor(seq / 10) - 1] ?? '', seq }))
    await Promise.all(rest.map((event) => events().publish('w', leaseId, event)))
    const { events: seen } = await events().read(LOCAL_ADMIN, jobId, 2, 0)
    expect(seen.map(({ cursor }) => cursor)).toEqual([3, 4, 5, 6, 7, 8, 9, 10])
    expect(seen.map(({ seq }) => seq)).toEqual([10, ...rest.map(({ seq }) => seq)])
  })

  test('the stages of a job hold for all attempts', async () => {
    const queue = unique('queue')
    const jobId = await submit(LOCAL_ADMIN, { queue, backoff: { base_seconds: 0 }, stages: 'eco2' })
    const first = await lease(queue)
    await events().publish('w', first, { stage: 'vision', seq: 10, data: 1 })
    await services().runs.finish('w', first, { verb: 'fail', error: { code: 'C', message: 'm' }, retryable: true })
    const second = await lease(queue)
    expect(await events().publish('w', second, { stage: 'vision', seq: 10, data: 2 })).toBe(false)
    expect(await events().publish('w', second, { stage: 'vision', seq: 11, data: 2 })).toBe(true)
    expect(await events().state(LOCAL_ADMIN, jobId)).toMatchObject({
      state: 'RUNNING',
      attempt: 2,
      stages: { vision: { seq: 11, data: 2 } },
    })
  })

  test('all events of a job have its domain', async () => {
    const domain = unique('domain')
    const queue = unique('queue')
    const jobId = await submit(LOCAL_ADMIN, { queue, domain, backoff: { base_seconds: 0 } })
    const [first] = await services().runs.lease('w', { queues: [queue], kinds: [], max: 1, waitMs: 30_000 })
    const leaseId = first?.lease_id ?? ''
    await services().runs.start('w', leaseId, 'p')
    const failure = { verb: 'fail', error: { code: 'C', message: 'm' }, retryable: true } as const
    await services().runs.finish('w', leaseId, failure)
    const second = await lease(queue)
    await events().publish('w', second, { stage: 'progress', seq: 1 })
    await services().runs.release('w', second)
    await services().runs.finish('w', await lease(queue), finished)
    // Other transactions of the server may delay it.
    const listed = await until('all of them', async () => {
      const found = await events().list({ ...EVERY_EVENT, domain }, FIRST_EVENT, 100)
      return found?.events.length === 11 && found.events.map(({ shape }) => shape)
    })
    const stages = [...Array(6).fill('run'), 'progress', ...Array(4).fill('run')]
    expect(listed.map((event) => [event.job_id, event.domain, event.cursor, event.stage])).toEqual(
      stages.map((stage, i) => [jobId, domain, i + 1, stage]),
    )
    const stored = await sql(
      services().deps.store,
      'UPDATE ichido.events SET domain = domain WHERE job_id = $1 RETURNING domain',
      jobId,
    )
    expect([...new Set(stored.map((row) => row.domain))].toSorted()).toEqual(['', domain])
  })

  test('a job keeps the stages of its definition', async () => {
    const name = unique('definition')
    const queue = unique('queue')
    const content = {
      kind: 'work',
      queue,
      domain: 'd',
      stages: [{ name: 'cut', from: 100, to: 101 }],
      seq_scope: 'job',
    } as const
    await services().definitions.create(LOCAL_ADMIN, name, { ...content, stages: [...content.stages] })
    const made = await services().occurrences.run(LOCAL_ADMIN, name, null)
    if (made.kind === 'refused') throw new Error(made.refusal.message)
    await services().definitions.remove(LOCAL_ADMIN, name)
    const leaseId = await lease(queue)
    expect(await events().publish('w', leaseId, { stage: 'cut', seq: 101 })).toBe(true)
    const refused = await thrownBy(events().publish('w', leaseId, { stage: 'cut', seq: 102 }))
    expect(refused).toMatchObject({ code: 'INVALID_PAYLOAD', details: { field: 'events.0.seq' } })
    expect((await events().state(LOCAL_ADMIN, made.jobId)).domain).toBe('d')
  })

  test('a bad call publishes nothing, and does not fail others in its batch', async () => {
    const [good, bad] = [await running(), await running()]
    const range = (from: number) => Array.from({ length: 3 }, (_, i) => ({ stage: 'progress', seq: from + i }))
    const outcomes = await Promise.allSettled([
      events().publishAll('w', good.leaseId, range(0)),
      events().publishAll('w', bad.leaseId, [...range(0), { stage: 'vision', seq: 10 }]),
      events().publishAll('stranger', good.leaseId, range(3)),
      events().publishAll('w', good.leaseId, range(1)),
    ])
    expect(outcomes).toMatchObject([
      { value: [true, true, true] },
      { reason: { code: 'INVALID_PAYLOAD', details: { field: 'events.3.seq' } } },
      { reason: { code: 'LEASE_LOST' } },
      { value: [false, false, true] },
    ])
    expect((await events().read(LOCAL_ADMIN, good.jobId, 2, 0)).events.map(({ seq }) => seq)).toEqual([0, 1, 2, 3])
    expect((await events().read(LOCAL_ADMIN, bad.jobId, 2, 0)).events).toEqual([])
  })

  test('the state has the last event, and the last event of each stage', async () => {
    const caller = { userId: unique('u'), role: 'submitter' } as const
    const queue = unique('queue')
    const jobId = await submit(caller, { queue })
    const pending = { cursor: 1, stage: 'run', seq: 1, data: { state: 'PENDING' } }
    expect(await events().state(caller, jobId)).toMatchObject({
      ...{ job_id: jobId, domain: 'work', state: 'PENDING', attempt: 0, event: pending, stages: {} },
    })
    const leaseId = await lease(queue)
    const list = [5, 3].map((seq) => ({ stage: 'progress', seq, data: seq }))
    await events().publishAll('w', leaseId, [...list, { stage: 'extra', seq: 9 }, { stage: 'extra', seq: 1 }])
    expect(await events().state(caller, jobId)).toMatchObject({
      state: 'RUNNING',
      attempt: 1,
      event: { cursor: 6, stage: 'extra', seq: 1 },
      stages: { progress: { cursor: 4, seq: 3, data: 3 }, extra: { cursor: 6, seq: 1 } },
    })
    await services().runs.finish('w', leaseId, finished)
    expect(await events().state(LOCAL_ADMIN, jobId)).toMatchObject({
      state: 'SUCCEEDED',
      event: { cursor: 7, stage: 'run', data: { state: 'SUCCEEDED' } },
      stages: { progress: { cursor: 4 }, extra: { cursor: 6 } },
    })
    const other = { userId: unique('u'), role: 'submitter' } as const
    for (const [who, id] of [
      [other, jobId],
      [caller, crypto.randomUUID()],
      [caller, 'none'],
    ] as const) {
      expect(await thrownBy(events().state(who, id))).toMatchObject({ code: 'NOT_FOUND' })
    }
    await removeEventsOf(services().deps.store, jobId)
    expect(await events().state(caller, jobId)).toMatchObject({ state: 'SUCCEEDED', event: null, stages: {} })
  })

  test('only the holder of a running run publishes', async () => {
    const { leaseId } = await running()
    const event = { stage: 'progress', seq: 1, data: null }
    expect(await thrownBy(events().publish('other', leaseId, event))).toMatchObject({ code: 'LEASE_LOST' })
    expect(await thrownBy(events().publish('w', 'no lease', event))).toMatchObject({ code: 'NOT_FOUND' })
    await services().runs.finish('w', leaseId, finished)
    expect(await thrownBy(events().publish('w', leaseId, event))).toMatchObject({ code: 'ALREADY_ENDED' })
  })

  test('the data of an event is limited in bytes', async () => {
    const { leaseId } = await running()
    const publish = (data: string) => events().publish('w', leaseId, { stage: 'progress', seq: 1, data })
    const error = await thrownBy(publish('é'.repeat(32 * 1024)))
    expect(error).toMatchObject({ code: 'PAYLOAD_TOO_LARGE', message: "An event's data may have at most 65536 bytes" })
    expect(await publish('é'.repeat(32 * 1024 - 1))).toBe(true)
  })
})
