import type { TriggerOutcome } from '@ichido/sdk/protocol'
import type { Definition } from '../../core/schedule/definition.ts'
import { decide, matches, type TriggerRule } from '../../core/schedule/trigger.ts'
import { addUsers, shareUsers } from '../limits/quotas.sql.ts'
import { lockUsersOf, type UserLimits } from '../limits/users.ts'
import { type Command, command } from '../port.ts'
import { definitionItem, type Maker, resultOf, submitUnkeyed } from '../schedules/definition-jobs.ts'
import { toDefinition } from '../schedules/definitions.ts'
import { each, query, type RowOf, type Work } from '../statement.ts'
import type { UntaggedItem } from '../submission/submission.ts'
import type { Term } from '../system/leadership.ts'
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

/** In the order of their arrival, and the definitions that they may make jobs of. */
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

/** What a trigger has made of a definition. */
export interface Made {
  definitionId: string
  triggerId: string
  outcome: TriggerOutcome
  reason: string | null
  field: string | null
  jobId: string | null
  /** The queue, when a worker can have the job now. */
  wakes: string | null
}

export interface Batch {
  /** In the order of their arrival. */
  triggers: readonly Unprocessed[]
  /** Of the definitions that they may make jobs of. */
  userIds: readonly string[]
  /** Do not wait for users with limits: what would be made for them waits for its turn. */
  hasty?: boolean
}

export interface Processed {
  triggers: number
  made: Made[]
}

/**
 * Ledger, jobs and `processed_at` of each trigger, in one transaction under the leader's fence. The definitions count as they
 * are now. Locks: users, definitions, the term, triggers; who waited for a user or a definition while it held the term would
 * keep the leader from renewing it.
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

/** Waits for nobody who submits: users with limits are left out. */
function* shareUnlimited(userIds: readonly string[]): Work<UserLimits[]> {
  const ids = [...new Set(userIds)].sort().map((user_id) => ({ user_id }))
  yield* each(addUsers, ids)
  return yield* each(shareUsers, ids)
}

export type WithRule = Definition & { on: TriggerRule }

export const hasRule = (definition: Definition): definition is WithRule => definition.on !== null

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

/** Its sender may run it, it was there before the trigger came, and the rule fits. */
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
 * Of one transaction: a template may make a megabyte of little data. PostgreSQL breaks off a statement of several hundred, and
 * always will.
 */
const FILLED_CHARS_MAX = 4 * 1024 * 1024

/** What triggers that fit make of definitions. Once the payloads are too large together, the rest waits for its turn. */
export function drafter(payloadBytesMax: number, maker: Maker) {
  let chars = 0
  return (definition: WithRule, { id: triggerId, data }: Pick<Trigger, 'id' | 'data'>, isBehind: boolean): Draft => {
    const standing = { paused: definition.pausedAtMs !== null, behind: isBehind || chars > FILLED_CHARS_MAX }
    const decision = decide(definition, data, standing, payloadBytesMax)
    const base = { definitionId: definition.id, triggerId, jobId: null, wakes: null }
    if (decision.outcome !== 'job') return { made: { ...base, ...decision }, item: null }
    chars += decision.payload.length
    const job = { payload: decision.payload, scheduledForMs: null, runAtMs: null }
    const item = definitionItem(definition, job, maker)
    return { made: { ...base, outcome: 'job', reason: null, field: null, jobId: item.jobId }, item }
  }
}

/** Their jobs, in the order of the list. One that its quota refuses waits. */
export function* submitDrafts(drafts: readonly Draft[], maker: Maker): Work<Made[]> {
  const outcomes = yield* submitUnkeyed(
    drafts.flatMap(({ item }) => item ?? []),
    maker,
  )
  return drafts.map(({ made, item }) => {
    const outcome = item === null ? undefined : outcomes.get(item.jobId)
    return outcome === undefined ? made : { ...made, ...resultOf(outcome) }
  })
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

/** `seen` is the outcome that each has in the ledger. */
export function* changeOutcomes(made: readonly (Made & { seen: TriggerOutcome })[]): Work<void> {
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

export const isWaiting = ({ outcome }: Made) => outcome.startsWith('waiting')

const pairOf = (definitionId: string, triggerId: string) => `${definitionId}/${triggerId}`
