import type { TriggerOutcome } from '@ichido/sdk/protocol'
import type { Definition } from '../../core/schedule/definition.ts'
import { decide, matches, type TriggerRule } from '../../core/schedule/trigger.ts'
import { addUsers, shareUsers } from '../limits/quotas.sql.ts'
import { lockUsersOf, type UserLimits } from '../limits/users.ts'
import { type Command, command } from '../port.ts'
import { definitionItem, type MadeJob, type Maker, submitUnkeyed } from '../schedules/definition-jobs.ts'
import { toDefinition } from '../schedules/definitions.ts'
import { each, query, type RowOf, type Work } from '../statement.ts'
import type { UntaggedItem } from '../submission/submission.ts'
import type { Term } from '../system/term.ts'
import * as sql from './triggers.sql.ts'

export interface Unprocessed {
  triggerId: string
  topic: string
  dataChars: number
}

export interface OnTopic {
  definitionId: string
  userId: string
  topic: string
  payloadChars: number
}

/** Finds triggers in the order of their arrival, and the definitions that they may make jobs of. */
export function findUnprocessed(max: number): Command<{ triggers: Unprocessed[]; definitions: OnTopic[] }> {
  return command('find_unprocessed_triggers', function* work() {
    const triggers = (yield* query(sql.readUnprocessed, { max })).map(({ id, topic, data_chars }) => ({
      triggerId: id,
      topic,
      dataChars: data_chars,
    }))
    const rows = yield* each(sql.readOnTopics, topicsOf(triggers))
    const definitions = rows.map(({ id, user_id, topic, payload_chars }) => ({
      definitionId: id,
      userId: user_id,
      topic,
      payloadChars: payload_chars,
    }))
    return { triggers, definitions }
  })
}

const topicsOf = (triggers: readonly Pick<Unprocessed, 'topic'>[]) =>
  [...new Set(triggers.map(({ topic }) => topic))].map((topic) => ({ topic }))

/** The outcome of a trigger for a definition. */
export interface Made extends Omit<MadeJob, 'outcome'> {
  definitionId: string
  triggerId: string
  outcome: TriggerOutcome
  field: string | null
}

interface Batch {
  /** In the order of their arrival. */
  triggers: readonly Unprocessed[]
  /** The users of the definitions that they may make jobs of. */
  userIds: readonly string[]
  /** Do not wait for users with limits: their triggers wait for their turn instead. */
  hasty?: boolean
}

export interface Processed {
  triggers: number
  made: Made[]
}

/**
 * Writes the ledger, the jobs and `processed_at` of each trigger, in one transaction under the leader's fence. The
 * current definitions count. Locks: users, definitions, the term, triggers. A wait for a user or a definition under the
 * lock of the term would block the leader's renewal.
 */
export function processTriggers(
  term: Term,
  { triggers, userIds, hasty = false }: Batch,
  payloadBytesMax: number,
  maker: Maker,
): Command<Processed> {
  const ids = JSON.stringify(triggers.map(({ triggerId }) => triggerId))
  const place = new Map(triggers.map(({ triggerId }, i) => [triggerId, i]))
  return command('process_triggers', function* work(): Work<Processed> {
    const users = yield* hasty ? shareUnlimited(userIds) : lockUsersOf(userIds)
    const counted = new Set(users.map(({ user_id }) => user_id))
    const definitions = (yield* each(sql.shareOnTopics, topicsOf(triggers))).map(toDefinition).filter(hasRule)
    const locked = yield* query(sql.lockUnprocessed, { ...term, ids })
    if (locked.length === 0) return { triggers: 0, made: [] }
    const arrived = locked.map(toTrigger).sort((a, b) => (place.get(a.id) ?? 0) - (place.get(b.id) ?? 0))
    const waiting = yield* readWithWaiting(definitions)
    const draft = drafter(payloadBytesMax, maker)
    const drafts = arrived.flatMap((trigger) =>
      definitions
        .filter((definition) => concerns(trigger, definition))
        .map((definition) => {
          const behind = waiting.has(definition.id) || !counted.has(definition.userId)
          return { ...draft(definition, trigger, behind), triggeredAtMs: trigger.createdAtMs }
        }),
    )
    const made = yield* carryOut(drafts, maker)
    const waits = new Set(made.filter(isWaiting).map(({ triggerId }) => triggerId))
    const marked = yield* each(
      sql.markProcessed,
      arrived.map(({ id }) => ({ id, waits: waits.has(id) })),
    )
    if (marked.length !== arrived.length) throw new Error('A trigger that is locked was processed')
    return { triggers: arrived.length, made }
  })
}

