import { describe, expect, test } from 'vitest'
import { FIRST_ID } from '../../../src/core/run/job.ts'
import type { Definition } from '../../../src/core/schedule/definition.ts'
import type { Schedule } from '../../../src/core/schedule/schedule.ts'
import { planTicks } from '../../../src/core/schedule/ticks.ts'
import { realWorld } from '../../../src/node/world.ts'
import { setQuota } from '../../../src/store/limits/quotas.ts'
import type { Command } from '../../../src/store/port.ts'
import { beginBackfill, findBackfill, stepBackfill } from '../../../src/store/schedules/backfills.ts'
import {
  deleteDefinition,
  pauseDefinition,
  resumeDefinition,
  updateDefinition,
} from '../../../src/store/schedules/definitions.ts'
import { advanceNextTick, lockDue } from '../../../src/store/schedules/ticks.sql.ts'
import {
  findWaitingTicks,
  makeTicks,
  type Planned,
  type Tick,
  tryWaitingTicks,
} from '../../../src/store/schedules/ticks.ts'
import { submitJobs } from '../../../src/store/submission/submit-jobs.ts'
import { renewTerm, tryToLead } from '../../../src/store/system/leadership.ts'
import type { Term } from '../../../src/store/system/term.ts'
import { seize } from '../../../src/testing/nodes/reaper.ts'
import { again, BY, content, define, EVERY_SECOND, jobsOf, ledger, setDue } from '../../../src/testing/nodes/ticker.ts'
import { twoNodes } from '../../../src/testing/nodes/two-nodes.ts'
import { keptPlan, waysInto } from '../../../src/testing/store/explain.ts'
import { Scene } from '../../../src/testing/store/scene.ts'
import { sql } from '../../../src/testing/store/store.ts'

/** A tick races with another command on its definition. The result is that of one of the two orders. */

const MINUTE = 60_000
const maker = { newId: realWorld.uuid, leased: [] }
const { a, b, gate, meet, pass } = twoNodes()

/** A definition with three due ticks, and the leader's command that processes them. */
async function due(
  schedule: Partial<Schedule> = {},
): Promise<{ definition: Definition; term: Term; make: Command<Tick[]> }> {
  const made = await define(a(), { cron: '* * * * *', ...schedule })
  await setDue(a(), made, Math.floor(realWorld.now() / MINUTE) * MINUTE - 2 * MINUTE)
  const definition = await again(a(), made)
  const term = await seize(a())
  return { definition, term, make: makeAll(term, definition) }
}

function makeAll(term: Term, definition: Definition): Command<Tick[]> {
  return makeTicks(term, [planned(definition)], maker)
}

function planned(definition: Definition): Planned {
  const { schedule, nextTickAtMs: dueAtMs } = definition
  if (schedule === null || dueAtMs === null) throw new Error('It is not due')
  const lateness = { dueAtMs, nowMs: dueAtMs + 2 * MINUTE, evenMs: Number.MAX_SAFE_INTEGER, max: 100 }
  return { definition, dueAtMs, plan: planTicks(schedule, lateness) }
}

/** Gives a user a limit of one job. */
const LIMITED_USER = `INSERT INTO ichido.quotas (user_id, custom, max_concurrent, period, updated_at)
  VALUES ($1, true, 1, 'month', 0)`
const limitTo = (userId: string, maxConcurrent: number | null) =>
  a().write(setQuota(userId, { maxConcurrent, costLimitMicros: null, period: 'month' }))

