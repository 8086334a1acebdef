import type { TriggerState } from '@ichido/sdk/protocol'
import type { Listed } from '../jobs/list-jobs.ts'
import { type Command, command } from '../port.ts'
import {
  each,
  exactlyOne,
  one,
  pageOf,
  query,
  type RowOf,
  type SqlValue,
  select,
  type Values,
  type Work,
} from '../statement.ts'
import * as sql from './triggers.sql.ts'

export interface TriggerFilter {
  /** Whose; null: everybody's. */
  userId: string | null
  topic: string | null
  definitionId: string | null
  state: TriggerState | null
}

export type TriggerOutcomeRow = RowOf<typeof sql.readOutcomes>
export type TriggerEntryRow = RowOf<typeof sql.readLedger>

/** A trigger without its data, and what it made. */
export interface TriggerRows {
  trigger: Values<typeof sql.TRIGGER_ROW>
  outcomes: TriggerOutcomeRow[]
}

export interface TriggerWithData extends TriggerRows {
  trigger: RowOf<typeof sql.readTrigger>
}

const WHERE: Record<TriggerState, string> = {
  unprocessed: 'g.processed_at IS NULL',
  waiting: 'g.processed_at IS NOT NULL AND g.settled_at IS NULL',
  processed: 'g.settled_at IS NOT NULL',
}

/** Newest first; without their data. Ids rise with time, so a page goes on from where the last one ended. */
export function listTriggers(filter: TriggerFilter, limit: number, after: string | null): Command<Listed<TriggerRows>> {
  return command('list_triggers', function* work(): Work<Listed<TriggerRows>> {
    const params: SqlValue[] = []
    const bind = (value: SqlValue) => `$${params.push(value)}`
    const { userId, topic, definitionId, state } = filter
    const where = state === null ? [] : [WHERE[state]]
    if (userId !== null) where.push(`g.user_id = ${bind(userId)}`)
    if (topic !== null) where.push(`g.topic = ${bind(topic)}`)
    // The ledger leads where it is asked about, by its primary key.
    const id = definitionId === null ? 'g.id' : 'o.trigger_id'
    const from = definitionId === null ? '' : 'ichido.trigger_outcomes o CROSS JOIN '
    if (definitionId !== null) where.push(`o.definition_id = ${bind(definitionId)}`, `g.id = coalesce(${id}, ${id})`)
    if (after !== null) where.push(`${id} < ${bind(after)}`)
    const condition = where.length === 0 ? '' : `WHERE ${where.join(' AND ')}`
    const list = `SELECT g.id, g.user_id, g.topic, g.dedupe_key, g.created_at, g.processed_at, g.settled_at
      FROM ${from}ichido.triggers g ${condition} ORDER BY ${id} DESC LIMIT ${limit + 1}`
    const found = yield* select(sql.TRIGGER_ROW, list, params)
    const page = pageOf(found, limit, ({ id }) => id)
    const outcomes = yield* outcomesOf(page.rows)
    return { ...page, rows: page.rows.map((trigger) => ({ trigger, outcomes: outcomes.get(trigger.id) ?? [] })) }
  })
}

/** With its data; null when there is none. */
export function findTrigger(triggerId: string): Command<TriggerWithData | null> {
  return command('find_trigger', function* work(): Work<TriggerWithData | null> {
    const trigger = yield* one(sql.readTrigger, { id: triggerId })
    if (trigger === undefined) return null
    return { trigger, outcomes: (yield* outcomesOf([trigger])).get(triggerId) ?? [] }
  })
}

function* outcomesOf(triggers: readonly { id: string }[]): Work<Map<string, TriggerOutcomeRow[]>> {
  const rows = yield* each(
    sql.readOutcomes,
    triggers.map(({ id }) => ({ trigger_id: id })),
  )
  return Map.groupBy(rows, (row) => row.trigger_id)
}

/** Greater than any id. */
const FIRST_PAGE = 'ffffffff-ffff-ffff-ffff-ffffffffffff'

/** What became of the triggers of a definition, newest first. */
export function readTriggerLedger(
  definitionId: string,
  limit: number,
  after: string | null,
): Command<Listed<TriggerEntryRow>> {
  return command('read_trigger_ledger', function* work(): Work<Listed<TriggerEntryRow>> {
    const page = { definition_id: definitionId, after: after ?? FIRST_PAGE, limit: limit + 1 }
    const found = yield* query(sql.readLedger, page)
    return pageOf(found, limit, (row) => row.trigger_id)
  })
}

export interface TriggerCounts {
  unprocessed: number
  /** How long ago the first of them came; null when there is none. */
  oldestMs: number | null
  waiting: number
}

export function readTriggerCounts(): Command<TriggerCounts> {
  return command('count_triggers', function* work(): Work<TriggerCounts> {
    const { unprocessed, oldest_ms, waiting } = yield* exactlyOne(sql.countTriggers, {})
    return { unprocessed, oldestMs: oldest_ms, waiting }
  })
}
