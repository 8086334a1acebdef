import { describe, expect, test } from 'vitest'
import { FIRST_ID, PAYLOAD_BYTES_MAX } from '../../../src/core/run/job.ts'
import type { Definition } from '../../../src/core/schedule/definition.ts'
import type { TriggerRule } from '../../../src/core/schedule/trigger.ts'
import { realWorld } from '../../../src/node/world.ts'
import type { Command } from '../../../src/store/port.ts'
import {
  deleteDefinition,
  pauseDefinition,
  resumeDefinition,
  updateDefinition,
} from '../../../src/store/schedules/definitions.ts'
import type { Statement } from '../../../src/store/statement.ts'
import { submitJobs } from '../../../src/store/submission/submit-jobs.ts'
import { renewTerm, tryToLead } from '../../../src/store/system/leadership.ts'
import { removeTriggers } from '../../../src/store/system/retention.ts'
import type { Term } from '../../../src/store/system/term.ts'
import {
  findUnprocessed,
  findWaitingTriggers,
  type Processed,
  processTriggers,
  tryWaitingTriggers,
} from '../../../src/store/triggers/process-triggers.ts'
import * as statements from '../../../src/store/triggers/triggers.sql.ts'
import { recordTriggers, type TriggerItem } from '../../../src/store/triggers/triggers.ts'
import { seize } from '../../../src/testing/nodes/reaper.ts'
import { BY, content, jobsOf, tickAll } from '../../../src/testing/nodes/ticker.ts'
import { defineOn, happen, triggerer, triggerLedger } from '../../../src/testing/nodes/triggers.ts'
import { twoNodes } from '../../../src/testing/nodes/two-nodes.ts'
import { testServices } from '../../../src/testing/services/services.ts'
import { keptPlan, waysInto } from '../../../src/testing/store/explain.ts'
import { Scene } from '../../../src/testing/store/scene.ts'
import { sql, unique } from '../../../src/testing/store/store.ts'

/** A trigger races with another command. The result is that of one of the two orders. */

const maker = { newId: realWorld.uuid, leased: [] }
const { a, b, gate, meet } = twoNodes()

const item = (topic: string, changes: Partial<TriggerItem> = {}): TriggerItem => ({
  triggerId: realWorld.uuid(),
  userId: 'sender',
  operates: true,
  topic,
  dedupeKey: unique('key'),
  data: '{}',
  ...changes,
})

type Process = Command<Processed>
const process = (term: Term, { on, userId }: { on: TriggerRule; userId: string }, ids: readonly string[]): Process => {
  const triggers = ids.map((triggerId) => ({ triggerId, topic: on.topic, dataChars: 2 }))
  return processTriggers(term, { triggers, userIds: [userId] }, PAYLOAD_BYTES_MAX, maker)
}

/** A definition with three unprocessed triggers, and the leader's command that processes them. */
async function happened(rule: Partial<TriggerRule> = {}) {
  const definition = await defineOn(a(), rule)
  const items = [0, 1, 2].map(() => item(definition.on.topic))
  await a().write(recordTriggers(items))
  const term = await seize(a())
  const ids = items.map(({ triggerId }) => triggerId)
  return { definition, term, ids, make: process(term, definition, ids) }
}

const outcomes = async (definition: Pick<Definition, 'id'>) =>
  (await triggerLedger(a(), definition)).map(({ outcome }) => outcome)
/** Gives a user a limit of one job. */
const LIMITED_USER = `INSERT INTO ichido.quotas (user_id, custom, max_concurrent, period, updated_at)
  VALUES ($1, true, 1, 'month', 0)`
const limit = (userId: string) => sql(a(), LIMITED_USER, userId)

