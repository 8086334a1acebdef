import { v7 } from 'uuid'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { size } from '../../../../scripts/testing/size.ts'
import { StoreUnavailable } from '../../core/node/store-errors.ts'
import type { Definition } from '../../core/schedule/definition.ts'
import type { Schedule } from '../../core/schedule/schedule.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import { command, type Store } from '../../store/port.ts'
import { deleteDefinition, pauseDefinition, updateDefinition } from '../../store/schedules/definitions.ts'
import { each, statement } from '../../store/statement.ts'
import { readClock } from '../../store/system/leadership.ts'
import { type LeaderScene, leaderScene } from '../../testing/nodes/leader-scene.ts'
import {
  again,
  BY,
  content,
  define,
  EVERY_SECOND,
  jobsOf,
  ledger,
  setDue,
  tickAll,
  ticker,
  toNextMinute,
} from '../../testing/nodes/ticker.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { sql } from '../../testing/store/store.ts'
import { ClockWatch } from '../election/clock-watch.ts'

const insertDefinitions = statement('test_insert_definitions', {
  params: { id: 'text', user_id: 'text', schedule: 'text', next: 'integer' },
  row: {},
  postgres: `INSERT INTO ichido.job_definitions (id, name, user_id, kind, payload, policy, schedule, next_tick_at, created_at,
      updated_at)
    SELECT t.id, t.id::text, t.user_id, 'work', '{}', '{}', t.schedule, t.next, 0, 0
    FROM unnest($id::uuid[], $user_id::text[], $schedule::text[], $next::bigint[]) AS t(id, user_id, schedule, next)`,
  sqlite: `INSERT INTO ichido.job_definitions (id, name, user_id, kind, payload, policy, schedule, next_tick_at, created_at,
      updated_at) VALUES ($id, $id, $user_id, 'work', '{}', '{}', $schedule, $next, 0, 0)`,
})

const MINUTE = 60_000
const HOUR = 60 * MINUTE