/** Leaves out users with limits, so it does not wait for submissions. */
function* shareUnlimited(userIds: readonly string[]): Work<UserLimits[]> {
  const ids = [...new Set(userIds)].sort().map((user_id) => ({ user_id }))
  yield* each(addUsers, ids)
  return yield* each(shareUsers, ids)
}

type WithRule = Definition & { on: TriggerRule }

const hasRule = (definition: Definition): definition is WithRule => definition.on !== null

interface Trigger {
  id: string
  userId: string
  operates: boolean
  topic: string
  data: unknown
  createdAtMs: number
}

function toTrigger(row: RowOf<typeof sql.lockUnprocessed>): Trigger {
  const { id, user_id, operates, topic, data, created_at } = row
  return { id, userId: user_id, operates, topic, data, createdAtMs: created_at }
}

/** True if the sender may run the definition, it existed before the trigger, and the rule matches. */
function concerns({ userId, operates, topic, data, createdAtMs }: Trigger, definition: WithRule): boolean {
  const mayRun = operates || userId === definition.userId
  return mayRun && definition.createdAtMs <= createdAtMs && matches(definition.on, topic, data)
}

interface Draft {
  made: Made
  /** Null: it makes no job now. */
  item: UntaggedItem | null
}

/**
 * The limit of one transaction: a template may make a megabyte of little data. PostgreSQL always refuses a statement of
 * several hundred megabytes.
 */
const FILLED_CHARS_MAX = 4 * 1024 * 1024

/**
 * Drafts what matching triggers make of definitions. Once the payloads are too large together, the rest waits for its
 * turn.
 */
function drafter(payloadBytesMax: number, maker: Maker) {
  let chars = 0
  return (definition: WithRule, { id: triggerId, data }: Pick<Trigger, 'id' | 'data'>, isBehind: boolean): Draft => {
    const load = { paused: definition.pausedAtMs !== null, behind: isBehind || chars > FILLED_CHARS_MAX }
    const decision = decide(definition, data, load, payloadBytesMax)
    const base = { definitionId: definition.id, triggerId, jobId: null, ready: null }
    if (decision.outcome !== 'job') return { made: { ...base, ...decision }, item: null }
    chars += decision.payload.length
    const job = { payload: decision.payload, scheduledForMs: null, runAtMs: null }
    const item = definitionItem(definition, job, maker)
    return { made: { ...base, outcome: 'job', reason: null, field: null, jobId: item.jobId }, item }
  }
}

/** Submits the jobs in the order of the list. A job that its quota refuses waits. */
function* submitDrafts(drafts: readonly Draft[], maker: Maker): Work<Made[]> {
  const jobs = yield* submitUnkeyed(
    drafts.flatMap(({ item }) => item ?? []),
    maker,
  )
  return drafts.map(({ made, item }) => ({ ...made, ...(item && jobs.get(item.jobId)) }))
}

/** A pair that is in the ledger makes no second job. */
function* carryOut(drafts: readonly (Draft & { triggeredAtMs: number })[], maker: Maker): Work<Made[]> {
  const inserted = yield* each(
    sql.insertOutcomes,
    drafts.map(({ made, triggeredAtMs }) => {
      const { definitionId, triggerId, outcome, jobId, reason, field } = made
      return {
        definition_id: definitionId,
        trigger_id: triggerId,
        triggered_at: triggeredAtMs,
        outcome,
        job_id: jobId,
        reason,
        field,
      }
    }),
  )
  const pairs = new Set(inserted.map((row) => pairOf(row.definition_id, row.trigger_id)))
  const ours = drafts.filter(({ made }) => pairs.has(pairOf(made.definitionId, made.triggerId)))
  const made = yield* submitDrafts(ours, maker)
  yield* changeOutcomes(made.map((one, i) => ({ ...one, seen: ours[i]?.made.outcome ?? one.outcome })))
  return made
}

/** `seen` is the outcome in the ledger. */
function* changeOutcomes(made: readonly (Made & { seen: TriggerOutcome })[]): Work<void> {
  const changed = made.filter(({ seen, outcome }) => seen !== outcome)
  yield* each(
    sql.changeOutcomes,
    changed.map(({ definitionId, triggerId, seen, outcome, jobId, reason, field }) => ({
      definition_id: definitionId,
      trigger_id: triggerId,
      seen,
      outcome,
      job_id: jobId,
      reason,
      field,
    })),
  )
}

