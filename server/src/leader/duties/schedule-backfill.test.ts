import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import type { Definition } from '../../core/schedule/definition.ts'
import type { Schedule } from '../../core/schedule/schedule.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import type { PastRange } from '../../services/schedules/occurrences.ts'
import { deleteDefinition, updateDefinition } from '../../store/schedules/definitions.ts'
import { readClock } from '../../store/system/leadership.ts'
import type { Term } from '../../store/system/term.ts'
import { type LeaderScene, leaderScene } from '../../testing/nodes/leader-scene.ts'
import { seize } from '../../testing/nodes/reaper.ts'
import {
  BY,
  content,
  define,
  jobsOf,
  ledger,
  setDue,
  tickAll,
  ticker,
  toNextMinute,
} from '../../testing/nodes/ticker.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { sql } from '../../testing/store/store.ts'
import { createBackfill } from './schedule.ts'

const MINUTE = 60_000

describe.each(ENGINES)('a backfill on %s', (engine) => {
  let scene: LeaderScene
  let term: Term
  let step: () => Promise<number | null>
  beforeAll(async () => {
    scene = await leaderScene(engine)
    term = await seize(scene.store)
    await scene.services.settings.put(LOCAL_ADMIN, 'operations_per_user_max', 10_000)
    step = createBackfill({ ...scene, ...scene.services.deps }, term)
  })
  afterAll(() => scene.close())
  beforeEach(() => toNextMinute(scene))

  const now = () => scene.store.read(readClock())
  const define5 = (schedule: Partial<Schedule> = {}) => define(scene.store, { cron: '* * * * *', ...schedule })
  async function past(minutes: number) {
    const toMs = Math.floor((await now()) / MINUTE) * MINUTE
    return { fromMs: toMs - minutes * MINUTE, toMs }
  }
  const begin = async ({ name }: Definition, range: PastRange) =>
    (await scene.services.backfills.begin(LOCAL_ADMIN, name, range)).backfill_id
  const shown = ({ name }: Definition, id: string) => scene.services.backfills.get(name, id)
  const end = (definition: Definition) =>
    sql(scene.store, `UPDATE ichido.runs SET state = 'SUCCEEDED' WHERE definition_id = $1`, definition.id)

  test('makes each tick of the range once, even if its jobs were removed', async () => {
    const definition = await define5()
    const { fromMs, toMs } = await past(5)
    const id = await begin(definition, { fromMs, toMs })
    await tickAll(step)
    expect(await shown(definition, id)).toMatchObject({
      state: 'done',
      matched: 5,
      made: 5,
      made_before: 0,
      skipped: 0,
    })
    const jobs = await jobsOf(scene.store, definition)
    expect(jobs.map((job) => job.scheduled_for)).toEqual([0, 1, 2, 3, 4].map((i) => fromMs + i * MINUTE))
    expect(await ledger(scene.store, definition)).toMatchObject(
      jobs.map(() => ({ origin: 'backfill', outcome: 'job' })),
    )
    // Hazard 23: a tick stays unique after its job was removed.
    for (const table of ['jobs', 'runs']) {
      await sql(scene.store, `DELETE FROM ichido.${table} WHERE definition_id = $1`, definition.id)
    }
    expect(await scene.services.backfills.count(definition.name, { fromMs: fromMs - MINUTE, toMs })).toEqual({
      matched: 6,
      made_before: 5,
      skipped: 0,
      would_make: 1,
    })
    const second = await begin(definition, { fromMs: fromMs - MINUTE, toMs })
    await tickAll(step)
    expect(await shown(definition, second)).toMatchObject({ state: 'done', matched: 6, made: 1, made_before: 5 })
    expect((await jobsOf(scene.store, definition)).map((job) => job.scheduled_for)).toEqual([fromMs - MINUTE])
  })

  test('leaves skipped ticks alone, also within an entry of many', async () => {
    const definition = await define5({ catchUp: 'skip' })
    const { fromMs, toMs } = await past(10)
    await setDue(scene.store, definition, fromMs)
    await tickAll(await ticker(scene, { term, batchMax: 3 }))
    const [entry] = await ledger(scene.store, definition)
    expect(entry).toMatchObject({ outcome: 'skipped', scheduled_for: fromMs, skipped_until: expect.any(Number) })
    const before = { fromMs: fromMs - MINUTE, toMs: fromMs }
    const wide = { ...before, toMs }
    await begin(definition, before)
    await tickAll(step)
    expect(await scene.services.backfills.count(definition.name, wide)).toEqual({
      matched: 11,
      made_before: 1,
      skipped: 10,
      would_make: 0,
    })
    const id = await begin(definition, wide)
    await tickAll(step)
    expect(await shown(definition, id)).toMatchObject({ state: 'done', made: 0, made_before: 1, skipped: 10 })
  })

  test('uses the rule that it began with', async () => {
    const definition = await define5({ overlap: 'skip' })
    const range = await past(3)
    const id = await begin(definition, range)
    const change = (schedule: Partial<Schedule> | null) =>
      scene.store.write(updateDefinition(definition.name, null, content(schedule), BY()))
    for (const rule of [{ cron: '* * * * * *', overlap: 'skip' as const }, null]) {
      await tickAll(step)
      await end(definition)
      await change(rule)
    }
    await tickAll(step)
    await end(definition)
    await tickAll(step)
    expect(await shown(definition, id)).toMatchObject({
      state: 'done',
      matched: 3,
      made: 3,
      made_before: 0,
      skipped: 0,
    })
    const jobs = await jobsOf(scene.store, definition)
    expect(jobs.map((job) => job.scheduled_for)).toEqual([0, 1, 2].map((i) => range.fromMs + i * MINUTE))
  })

  test('stops at a full quota, and continues when a slot is free', async () => {
    const definition = await define5()
    await scene.services.quotas.put(LOCAL_ADMIN, definition.userId, {
      max_concurrent: 2,
      cost_limit: null,
      period: 'day',
    })
    const id = await begin(definition, await past(5))
    for (const made of [2, 4]) {
      await tickAll(step)
      expect(await shown(definition, id)).toMatchObject({ state: 'running', made })
      await end(definition)
    }
    await tickAll(step)
    expect(await shown(definition, id)).toMatchObject({ state: 'done', made: 5 })
  })

  test('has its turn, however many earlier ones wait', async () => {
    const stuck = await Promise.all(Array.from({ length: 25 }, () => define5()))
    const range = await past(1)
    for (const { userId } of stuck) {
      await scene.services.quotas.put(LOCAL_ADMIN, userId, { max_concurrent: 0, cost_limit: null, period: 'month' })
    }
    const ids = await Promise.all(stuck.map((definition) => begin(definition, range)))
    const definition = await define5()
    const id = await begin(definition, range)
    await tickAll(step)
    expect(await shown(definition, id)).toMatchObject({ state: 'done', made: 1 })
    for (const [i, one] of stuck.entries()) await scene.services.backfills.abort(LOCAL_ADMIN, one.name, ids[i] ?? '')
  })

  test('has its turn, even if an earlier one fails', async () => {
    const [broken, definition] = [await define5(), await define5()]
    const range = await past(1)
    await begin(broken, range)
    const id = await begin(definition, range)
    await sql(
      scene.store,
      "UPDATE ichido.backfills SET schedule = replace(schedule, 'UTC', 'Mars/Base') WHERE definition_id = $1",
      broken.id,
    )
    for (let i = 0; i < 2; i++) await expect(step()).rejects.toThrow('Mars/Base')
    expect(await shown(definition, id)).toMatchObject({ state: 'done', made: 1 })
    await scene.store.write(deleteDefinition(broken.name, BY()))
  })

  test('makes one job at a time where jobs must not overlap', async () => {
    const definition = await define5({ overlap: 'skip' })
    const id = await begin(definition, await past(2))
    await tickAll(step)
    expect(await shown(definition, id)).toMatchObject({ state: 'running', made: 1 })
    await end(definition)
    await tickAll(step)
    expect(await shown(definition, id)).toMatchObject({ state: 'done', made: 2 })
  })

  test('does not make a schedule with overlap skip lose a tick', async () => {
    const definition = await define5({ overlap: 'skip' })
    const { fromMs, toMs } = await past(3)
    const id = await begin(definition, { fromMs, toMs: fromMs + 2 * MINUTE })
    await tickAll(step)
    await setDue(scene.store, definition, toMs)
    const tick = await ticker(scene, { term })
    const outcomes = async () => (await ledger(scene.store, definition)).map(({ outcome }) => outcome)
    await tickAll(tick)
    expect(await outcomes()).toEqual(['job', 'waiting_overlap'])
    await end(definition)
    await tickAll(step)
    expect(await outcomes(), 'the tick goes first').toEqual(['job', 'waiting_overlap'])
    await tickAll(tick)
    await tickAll(step)
    expect(await outcomes()).toEqual(['job', 'job'])
    await setDue(scene.store, definition, toMs + 1)
    await tickAll(tick)
    expect(await outcomes(), 'the job of a tick is in the way as ever').toEqual(['job', 'job', 'skipped'])
    await end(definition)
    await tickAll(step)
    expect(await shown(definition, id)).toMatchObject({ state: 'done', made: 2 })
  })

  test('is aborted by a person or with its definition, not by a former leader', async () => {
    const definition = await define5()
    const id = await begin(definition, await past(5))
    await createBackfill({ ...scene, ...scene.services.deps }, { holder: 'nobody', epoch: 1 })()
    expect(await jobsOf(scene.store, definition)).toEqual([])
    const { name } = definition
    expect(await scene.services.backfills.abort(LOCAL_ADMIN, name, id)).toMatchObject({ state: 'aborted', made: 0 })
    expect(await scene.services.backfills.abort(LOCAL_ADMIN, name, id)).toMatchObject({ state: 'aborted' })
    const other = await begin(definition, await past(5))
    await scene.store.write(deleteDefinition(name, BY()))
    await tickAll(step)
    expect(await jobsOf(scene.store, definition)).toEqual([])
    const rows = await sql(scene.store, 'SELECT state FROM ichido.backfills WHERE id = $1', other)
    expect(rows).toEqual([{ state: 'aborted' }])
  })

  test('is refused where it makes no sense', async () => {
    const definition = await define5({ cron: '* * * * * *' })
    const bare = await define(scene.store, null)
    const nowMs = await now()
    const refused = (name: string, fromMs: number, toMs: number) =>
      expect(scene.services.backfills.begin(LOCAL_ADMIN, name, { fromMs, toMs })).rejects
    await refused(definition.name, nowMs - 20_000_000, nowMs).toMatchObject({ details: { field: 'from' } })
    await refused(definition.name, nowMs, nowMs - 1).toMatchObject({ details: { field: 'to' } })
    await refused(definition.name, nowMs, nowMs + MINUTE).toMatchObject({ details: { field: 'to' } })
    await refused(bare.name, nowMs - 1, nowMs).toMatchObject({ code: 'INVALID_PAYLOAD' })
    await refused('none', nowMs - 1, nowMs).toMatchObject({ code: 'NOT_FOUND' })
  })

  test('the ledger shows expected ticks beside recorded ones', async () => {
    const definition = await define5()
    const { name } = definition
    await scene.pass(3 * MINUTE)
    const look = (toMs: number | null = null, limit = 10, beforeMs: number | null = null) =>
      scene.services.occurrences.ledger(name, { fromMs: null, toMs }, limit, beforeMs)
    const missing = (await look()).data
    expect(missing.length).toBeGreaterThanOrEqual(3)
    expect(missing.filter(({ outcome }) => outcome === 'missing').length).toBeGreaterThanOrEqual(2)
    expect(missing.at(-1)).toMatchObject({ outcome: 'missing', job_id: null, created_at: null })
    expect(missing.at(-1)?.late_seconds).toBeGreaterThan(100)
    expect(await scene.services.occurrences.counts()).toMatchObject({ overdue: expect.any(Number) })
    await tickAll(await ticker(scene, { term }))
    const { data } = await look((await now()) + 2 * MINUTE + 1)
    expect(data.map(({ outcome }) => outcome)).toEqual(['pending', 'pending', ...missing.map(() => 'job')])
    expect(data[2]).toMatchObject({ origin: 'schedule', late_seconds: expect.any(Number), job_id: expect.any(String) })
    expect(data[2]).toMatchObject({ job_state: 'PENDING' })
    const first = await look(null, 2)
    const rest = await look(null, 10, first.nextMs)
    expect([...first.data, ...rest.data]).toEqual(data.slice(2))
    expect(rest.nextMs).toBeNull()
  })
})