describe('recording of triggers', () => {
  test('a key from two nodes is stored once, and both get the same trigger', async () => {
    const [one, other] = [item('t'), item('t')]
    other.dedupeKey = one.dedupeKey
    const [[first], [second]] = await meet(recordTriggers([one]), recordTriggers([other]))
    expect(first).toMatchObject({ triggerId: one.triggerId, duplicate: false })
    expect(second).toMatchObject({ triggerId: one.triggerId, duplicate: true })
  })

  test('the same keys in opposite orders do not deadlock', async () => {
    const items = Array.from({ length: 20 }, () => item('t'))
    const others = items.toReversed().map((one) => ({ ...one, triggerId: realWorld.uuid() }))
    const held = await gate()
    const first = a().write(held.hold(recordTriggers(items)))
    await held.reached()
    const second = b().write(recordTriggers(others))
    await held.someoneWaits()
    await held.open()
    await first
    expect((await second).map(({ triggerId }) => triggerId)).toEqual(items.map(({ triggerId }) => triggerId).reverse())
  })

  test('repeating a recording after a lost COMMIT answer reports no duplicate', async () => {
    const record = recordTriggers([item('t'), item('t')])
    const first = await a().write(record)
    expect(await a().write({ ...record, work: () => record.work(true) })).toEqual(first)
    expect(first.map(({ duplicate }) => duplicate)).toEqual([false, false])
  })

  test('a key that retention is removing is either a duplicate or free again', async () => {
    for (const order of ['retention first', 'record first']) {
      const { term, ids, make } = await happened()
      await a().write(make)
      await sql(a(), 'UPDATE ichido.triggers SET settled_at = 1 WHERE settled_at IS NOT NULL')
      const [row] = await sql(a(), 'SELECT * FROM ichido.triggers WHERE id = $1', ids[0] ?? '')
      const again = item('t', { dedupeKey: String(row?.dedupe_key) })
      const [remove, record] = [removeTriggers(term, 1_000, 100), recordTriggers([again])]
      if (order === 'retention first') {
        const [removed, recorded] = await meet(remove, record)
        expect([removed >= 3, recorded[0]?.duplicate]).toEqual([true, false])
      } else {
        const [recorded] = await meet(record, remove)
        expect(recorded).toMatchObject([{ triggerId: ids[0], duplicate: true }])
      }
    }
  })

  test('a trigger that commits late is processed, even after a later trigger', async () => {
    const { definition, term, make } = await happened()
    const late = item(definition.on.topic)
    const held = await gate()
    const recording = a().write(held.hold(recordTriggers([late])))
    await held.reached()
    await b().write(make)
    await held.open()
    await recording
    const { triggers } = await a().read(findUnprocessed(1_000))
    expect(triggers.map(({ triggerId }) => triggerId)).toContain(late.triggerId)
    await a().write(process(term, definition, [late.triggerId]))
    expect(await jobsOf(a(), definition)).toHaveLength(4)
  })
})