function* readWithWaiting(definitions: readonly Definition[]): Work<Set<string>> {
  const rows = yield* each(
    sql.readWithWaiting,
    definitions.map(({ id }) => ({ id })),
  )
  return new Set(rows.map(({ id }) => id))
}

const isWaiting = ({ outcome }: Made) => outcome.startsWith('waiting')

const pairOf = (definitionId: string, triggerId: string) => `${definitionId}/${triggerId}`

/** A definition that is not paused, and has waiting triggers. */
export interface WaitingDefinition {
  definitionId: string
  /** Null: it was deleted. */
  userId: string | null
  /** The first waiting triggers, in the order of their arrival. */
  triggers: { triggerId: string; chars: number }[]
}

/** Each definition gets its share of `max`. */
export function findWaitingTriggers(afterDefinitionId: string, max: number): Command<WaitingDefinition[]> {
  return command('find_waiting_triggers', function* work(): Work<WaitingDefinition[]> {
    const rows = yield* query(sql.readWaitingDefinitions, { after: afterDefinitionId, max })
    const share = Math.max(1, Math.floor(max / Math.max(1, rows.length)))
    const first = yield* each(
      sql.readFirstWaiting,
      rows.map(({ id }) => ({ id, max: share })),
    )
    const waiting = Map.groupBy(first, (row) => row.definition_id)
    return rows.map(({ id, user_id, payload_chars }) => {
      const triggers = (waiting.get(id) ?? []).map(({ trigger_id, data_chars }) => ({
        triggerId: trigger_id,
        chars: data_chars + (payload_chars ?? 0),
      }))
      return { definitionId: id, userId: user_id, triggers }
    })
  })
}

/**
 * Decides again about waiting triggers, by their current definitions. Returns those that no longer wait. A definition
 * that is paused or gone is left alone.
 */
export function tryWaitingTriggers(
  term: Term,
  waiting: readonly WaitingDefinition[],
  payloadBytesMax: number,
  maker: Maker,
): Command<Made[]> {
  const ids = JSON.stringify(waiting.map(({ definitionId }) => definitionId))
  return command('try_waiting_triggers', function* work(): Work<Made[]> {
    yield* lockUsersOf(waiting.flatMap(({ userId }) => userId ?? []))
    const definitions = new Map(
      (yield* query(sql.shareUnpaused, { ...term, ids })).map((row) => [row.id, toDefinition(row)]),
    )
    const pairs = waiting.flatMap(({ definitionId, triggers }) =>
      definitions.has(definitionId)
        ? triggers.map(({ triggerId }) => ({ definition_id: definitionId, trigger_id: triggerId }))
        : [],
    )
    const locked = (yield* each(sql.lockWaiting, pairs)).toSorted(byArrival)
    const draft = drafter(payloadBytesMax, maker)
    const drafts = locked.map((row) => {
      const definition = definitions.get(row.definition_id)
      if (definition === undefined) throw new Error('A trigger was locked without its definition')
      const trigger = { id: row.trigger_id, data: row.data }
      if (hasRule(definition) && matches(definition.on, row.topic, trigger.data)) {
        return draft(definition, trigger, false)
      }
      const made: Made = { ...NOTHING, definitionId: definition.id, triggerId: trigger.id, reason: 'changed' }
      return { made, item: null }
    })
    const made = yield* submitDrafts(drafts, maker)
    yield* changeOutcomes(made.map((one, i) => ({ ...one, seen: locked[i]?.outcome ?? one.outcome })))
    const over = made.filter((one) => !isWaiting(one))
    yield* settle(over.map(({ triggerId }) => triggerId))
    return over
  })
}

const NOTHING = { outcome: 'skipped', field: null, jobId: null, ready: null } as const

/** Skips the waiting triggers of a deleted definition. */
export function dropWaitingTriggers(term: Term, definitionId: string, max: number): Command<number> {
  return command('drop_waiting_triggers', function* work(): Work<number> {
    const dropped = yield* query(sql.dropOrphaned, { ...term, definition_id: definitionId, max })
    yield* settle(dropped.map(({ trigger_id }) => trigger_id))
    return dropped.length
  })
}

function* settle(triggerIds: readonly string[]): Work<void> {
  yield* each(
    sql.settleTriggers,
    [...new Set(triggerIds)].map((id) => ({ id })),
  )
}

type Waiting = RowOf<typeof sql.lockWaiting>

/** Sorts the triggers of all definitions together: the earliest gets the first free slot. */
function byArrival(a: Waiting, b: Waiting): number {
  return a.triggered_at - b.triggered_at || (a.trigger_id < b.trigger_id ? -1 : 1)
}