describe('ticks race with another command', () => {
  test("two leaders, or two tries of one leader, create each tick's job once", async () => {
    const { definition, term, make } = await due()
    const [first, second] = await meet(make, makeAll(term, definition))
    expect([first.length, second.length].sort()).toEqual([0, 3])
    expect(await jobsOf(a(), definition)).toHaveLength(3)
    expect(await b().write(makeAll(term, definition))).toEqual([])
    expect(await ledger(a(), definition)).toHaveLength(3)
  })

  test('a definition that another node has locked is skipped and delays no other', async () => {
    const [first, second] = [await due(), await due()]
    const { term } = second
    // Processing inserts new users, and two such inserts would wait for each other.
    for (const { definition } of [first, second]) await limitTo(definition.userId, null)
    const [ours, theirs] = [planned(first.definition), planned(second.definition)]
    const [one, two] = await pass(makeTicks(term, [ours], maker), () =>
      b().write(makeTicks(term, [ours, theirs], maker)),
    )
    expect(one).toHaveLength(3)
    expect(two.map(({ definitionId }) => definitionId)).toEqual(Array(3).fill(second.definition.id))
  })

  test('waiting ticks that another node has locked are skipped', async () => {
    const { definition, term, make } = await due()
    await limitTo(definition.userId, 0)
    await a().write(make)
    const waiting = (await a().read(findWaitingTicks(FIRST_ID, 100))).filter(
      (tick) => tick.definitionId === definition.id,
    )
    expect(waiting).toHaveLength(1)
    await limitTo(definition.userId, null)
    const attempt = () => tryWaitingTicks(term, waiting, maker)
    const [one, two] = await pass(attempt(), () => b().write(attempt()))
    expect([one.length, two.length]).toEqual([1, 0])
    await a().write(deleteDefinition(definition.name, BY()))
  })

  test('hazard 15: a term that is over, or ends during the wait, changes nothing', async () => {
    const { definition, term } = await due()
    const current = await seize(a())
    for (const old of [term, { ...term, epoch: current.epoch }, { ...current, epoch: term.epoch }]) {
      expect(await a().write(makeAll(old, definition))).toEqual([])
    }
    expect(await again(a(), definition)).toEqual(definition)
    // The next leader has taken over, but not committed, when the old leader processes its ticks.
    await sql(a(), 'UPDATE ichido.leadership SET expires_at = 0')
    const [taken, ticks] = await meet(tryToLead('next', 60_000), makeAll(current, definition))
    expect(taken.held).toBe(true)
    expect(ticks).toEqual([])
    expect(await ledger(a(), definition)).toEqual([])
    // In the other order, the takeover waits until the old leader's ticks are committed.
    const last = await seize(a())
    await sql(a(), 'UPDATE ichido.leadership SET expires_at = 0')
    const [made] = await meet(makeAll(last, definition), tryToLead('another', 60_000))
    expect(made).toHaveLength(3)
  })

  test('if the pause is first, no tick creates a job, and the ledger says "paused"', async () => {
    const first = await due()
    await meet(first.make, pauseDefinition(first.definition.name, BY()))
    expect(await jobsOf(a(), first.definition)).toHaveLength(3)
    const second = await due()
    const [, made] = await meet(pauseDefinition(second.definition.name, BY()), second.make)
    expect(made).toEqual([])
    expect(await a().write(second.make)).toEqual([])
    await a().write(resumeDefinition(second.definition.name, BY()))
    expect(await a().write(second.make)).toEqual([])
    expect(await jobsOf(a(), second.definition)).toEqual([])
    expect(await ledger(a(), second.definition)).toMatchObject([{ outcome: 'skipped', reason: 'paused' }])
  })

  test('if a change of the rule is first, no tick of the old rule creates a job', async () => {
    const rule = content({ cron: '30 4 * * *' })
    const first = await due()
    await meet(first.make, updateDefinition(first.definition.name, null, rule, BY()))
    expect(await jobsOf(a(), first.definition)).toHaveLength(3)
    const { nextTickAtMs } = await again(a(), first.definition)
    expect(new Date(nextTickAtMs ?? 0).toISOString()).toContain('T04:30:00.000Z')
    const second = await due()
    const [, made] = await meet(updateDefinition(second.definition.name, null, rule, BY()), second.make)
    expect(made).toEqual([])
    expect(await a().write(second.make)).toEqual([])
    expect(await jobsOf(a(), second.definition)).toEqual([])
  })

  test('if the deletion is first, no tick creates a job; earlier jobs continue', async () => {
    const first = await due()
    await meet(first.make, deleteDefinition(first.definition.name, BY()))
    expect(await jobsOf(a(), first.definition)).toHaveLength(3)
    const second = await due()
    const [, made] = await meet(deleteDefinition(second.definition.name, BY()), second.make)
    expect(made).toEqual([])
    expect(await ledger(a(), second.definition)).toMatchObject([
      { outcome: 'skipped', reason: 'deleted', job_id: null },
    ])
  })

  test('a free slot goes to one waiting tick or to one submission', async () => {
    const { definition, term, make } = await due()
    const { userId } = definition
    await sql(a(), LIMITED_USER, userId)
    expect((await a().write(make)).map(({ outcome }) => outcome)).toEqual(['job', 'waiting_quota', 'waiting_quota'])
    const waiting = await a().read(findWaitingTicks(FIRST_ID, 10))
    const attempt = () => tryWaitingTicks(term, waiting, maker)
    expect(await a().write(attempt())).toEqual([])
    const end = () => sql(a(), `UPDATE ichido.runs SET state = 'SUCCEEDED' WHERE user_id = $1`, userId)
    await end()
    const [one, two] = await meet(attempt(), attempt())
    expect(one.length + two.length).toBe(1)
    expect(await jobsOf(a(), definition)).toHaveLength(2)
    await end()
    const scene = new Scene(b())
    const [next] = await b()
      .read(findWaitingTicks(FIRST_ID, 10))
      .then((all) => all.filter((tick) => tick.definitionId === definition.id))
    if (next === undefined) throw new Error('One more waits')
    const [made] = await Promise.all([a().write(tryWaitingTicks(term, [next], maker)), scene.submit({ userId })])
    const active = await sql(
      a(),
      `SELECT 1 FROM ichido.runs WHERE user_id = $1 AND latest AND state = 'PENDING'`,
      userId,
    )
    expect(active).toHaveLength(1)
    expect((await ledger(a(), definition)).at(-1)).toMatchObject({
      outcome: made.length === 1 ? 'job' : 'waiting_quota',
    })
  })

  test("ticks that wait for a user's lock do not block the renewal of the term", async () => {
    const { definition, term, make } = await due()
    const { userId } = definition
    await sql(a(), LIMITED_USER, userId)
    const held = await gate()
    const item = new Scene(a()).item({ userId })
    const submitting = a().write(held.hold(submitJobs([item], () => '')))
    await held.reached()
    const ticking = b().write(make)
    await held.someoneWaits()
    expect(await a().write(renewTerm(term, 60_000))).toMatchObject({ held: true })
    await held.open()
    await submitting
    expect((await ticking).map(({ outcome }) => outcome)).toEqual(Array(3).fill('waiting_quota'))
  })

  test('a waiting tick is skipped if its definition is deleted first', async () => {
    const { definition, term, make } = await due({ overlap: 'queue_one' })
    await a().write(make)
    await sql(a(), `UPDATE ichido.runs SET state = 'SUCCEEDED' WHERE definition_id = $1`, definition.id)
    const waiting = (await a().read(findWaitingTicks(FIRST_ID, 10))).filter(
      (tick) => tick.definitionId === definition.id,
    )
    expect(waiting).toHaveLength(1)
    const [, made] = await meet(deleteDefinition(definition.name, BY()), tryWaitingTicks(term, waiting, maker))
    expect(made).toEqual([])
    expect((await ledger(a(), definition))[1]).toMatchObject({ outcome: 'skipped', reason: 'deleted' })
  })

  test('ticks and a backfill of the same range create each job once', async () => {
    for (const order of ['tick first', 'backfill first']) {
      const { definition, term, make } = await due()
      const { id, name, nextTickAtMs } = definition
      const fromMs = nextTickAtMs ?? 0
      const backfillId = realWorld.uuid()
      const range = { fromMs, toMs: fromMs + 3 * MINUTE, schedule: EVERY_SECOND, matched: 3 }
      const backfill = await a().write(beginBackfill({ backfillId, definition: { id, name }, ...range }, BY()))
      const ticks = [0, 1, 2].map((i) => fromMs + i * MINUTE)
      const step = stepBackfill(term, { backfill, definition, ticks }, maker)
      if (order === 'tick first') await meet(make, step)
      else await meet(step, make)
      // The ticks of a definition that was locked are processed later.
      await a().write(make)
      expect(await jobsOf(a(), definition)).toHaveLength(3)
      expect(await ledger(a(), definition)).toHaveLength(3)
      expect(await a().read(findBackfill(backfillId))).toMatchObject({ made: order === 'tick first' ? 0 : 3 })
      expect((await again(a(), definition)).nextTickAtMs).toBe(fromMs + 3 * MINUTE)
    }
  })

  test('ticks whose COMMIT answer was lost are not processed again', async () => {
    const { definition, make } = await due()
    await a().write(make)
    expect(await a().write({ ...make, work: () => make.work(true) })).toEqual([])
    expect(await jobsOf(a(), definition)).toHaveLength(3)
  })
})

test('due definitions are locked and updated by primary key, even with a generic plan', async () => {
  for (const statement of [lockDue, advanceNextTick]) {
    expect(waysInto(await keptPlan(a(), statement), 'job_definitions')).toEqual(['job_definitions_pkey'])
  }
})