describe('processing of triggers', () => {
  test('two leaders, or two tries of one leader, create each job once', async () => {
    const { definition, term, ids, make } = await happened()
    const [first, second] = await meet(make, process(term, definition, ids))
    expect([first.triggers, second.triggers].sort()).toEqual([0, 3])
    expect(await b().write({ ...make, work: () => make.work(true) })).toEqual({ triggers: 0, made: [] })
    expect(await jobsOf(a(), definition)).toHaveLength(3)
  })

  test('the ledger alone prevents a second job of a definition and trigger', async () => {
    const { definition, ids, make } = await happened()
    await a().write(make)
    await sql(
      a(),
      'UPDATE ichido.triggers SET processed_at = NULL, settled_at = NULL WHERE topic = $1',
      definition.on.topic,
    )
    expect(await a().write(make)).toEqual({ triggers: ids.length, made: [] })
    expect(await jobsOf(a(), definition)).toHaveLength(3)
  })

  test('hazard 15: a term that is over, or ends during the wait, changes nothing', async () => {
    const { definition, term, ids } = await happened()
    const current = await seize(a())
    const nothing = { triggers: 0, made: [] }
    for (const old of [term, { ...term, epoch: current.epoch }, { ...current, epoch: term.epoch }]) {
      expect(await a().write(process(old, definition, ids))).toEqual(nothing)
    }
    await sql(a(), 'UPDATE ichido.leadership SET expires_at = 0')
    const [taken, late] = await meet(tryToLead('next', 60_000), process(current, definition, ids))
    expect([taken.held, late]).toEqual([true, nothing])
    expect(await outcomes(definition)).toEqual([])
    const last = await seize(a())
    await sql(a(), 'UPDATE ichido.leadership SET expires_at = 0')
    const [made] = await meet(process(last, definition, ids), tryToLead('another', 60_000))
    expect(made.triggers).toBe(3)
  })

  test('if the pause is first, all triggers wait; otherwise all create jobs', async () => {
    const first = await happened()
    await meet(first.make, pauseDefinition(first.definition.name, BY()))
    expect(await outcomes(first.definition)).toEqual(Array(3).fill('job'))
    const second = await happened()
    await meet(pauseDefinition(second.definition.name, BY()), second.make)
    expect(await outcomes(second.definition)).toEqual(Array(3).fill('waiting_pause'))
    expect(await a().read(findWaitingTriggers(FIRST_ID, 100))).toEqual([])
  })

  test('jobs have the old or the new content of a changing definition, and none is lost', async () => {
    const changed = (on: TriggerRule) => content(null, { on, payload: '"new"' })
    const first = await happened()
    await meet(first.make, updateDefinition(first.definition.name, null, changed(first.definition.on), BY()))
    const second = await happened()
    await meet(updateDefinition(second.definition.name, null, changed(second.definition.on), BY()), second.make)
    const payloads = async (definition: Definition) => (await jobsOf(a(), definition)).map(({ payload }) => payload)
    expect(await payloads(first.definition)).toEqual(Array(3).fill('{}'))
    expect(await payloads(second.definition)).toEqual(Array(3).fill('"new"'))
  })

  test('if the deletion is first, no trigger creates a job; earlier jobs continue', async () => {
    const first = await happened()
    await meet(first.make, deleteDefinition(first.definition.name, BY()))
    expect(await jobsOf(a(), first.definition)).toHaveLength(3)
    const second = await happened()
    const [, made] = await meet(deleteDefinition(second.definition.name, BY()), second.make)
    expect(made).toEqual({ triggers: 3, made: [] })
    expect(await jobsOf(a(), second.definition)).toEqual([])
  })

  test.each(['user', 'definition'])('waiting for a %s does not block the renewal of the term', async (row) => {
    const { definition, term, make } = await happened()
    await limit(definition.userId)
    const submit = submitJobs([new Scene(a()).item({ userId: definition.userId })], () => '')
    const held = await gate()
    const holding = a().write<unknown>(
      held.hold<unknown>(row === 'user' ? submit : pauseDefinition(definition.name, BY())),
    )
    await held.reached()
    const processing = b().write(make)
    await held.someoneWaits()
    expect(await a().write(renewTerm(term, 60_000))).toMatchObject({ held: true })
    await held.open()
    await holding
    expect((await processing).made.map(({ outcome }) => outcome)).toEqual(
      Array(3).fill(row === 'user' ? 'waiting_quota' : 'waiting_pause'),
    )
  })
})

test('a user with a locked row does not delay the triggers of other users', async () => {
  const { services } = await testServices('postgres', {}, { store: b(), remove: async () => {} })
  const [held, free] = [await defineOn(a()), await defineOn(a())]
  const beside = await defineOn(a(), { topic: held.on.topic })
  await limit(held.userId)
  const troubles: string[] = []
  const given = { services, ...services.deps }
  const tick = await triggerer(given, { onTrouble: (where) => void troubles.push(where) })
  await tickAll(tick)
  for (const { on } of [held, free]) await happen(given, on.topic)
  const locked = await gate()
  const submitting = a().write(locked.hold(submitJobs([new Scene(a()).item({ userId: held.userId })], () => '')))
  await locked.reached()
  await tick()
  expect([await outcomes(free), await outcomes(beside), await outcomes(held)]).toEqual([
    ['job'],
    ['job'],
    ['waiting_turn'],
  ])
  await locked.open()
  await submitting
  await sql(a(), `UPDATE ichido.runs SET state = 'SUCCEEDED' WHERE user_id = $1`, held.userId)
  await tickAll(tick)
  expect([await outcomes(held), troubles]).toEqual([['job'], []])
})

