import { expect, test } from 'vitest'
import { eachServices } from '../testing/each-services.ts'
import { thrownBy } from '../testing/embedded.ts'
import { sql, unique } from '../testing/store.ts'
import { LOCAL_ADMIN } from './access.ts'

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
    // Late, with a lower seq: delivered all the same, in the order of coming in.
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

  test('many at once are all stored, without a gap', async () => {
    const { jobId, leaseId } = await running()
    const publish = (seq: number) => events().publish('w', leaseId, { stage: 'progress', seq, data: seq })
    await Promise.all(Array.from({ length: 50 }, (_, i) => publish(i % 25)))
    const { events: seen } = await events().read(LOCAL_ADMIN, jobId, 2, 0)
    expect(seen.map(({ cursor }) => cursor)).toEqual(Array.from({ length: 25 }, (_, i) => i + 3))
    expect(seen.map(({ seq }) => seq).toSorted((a, b) => a - b)).toEqual(Array.from({ length: 25 }, (_, i) => i))
  })

  test('whoever waits is told of the next one, and of the end', async () => {
    const { jobId, leaseId } = await running()
    const next = events().read(LOCAL_ADMIN, jobId, 2, 30_000)
    await events().publish('w', leaseId, { stage: 'progress', seq: 1, data: 'x' })
    expect(await next).toMatchObject({ events: [{ cursor: 3, data: 'x' }], ended: false })
    const last = events().read(LOCAL_ADMIN, jobId, 3, 30_000)
    await services().runs.report('w', leaseId, finished)
    // Whether it was the last one may be known only to the next look.
    expect(await last).toMatchObject({ events: [{ cursor: 4, data: { state: 'SUCCEEDED' } }] })
    expect(await events().read(LOCAL_ADMIN, jobId, 4, 30_000)).toEqual({ events: [], ended: true })
    expect(await events().read(LOCAL_ADMIN, jobId, 99, 30_000)).toEqual({ events: [], ended: true })
  })

  test('when nothing comes, the answer is empty', async () => {
    const { jobId } = await running()
    expect(await events().read(LOCAL_ADMIN, jobId, 2, 20)).toEqual({ events: [], ended: false })
  })

  test('a long list comes in pages, and has ended only with the last', async () => {
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

  test('each attempt counts anew, and the job has not ended between two of them', async () => {
    const queue = unique('queue')
    const jobId = await submit(LOCAL_ADMIN, { queue, backoff: { base_seconds: 0 } })
    for (const attempt of [1, 2]) {
      const leaseId = await lease(queue)
      await events().publish('w', leaseId, { stage: 'progress', seq: 7, data: attempt })
      const fail = { verb: 'fail', error: { code: 'C', message: 'm' }, retryable: true } as const
      await services().runs.report('w', leaseId, attempt === 1 ? fail : finished)
      expect((await events().read(LOCAL_ADMIN, jobId, 0, 0)).ended).toBe(attempt === 2)
    }
    const { events: seen } = await events().read(LOCAL_ADMIN, jobId, 0, 0)
    expect(seen.filter(({ stage }) => stage === 'progress').map(({ seq }) => seq)).toEqual([7, 1_000_007])
    expect(seen.map(({ cursor }) => cursor)).toEqual(seen.map((_, i) => i + 1))
  })

  test('only the holder publishes, while the run goes on', async () => {
    const { leaseId } = await running()
    const event = { stage: 'progress', seq: 1, data: null }
    expect(await thrownBy(events().publish('other', leaseId, event))).toMatchObject({ code: 'LEASE_LOST' })
    expect(await thrownBy(events().publish('w', 'no lease', event))).toMatchObject({ code: 'NOT_FOUND' })
    await services().runs.report('w', leaseId, finished)
    expect(await thrownBy(events().publish('w', leaseId, event))).toMatchObject({ code: 'ALREADY_ENDED' })
  })

  test('its data is limited in bytes', async () => {
    const { leaseId } = await running()
    const publish = (data: string) => events().publish('w', leaseId, { stage: 'progress', seq: 1, data })
    const error = await thrownBy(publish('é'.repeat(32 * 1024)))
    expect(error).toMatchObject({ code: 'PAYLOAD_TOO_LARGE', message: "An event's data may have at most 65536 bytes" })
    expect(await publish('é'.repeat(32 * 1024 - 1))).toBe(true)
  })
})
