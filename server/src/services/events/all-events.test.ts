import { expect, test } from 'vitest'
import type { Caller } from '../../core/limits/roles.ts'
import { EVERY_EVENT, type EventFilter, type EventPlace, FIRST_EVENT } from '../../store/events/all-events.ts'
import { adoptRestoredEvents, beginWatermark } from '../../store/events/relay.ts'
import { removeEvents } from '../../store/system/retention.ts'
import { eachServices } from '../../testing/services/each-services.ts'
import { lead } from '../../testing/store/dead-letters.ts'
import { sql, unique, until } from '../../testing/store/store.ts'
import { LOCAL_ADMIN } from '../access/access.ts'

eachServices(({ services, submit, engine }) => {
  const events = () => services().events

  async function running(
    input: object = {},
    caller: Caller = LOCAL_ADMIN,
  ): Promise<{ jobId: string; leaseId: string }> {
    const queue = unique('queue')
    const jobId = await submit(caller, { queue, ...input })
    const call = { queues: [queue], kinds: [], max: 1, waitMs: 30_000, startId: 'p' }
    const [leased] = await services().runs.lease('w', call)
    if (leased === undefined) throw new Error('There should be a run to lease')
    return { jobId, leaseId: leased.lease_id }
  }

  /** Reads until it has caught up with the time of the call. Other transactions of the cluster may delay it. */
  async function listAll(filter: Partial<EventFilter> = {}, after: EventPlace = FIRST_EVENT, limit = 200) {
    const seen: string[] = []
    let place = after
    const [row] = await sql(services().deps.store, END[engine])
    const end = Number(row?.tx)
    await until('all events to be listed', async () => {
      const page = await events().list({ ...EVERY_EVENT, ...filter }, place, limit)
      if (page === null) throw new Error('The place should be known')
      expect(page.events.length).toBeLessThanOrEqual(limit)
      for (const { shape } of page.events) seen.push(`${shape.job_id} ${shape.cursor} ${shape.stage} ${shape.seq}`)
      place = page.next
      return page.caughtUp && place.tx >= end
    })
    return { seen, place }
  }

  test('every event of all jobs is listed once, in pages or at once', async () => {
    const { place: start } = await listAll()
    const jobs = [await running(), await running(), await running()]
    for (const seq of [1, 2, 3]) {
      for (const { leaseId } of jobs) await events().publish('w', leaseId, { stage: 'progress', seq, data: { seq } })
    }
    const { seen } = await listAll({}, start)
    const expected = jobs.flatMap(({ jobId }) =>
      ['1 run 1', '2 run 2', '3 progress 1', '4 progress 2', '5 progress 3'].map((event) => `${jobId} ${event}`),
    )
    expect(seen.toSorted()).toEqual(expected.toSorted())
    for (const { jobId } of jobs) {
      const own = seen.filter((event) => event.startsWith(jobId))
      expect(own).toEqual(own.toSorted())
    }
    for (const limit of [1, 2, 7]) expect((await listAll({}, start, limit)).seen).toEqual(seen)
  })

  test('events are filtered by job, kind, queue, domain and stage', async () => {
    const { place: start } = await listAll()
    const scan = await running({ kind: 'scan', domain: 'eco', stages: 'eco2' })
    const work = await running()
    await events().publish('w', scan.leaseId, { stage: 'vision', seq: 10 })
    await events().publish('w', work.leaseId, { stage: 'progress', seq: 1 })
    const [job] = await sql(services().deps.store, 'SELECT queue FROM ichido.jobs WHERE id = $1', scan.jobId)
    const whole = [`${scan.jobId} 1 run 1`, `${scan.jobId} 2 run 2`, `${scan.jobId} 3 vision 10`]
    expect((await listAll({ jobId: scan.jobId })).seen).toEqual(whole)
    expect((await listAll({ jobId: scan.jobId }, start, 1)).seen).toEqual(whole)
    expect((await listAll({ kind: 'scan' }, start)).seen).toEqual(whole)
    expect((await listAll({ queue: String(job?.queue) }, start)).seen).toEqual(whole)
    // The lifecycle events of its runs also have its domain.
    expect((await listAll({ domain: 'eco' }, start)).seen).toEqual(whole)
    expect((await listAll({ stage: 'vision' }, start)).seen).toEqual(whole.slice(2))
    expect((await listAll({ stage: 'vision', domain: 'scan' }, start)).seen).toEqual([])
  })

  test('large events are listed a few MiB at a time, and none is left out', async () => {
    const { place: start } = await listAll()
    const { jobId, leaseId } = await running()
    const data = 'x'.repeat(60_000)
    const list = Array.from({ length: 150 }, (_, i) => ({ stage: 'progress', seq: i + 1, data }))
    await events().publishAll('w', leaseId, list)
    const expected = Array.from({ length: 152 }, (_, i) => i + 1)
    for (const filter of [{}, { jobId }]) {
      const { seen } = await listAll(filter, start)
      expect(seen.map((event) => Number(event.split(' ')[1]))).toEqual(expected)
      const page = await events().list({ ...EVERY_EVENT, ...filter }, start, 200)
      expect(page).toMatchObject({ caughtUp: false })
      expect(JSON.stringify(page).length).toBeLessThan(4.5 * 1024 * 1024)
    }
  })

  test('many events of one transaction, as after a restore, are listed in parts', async () => {
    const { place: start } = await listAll()
    const { jobId } = await running()
    await sql(
      services().deps.store,
      `INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at)
        WITH RECURSIVE s(n) AS (SELECT 3 UNION ALL SELECT n + 1 FROM s WHERE n < 4502)
        SELECT r.job_id, s.n, 'progress', s.n, 'work', 'null', 0 FROM s, ichido.runs r WHERE r.job_id = $1`,
      jobId,
    )
    const other = await running()
    const { seen } = await listAll({}, start)
    expect(seen.filter((event) => event.startsWith(jobId)).map((event) => Number(event.split(' ')[1]))).toEqual(
      Array.from({ length: 4502 }, (_, i) => i + 1),
    )
    expect(seen.slice(4502)).toEqual([`${other.jobId} 1 run 1`, `${other.jobId} 2 run 2`])
  })

  test('a place ahead of the store belongs to another store', async () => {
    expect(await events().list(EVERY_EVENT, { ...FIRST_EVENT, tx: 2 ** 49 }, 10)).toBeNull()
    const here = await events().lastPlace()
    const { jobId } = await running()
    expect((await listAll({}, here)).seen).toEqual([`${jobId} 1 run 1`, `${jobId} 2 run 2`])
  })

  // On SQLite every row has its own place.
  /** As if the events of the job came from a server with more transactions. */
  async function outdate(jobId: string): Promise<void> {
    const { store } = services().deps
    await sql(store, 'UPDATE ichido.events SET tx = tx + 1000000 WHERE job_id = $1', jobId)
    await sql(store, 'UPDATE ichido.held SET leased_tx = leased_tx + 1000000 WHERE job_id = $1', jobId)
  }

  if (engine === 'postgres')
    test('restored events of a server with more transactions come before new ones', async () => {
      const { store } = services().deps
      const restored = await running()
      await events().publish('w', restored.leaseId, { stage: 'progress', seq: 1 })
      await store.write(beginWatermark())
      await outdate(restored.jobId)
      const { place: start } = await listAll()
      expect(await store.write(adoptRestoredEvents())).toBe(false)
      expect(await sql(store, 'SELECT 1 FROM ichido.relay_watermark')).toEqual([])
      const next = await running()
      const listed = [[restored, '1 run 1', '2 run 2', '3 progress 1'] as const, [next, '1 run 1', '2 run 2'] as const]
      expect((await listAll({}, start)).seen).toEqual(
        listed.flatMap(([{ jobId }, ...rest]) => rest.map((event) => `${jobId} ${event}`)),
      )
      const dated = 'SELECT sum(tx) AS tx FROM ichido.events'
      const before = await sql(store, dated)
      await store.write(adoptRestoredEvents())
      expect(await sql(store, dated)).toEqual(before)
    })

  if (engine === 'postgres')
    test('two nodes that start on a restored dump agree on the last event', async () => {
      const { store } = services().deps
      const { jobId, leaseId } = await running()
      for (const seq of [1, 2, 3]) await events().publish('w', leaseId, { stage: 'progress', seq })
      await outdate(jobId)
      const ahead = async () => {
        let batches = 0
        while (await store.write(adoptRestoredEvents(1))) batches++
        const left = await sql(
          store,
          'SELECT 1 FROM ichido.events WHERE tx >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint',
        )
        return { batches, left: left.length }
      }
      const nodes = await Promise.all(Array.from({ length: 4 }, ahead))
      expect(nodes.map(({ left }) => left)).toEqual([0, 0, 0, 0])
      expect(nodes.reduce((sum, { batches }) => sum + batches, 0)).toBeGreaterThanOrEqual(3)
    })

  test('events are listed after retention has removed the last one', async () => {
    const { jobId } = await running()
    const { place } = await listAll()
    await services().jobs.cancel(LOCAL_ADMIN, jobId)
    const { store } = services().deps
    await sql(store, "UPDATE ichido.runs SET state = 'CANCELED', finished_at = 1 WHERE job_id = $1", jobId)
    const term = await lead(store)
    for (let round = 0; round < 2; round++) {
      expect((await store.write(removeEvents(term, [jobId], 1_000))).removed).toBeLessThanOrEqual(2)
    }
    expect(await sql(store, 'SELECT 1 FROM ichido.events WHERE job_id = $1', jobId)).toEqual([])
    const next = await running()
    expect((await listAll({}, place)).seen).toEqual([`${next.jobId} 1 run 1`, `${next.jobId} 2 run 2`])
    const marks = "SELECT 1 FROM ichido.events WHERE job_id = '00000000-0000-0000-0000-000000000000'"
    expect((await sql(store, marks)).length).toBe(engine === 'sqlite' ? 1 : 0)
  })
})

const END = {
  sqlite: 'SELECT coalesce(max(rowid), 0) + 1 AS tx FROM ichido.events',
  postgres: 'SELECT pg_current_xact_id()::text::bigint AS tx',
}