describe('waiting triggers', () => {
  const waitingOf = async ({ id }: Definition) =>
    (await a().read(findWaitingTriggers(FIRST_ID, 1_000))).filter(({ definitionId }) => definitionId === id)
  const attempt = (term: Term, waiting: Awaited<ReturnType<typeof waitingOf>>) =>
    tryWaitingTriggers(term, waiting, PAYLOAD_BYTES_MAX, maker)

  /** Triggers that waited for a pause that is over. */
  async function kept() {
    const given = await happened()
    await a().write(pauseDefinition(given.definition.name, BY()))
    await a().write(given.make)
    await a().write(resumeDefinition(given.definition.name, BY()))
    return { ...given, waiting: await waitingOf(given.definition) }
  }

  test('several tries create each job once, and an old term creates none', async () => {
    const { definition, term, waiting } = await kept()
    expect(waiting).toMatchObject([{ triggers: { length: 3 } }])
    const current = await seize(a())
    expect(await a().write(attempt(term, waiting))).toEqual([])
    const [one, two] = await meet(attempt(current, waiting), attempt(current, waiting))
    expect([one.length, two.length].sort()).toEqual([0, 3])
    expect(await jobsOf(a(), definition)).toHaveLength(3)
  })

  test('after a pause or a deletion no waiting trigger creates a job', async () => {
    const paused = await kept()
    const [, none] = await meet(pauseDefinition(paused.definition.name, BY()), attempt(paused.term, paused.waiting))
    expect([none, await outcomes(paused.definition)]).toEqual([[], Array(3).fill('waiting_pause')])
    const skipping = content(null, { on: { ...paused.definition.on, whenPaused: 'skip' } })
    await a().write(updateDefinition(paused.definition.name, null, skipping, BY()))
    expect(await a().write(attempt(paused.term, paused.waiting)), 'the pause has come since').toEqual([])
    expect(await outcomes(paused.definition)).toEqual(Array(3).fill('waiting_pause'))
    const deleted = await kept()
    const [, gone] = await meet(deleteDefinition(deleted.definition.name, BY()), attempt(deleted.term, deleted.waiting))
    expect([gone, await jobsOf(a(), deleted.definition)]).toEqual([[], []])
  })

  test('retention never removes waiting triggers', async () => {
    const { term, ids } = await kept()
    await a().write(removeTriggers(term, 0, 1_000))
    const [{ count } = {}] = await sql(a(), 'SELECT count(*) AS count FROM ichido.triggers WHERE id = $1', ids[0] ?? '')
    expect(count).toBe(1)
  })
})

test('triggers are locked and marked by primary key, even with a generic plan', async () => {
  for (const statement of [statements.lockUnprocessed, statements.markProcessed]) {
    expect(waysInto(await keptPlan(a(), statement), 'triggers')).toEqual(['triggers_pkey'])
  }
  expect(waysInto(await keptPlan(a(), statements.shareOnTopics), 'job_definitions')).toEqual(['job_definitions_topic'])
})

test('of many waiting triggers, only the outcomes of a batch are read', async () => {
  const waysOf = async (statement: Statement) => waysInto(await keptPlan(a(), statement), 'trigger_outcomes')
  expect(await waysOf(statements.lockWaiting)).toEqual(['trigger_outcomes_pkey'])
  expect(await waysOf(statements.settleTriggers)).toEqual(['trigger_outcomes_trigger'])
})
