import type { TriggerState } from '@ichido/sdk/protocol'
import type { Listed } from '../jobs/list-jobs.ts'
import { type Command, command } from '../port.ts'
import {
  each,
  integer,
  integerOrNull,
  one,
  query,
  type Row,
  type SqlValue,
  statement,
  text,
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

/** A trigger's row, and those of what it made. */
export interface TriggerRows {
  trigger: Row
  outcomes: Row[]
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
    const found = yield* query(
      statement(
        '',
        `SELECT g.id, g.user_id, g.topic, g.dedupe_key, g.created_at, g.processed_at, g.settled_at
          FROM ${from}ichido.triggers g ${condition} ORDER BY ${id} DESC LIMIT ${limit + 1}`,
      ),
      ...params,
    )
    const page = found.slice(0, limit)
    const outcomes = yield* outcomesOf(page)
    const rows = page.map((trigger) => ({ trigger, outcomes: outcomes.get(text(trigger, 'id')) ?? [] }))
    return { rows, next: found.length > limit ? text(page.at(-1), 'id') : null }
  })
}

/** With its data; null when there is none. */
export function findTrigger(triggerId: string): Command<TriggerRows | null> {
  return command('find_trigger', function* work(): Work<TriggerRows | null> {
    const trigger = yield* one(sql.readTrigger, triggerId)
    if (trigger === undefined) return null
    return { trigger, outcomes: (yield* outcomesOf([trigger])).get(triggerId) ?? [] }
  })
}

function* outcomesOf(triggers: readonly Row[]): Work<Map<string, Row[]>> {
  const rows = yield* each(
    sql.readOutcomes,
    triggers.map((row) => [text(row, 'id')]),
  )
  return Map.groupBy(rows, (row) => text(row, 'trigger_id'))
}

/** Greater than any id. */
const FIRST_PAGE = 'ffffffff-ffff-ffff-ffff-ffffffffffff'

/** What became of the triggers of a definition, newest first. */
export function readTriggerLedger(definitionId: string, limit: number, after: string | null): Command<Listed<Row>> {
  return command('read_trigger_ledger', function* work(): Work<Listed<Row>> {
    const found = yield* query(sql.readLedger, definitionId, after ?? FIRST_PAGE, limit + 1)
    const rows = found.slice(0, limit)
    return { rows, next: found.length > limit ? text(rows.at(-1), 'trigger_id') : null }
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
    const row = yield* one(sql.countTriggers)
    return {
      unprocessed: integer(row, 'unprocessed'),
      oldestMs: integerOrNull(row, 'oldest_ms'),
      waiting: integer(row, 'waiting'),
    }
  })
}