describe.each(ENGINES)('ticks on %s', (engine) => {
  let scene: LeaderScene
  beforeAll(async () => {
    scene = await leaderScene(engine)
  })
  afterAll(() => scene.close())
  beforeEach(async () => {
    for (const table of ['job_definitions', 'occurrences']) await sql(scene.store, `DELETE FROM ichido.${table}`)
    await scene.clear()
    await toNextMinute(scene)
  })

  const now = () => scene.store.read(readClock())
  const outcomes = async (definition: Definition) =>
    (await ledger(scene.store, definition)).map(({ outcome, reason }) =>
      reason === null ? outcome : `${outcome} ${reason}`,
    )
  /** A definition whose ticks were due since `agoMs`, at whole minutes. */
  async function missed(agoMs: number, schedule: Partial<Schedule> = {}): Promise<Definition> {
    const definition = await define(scene.store, { cron: '* * * * *', ...schedule })
    const firstMs = Math.ceil(((await now()) - agoMs) / MINUTE) * MINUTE
    await setDue(scene.store, definition, firstMs)
    return definition
  }
  const end = (definition: Definition) =>
    sql(
      scene.store,
      `UPDATE ichido.runs SET state = 'SUCCEEDED' WHERE job_id IN (SELECT id FROM ichido.jobs WHERE definition_id = $1)`,
      definition.id,
    )
  const limit = (userId: string, max: number | null) =>
    scene.services.quotas.put(LOCAL_ADMIN, userId, { max_concurrent: max, cost_limit: null, period: 'month' })

  test('a tick makes one job of the template, and the next tick is awaited', async () => {
    const definition = await define(
      scene.store,
      { cron: '* * * * *' },
      { queue: 'q', payload: '{"a":1}', priority: 3, labels: { l: 'v' } },
    )
    const tick = await ticker(scene)
    expect(await tick()).toBeLessThanOrEqual(MINUTE)
    expect(await ledger(scene.store, definition)).toEqual([])
    const dueMs = definition.nextTickAtMs ?? 0
    await scene.pass(dueMs - (await now()))
    await tickAll(tick)
    const [job] = await jobsOf(scene.store, definition)
    expect(job).toMatchObject({ scheduled_for: dueMs, payload: '{"a":1}', priority: 3, queue: 'q', state: 'PENDING' })
    expect(job).toMatchObject({ user_id: definition.userId, labels: '{"l":"v"}' })
    const [entry] = await ledger(scene.store, definition)
    expect(entry).toMatchObject({ scheduled_for: dueMs, outcome: 'job', job_id: job?.id, origin: 'schedule' })
    expect(scene.woken()).toContain('queue:q')
    expect(await again(scene.store, definition)).toMatchObject({ lastTickAtMs: dueMs, version: definition.version })
    const shown = await scene.services.jobs.get(LOCAL_ADMIN, String(job?.id))
    expect(shown).toMatchObject({ definition: definition.name, scheduled_for: new Date(dueMs).toISOString() })
  })

  test('all: every missed tick within the window, the others as one skip', async () => {
    const definition = await missed(3 * HOUR, { catchUpWindowSeconds: 3600 })
    await tickAll(await ticker(scene))
    const entries = await ledger(scene.store, definition)
    const made = entries.filter(({ outcome }) => outcome === 'job')
    const skipped = entries.filter(({ outcome }) => outcome === 'skipped')
    expect([60, 61]).toContain(made.length)
    expect(made.length + skipped.length).toBeGreaterThan(175)
    expect(skipped[0]).toMatchObject({ reason: 'catch_up' })
    expect(await jobsOf(scene.store, definition)).toHaveLength(made.length)
  })

  test('all, in batches: nothing is left out, and definitions share a batch', async () => {
    const definitions = [await missed(20 * MINUTE), await missed(20 * MINUTE)]
    const tick = await ticker(scene, { batchMax: 8 })
    await tick()
    for (const one of definitions) expect(await jobsOf(scene.store, one)).toHaveLength(4)
    await tickAll(tick)
    for (const one of definitions) {
      const ticks = (await jobsOf(scene.store, one)).map((job) => Number(job.scheduled_for))
      expect([20, 21]).toContain(ticks.length)
      ticks.slice(1).forEach((at, i) => void expect(at - (ticks[i] ?? 0)).toBe(MINUTE))
    }
  })

  test('all, with a large payload: a batch has fewer jobs', async () => {
    const payload = JSON.stringify('x'.repeat(1_000_000))
    const definition = await define(scene.store, { cron: '* * * * *' }, { payload })
    await setDue(scene.store, definition, Math.floor((await now()) / MINUTE) * MINUTE - 6 * MINUTE)
    const tick = await ticker(scene)
    await tick()
    expect(await jobsOf(scene.store, definition)).toHaveLength(4)
    await tickAll(tick)
    expect(await jobsOf(scene.store, definition)).toHaveLength(7)
  })

  test('last: only the last of the missed ticks', async () => {
    const definition = await missed(3 * HOUR, { catchUp: 'last', cron: '0 * * * *' })
    const firstMs = Math.ceil(((await now()) - 3 * HOUR) / HOUR) * HOUR
    await setDue(scene.store, definition, firstMs)
    // Not on the hour: a tick that is on time makes up for the others.
    await tickAll(await ticker(scene))
    expect(await outcomes(definition)).toEqual(['skipped catch_up', 'skipped catch_up', 'job'])
  })

  test('skip: only ticks on time; many skips are one entry', async () => {
    const definition = await missed(40 * MINUTE, { catchUp: 'skip', cron: '*/5 * * * * *' })
    await tickAll(await ticker(scene, { batchMax: 10 }))
    const [first, ...others] = await ledger(scene.store, definition)
    expect(first).toMatchObject({ outcome: 'skipped', reason: 'catch_up' })
    expect(Number(first?.skipped_until)).toBeGreaterThan((await now()) - 2 * MINUTE)
    expect(others.every(({ outcome }) => outcome === 'job')).toBe(true)
    expect(others.length).toBeGreaterThanOrEqual(6)
  })

  test('an ended schedule makes its last tick and is not read again', async () => {
    const endsAtMs = (await now()) + MINUTE
    const definition = await define(scene.store, { endsAtMs })
    await scene.pass(2 * MINUTE)
    await tickAll(await ticker(scene))
    const { nextTickAtMs, lastTickAtMs } = await again(scene.store, definition)
    expect(nextTickAtMs).toBeNull()
    expect(lastTickAtMs).toBe(Math.ceil(endsAtMs / 1000) * 1000 - 1000)
  })

  test('a due tick of a removed rule or definition is recorded as skipped', async () => {
    const [bare, gone, paused] = [await missed(2 * MINUTE), await missed(2 * MINUTE), await missed(2 * MINUTE)]
    const unknown = await missed(2 * MINUTE)
    await scene.store.write(updateDefinition(bare.name, null, content(null), BY()))
    await scene.store.write(pauseDefinition(paused.name, BY()))
    await sql(
      scene.store,
      "UPDATE ichido.job_definitions SET schedule = replace(schedule, 'UTC', 'Mars/Base') WHERE id = $1",
      unknown.id,
    )
    for (const { name } of [gone, paused, unknown]) await scene.store.write(deleteDefinition(name, BY()))
    await (await ticker(scene))()
    for (const definition of [bare, gone]) expect(await outcomes(definition)).toEqual(['skipped deleted'])
    const [entry] = await ledger(scene.store, gone)
    expect(Number(entry?.skipped_until) - Number(entry?.scheduled_for)).toBe(MINUTE)
    expect(await outcomes(paused)).toEqual(['skipped paused'])
    expect(await outcomes(unknown)).toEqual(['skipped deleted'])
    expect((await again(scene.store, bare)).nextTickAtMs).toBeNull()
  })

  test('overlap skip: no tick while an earlier job has not ended', async () => {
    const definition = await missed(3 * MINUTE, { overlap: 'skip' })
    const tick = await ticker(scene)
    await tickAll(tick)
    expect(await outcomes(definition)).toEqual(['job', 'skipped overlap', 'skipped overlap'])
    await end(definition)
    await scene.pass(MINUTE)
    await tickAll(tick)
    expect(await outcomes(definition)).toEqual(['job', 'skipped overlap', 'skipped overlap', 'job'])
  })

  test('overlap skip: a job that another user made by the name does not count', async () => {
    const definition = await missed(2 * MINUTE, { overlap: 'skip' })
    const lent = { key: null, definitionId: definition.id }
    await scene.services.submission.submit({ userId: 'another', role: 'submitter' }, { kind: 'work' }, lent)
    await tickAll(await ticker(scene))
    expect(await outcomes(definition)).toEqual(['job', 'skipped overlap'])
  })

  test('overlap queue_one: one tick waits until the job before it has ended', async () => {
    const definition = await missed(3 * MINUTE, { overlap: 'queue_one' })
    const tick = await ticker(scene)
    await tickAll(tick)
    expect(await outcomes(definition)).toEqual(['job', 'waiting_overlap', 'skipped overlap'])
    await end(definition)
    await scene.store.write(pauseDefinition(definition.name, BY()))
    await tickAll(tick)
    expect(await jobsOf(scene.store, definition)).toHaveLength(1)
    await sql(scene.store, 'UPDATE ichido.job_definitions SET paused_at = NULL')
    await tickAll(tick)
    expect(await outcomes(definition)).toEqual(['job', 'job', 'skipped overlap'])
    const [, second] = await ledger(scene.store, definition)
    expect((await jobsOf(scene.store, definition))[1]).toMatchObject({ id: second?.job_id, state: 'PENDING' })
  })

  test('hazard 3: a full quota holds; waiting ticks get free slots in order', async () => {
    const definition = await missed(4 * MINUTE)
    await limit(definition.userId, 1)
    const tick = await ticker(scene)
    await tickAll(tick)
    expect(await outcomes(definition)).toEqual(['job', ...Array(3).fill('waiting_quota quota_exceeded')])
    await tickAll(tick)
    expect(await jobsOf(scene.store, definition)).toHaveLength(1)
    for (const made of [2, 3, 4]) {
      await end(definition)
      await tickAll(tick)
      const jobs = await jobsOf(scene.store, definition)
      expect(jobs).toHaveLength(made)
      expect(jobs.filter(({ state }) => state === 'PENDING')).toHaveLength(1)
      expect(jobs.at(-1)).toMatchObject({ state: 'PENDING' })
    }
    expect(await outcomes(definition)).toEqual(Array(4).fill('job'))
  })

  test('jitter moves run_at, never the tick', async () => {
    const definition = await define(scene.store, { jitterSeconds: 600 })
    await scene.pass(20_000)
    await tickAll(await ticker(scene))
    const jobs = await jobsOf(scene.store, definition)
    expect(jobs.length).toBeGreaterThanOrEqual(19)
    const late = jobs.map(({ run_at, scheduled_for }) => Number(run_at) - Number(scheduled_for))
    expect(Math.max(...late)).toBeLessThan(600_000 + 30_000)
    expect(new Set(late).size).toBeGreaterThan(10)
    expect(jobs.every(({ scheduled_for }) => Number(scheduled_for) % 1000 === 0)).toBe(true)
  })

  test.each(['last', 'skip'] as const)(
    '%s: a clock ten minutes ahead and back doubles and loses no tick',
    async (catchUp) => {
      const clock = new ClockWatch(scene.world)
      const definition = await define(scene.store, { catchUp, cron: '*/20 * * * * *' })
      const tick = await ticker(scene, { clock, batchMax: 200 })
      const firstMs = definition.nextTickAtMs ?? 0
      const step = async () => {
        await scene.pass(20_000)
        await tickAll(tick)
      }
      await tick()
      for (let i = 0; i < 3; i++) await step()
      await scene.jump(10 * MINUTE)
      for (let i = 0; i < 3; i++) await step()
      await scene.jump(-10 * MINUTE)
      for (let i = 0; i < 32; i++) await step()
      const ticks = (await jobsOf(scene.store, definition)).map((job) => Number(job.scheduled_for))
      const lastMs = (await again(scene.store, definition)).lastTickAtMs ?? 0
      expect(ticks).toEqual(Array.from({ length: (lastMs - firstMs) / 20_000 + 1 }, (_, i) => firstMs + i * 20_000))
      expect(lastMs).toBeGreaterThan((await now()) - 40_000)
      expect(await outcomes(definition)).toEqual(ticks.map(() => 'job'))
    },
  )

  test('a tick that is in the ledger makes no job', async () => {
    const definition = await missed(2 * MINUTE)
    const dueMs = (await again(scene.store, definition)).nextTickAtMs ?? 0
    await sql(
      scene.store,
      `INSERT INTO ichido.occurrences (definition_id, scheduled_for, outcome, created_at) VALUES ($1, $2, 'skipped', 0)`,
      definition.id,
      dueMs,
    )
    await tickAll(await ticker(scene))
    expect((await jobsOf(scene.store, definition)).map((job) => job.scheduled_for)).toEqual([dueMs + MINUTE])
  })

  test('an unreadable rule is overdue, and does not delay others', async () => {
    const broken = await missed(MINUTE, { timeZone: 'Europe/Berlin' })
    const fine = await missed(MINUTE)
    await sql(
      scene.store,
      `UPDATE ichido.job_definitions SET schedule = replace(schedule, 'Europe/Berlin', 'Europe/Nowhere') WHERE id = $1`,
      broken.id,
    )
    const troubles: string[] = []
    const tick = await ticker(scene, { onTrouble: (where) => void troubles.push(where) })
    for (let i = 0; i < 2; i++) await tickAll(tick)
    expect(troubles).toEqual([`schedule of ${broken.name}`])
    expect(await outcomes(broken)).toEqual([])
    const { data } = await scene.services.occurrences.ledger(broken.name, { fromMs: null, toMs: null }, 10, null)
    expect(data).toMatchObject([{ job_id: null, created_at: null }])
    expect(await outcomes(fine)).toContain('job')
  })

  test('a locked user does not delay others', async () => {
    const [stuck, free] = [await missed(MINUTE), await missed(MINUTE)]
    const jobs = async () => [(await jobsOf(scene.store, stuck)).length, (await jobsOf(scene.store, free)).length]
    // All of them together, and then those of the first user alone.
    let refusals = 2
    const write: Store['write'] = (given) => {
      if (given.name !== 'make_ticks' || refusals === 0) return scene.store.write(given)
      refusals--
      return Promise.reject(new StoreUnavailable('PostgreSQL is held up'))
    }
    const troubles: string[] = []
    const onTrouble = (where: string) => void troubles.push(where)
    const tick = await ticker({ ...scene, store: { ...scene.store, write } }, { onTrouble })
    await tick()
    const [first = 0, second = 0] = await jobs()
    expect(Math.min(first, second)).toBe(0)
    expect(first + second).toBeGreaterThan(0)
    expect(troubles).toEqual([`schedules of ${first === 0 ? stuck.userId : free.userId}`])
    await tickAll(tick)
    expect(await jobs()).toEqual([Math.max(first, second), Math.max(first, second)])
  })

  test('many schedules due in the same second make all jobs within 5 s', async () => {
    const [count, nowMs] = [size(500, 10_000), await now()]
    const rows = Array.from({ length: count }, (_, i) => ({
      id: v7(),
      user_id: `user-${i % 50}`,
      schedule: JSON.stringify({
        ...EVERY_SECOND,
        cron: `0 ${i % 60} 3 * * *`,
        timeZone: i % 2 ? 'Europe/Berlin' : 'UTC',
      }),
      next: nowMs,
    }))
    await scene.store.write(command('many', () => each(insertDefinitions, rows)))
    const tick = await ticker(scene)
    const beganMs = performance.now()
    await tickAll(tick)
    const tookMs = performance.now() - beganMs
    const made = `SELECT count(*) AS jobs, count(DISTINCT definition_id) AS definitions FROM ichido.jobs`
    expect(await sql(scene.store, made)).toEqual([{ jobs: count, definitions: count }])
    expect(tookMs).toBeLessThan(5_000)
  })

  test('outcomes of ticks are counted', async () => {
    const counted: string[] = []
    const meter = {
      ...scene.meter,
      ticked: (outcome: string, lateMs: number) => void counted.push(`${outcome} ${lateMs > 0}`),
    }
    await missed(2 * MINUTE, { overlap: 'queue_one' })
    await tickAll(await ticker(scene, { meter }))
    expect(counted).toEqual(['job true', 'waiting_overlap true'])
  })
})
