import { TRIGGER_OUTCOMES, type TriggerState } from '@ichido/sdk/protocol'
import { LAST_ID } from '../../core/run/job.ts'
import { type Command, command, type Listed, pageOf } from '../port.ts'
import {
  each,
  exactlyOne,
  now,
  one,
  query,
  type RowOf,
  type SqlValue,
  select,
  statement,
  type Values,
  type Work,
} from '../statement.ts'

const outcome = { passOn: TRIGGER_OUTCOMES } as const
const data = { json: (value: unknown) => value } as const

const COLUMNS = 'id, user_id, operates, topic, dedupe_key, data, created_at'

const NEWEST_ON = (topic: string) =>
  `coalesce((SELECT max(d.created_at) FROM ichido.job_definitions d WHERE d.topic = ${topic}), 0)`

/**
 * Takes rows sorted by user and key, so that two nodes with the same keys do not deadlock. The unique index decides: a
 * known key returns no row. A trigger is never stored as older than a definition that existed before it, even if the
 * clock went back: it would make no job of that definition.
 */
const insertTriggers = statement('insert_triggers', {
  params: {
    id: 'text',
    user_id: 'text',
    operates: 'flag',
    topic: 'text',
    dedupe_key: 'text',
    data: 'text',
    now: 'integer',
  },
  row: { id: 'text' },
  postgres: `INSERT INTO ichido.triggers (${COLUMNS})
    SELECT t.id, t.user_id, t.operates, t.topic, t.dedupe_key, t.data, greatest(t.now, ${NEWEST_ON('t.topic')})
    FROM unnest($id::uuid[], $user_id::text[], $operates::boolean[], $topic::text[], $dedupe_key::text[], $data::text[],
      $now::bigint[]) AS t(id, user_id, operates, topic, dedupe_key, data, now)
    ON CONFLICT (user_id, dedupe_key) DO NOTHING RETURNING id`,
  sqlite: `INSERT INTO ichido.triggers (${COLUMNS})
    VALUES ($id, $user_id, $operates, $topic, $dedupe_key, $data, max($now, ${NEWEST_ON('$topic')}))
    ON CONFLICT (user_id, dedupe_key) DO NOTHING RETURNING id`,
})

const RECORDED = 'g.id, g.user_id, g.topic, g.dedupe_key, g.created_at'

const readRecorded = statement('read_recorded_triggers', {
  params: { user_id: 'text', dedupe_key: 'text' },
  row: { id: 'text', user_id: 'text', topic: 'text', dedupe_key: 'text', created_at: 'integer' },
  postgres: `SELECT ${RECORDED} FROM unnest($user_id::text[], $dedupe_key::text[]) AS t(user_id, dedupe_key)
    JOIN ichido.triggers g ON g.user_id = t.user_id AND g.dedupe_key = t.dedupe_key`,
  sqlite: `SELECT ${RECORDED} FROM ichido.triggers g WHERE g.user_id = $user_id AND g.dedupe_key = $dedupe_key`,
})

export interface TriggerItem {
  /** The id is made before the transaction, so that a retry does not store the trigger twice. */
  triggerId: string
  userId: string
  /** True if the sender may run any definition, not only its own. */
  operates: boolean
  topic: string
  dedupeKey: string
  /** JSON text. */
  data: string
}

/** The trigger that is stored under a dedupe key: of this item, or of an earlier one. */
interface RecordedTrigger {
  triggerId: string
  topic: string
  dedupeKey: string
  createdAtMs: number
  duplicate: boolean
}

/**
 * Records all of them, or none. The first item of a key is stored; later items, and items with a stored key, are
 * duplicates. After an uncertain commit the same ids are found under their keys.
 */
export function recordTriggers(items: readonly TriggerItem[]): Command<RecordedTrigger[]> {
  const firsts = new Map(items.toReversed().map((item) => [nameOf(item.userId, item.dedupeKey), item]))
  return command('record_triggers', function* work(): Work<RecordedTrigger[]> {
    const nowMs = yield* now()
    const stored = new Map<string, Recorded>()
    // A key that retention removed in between is inserted in the next round.
    for (let open = [...firsts]; open.length > 0; open = open.filter(([name]) => !stored.has(name))) {
      const sorted = open.toSorted(([a], [b]) => (a < b ? -1 : 1)).map(([, item]) => item)
      yield* each(
        insertTriggers,
        sorted.map(({ triggerId, userId, operates, topic, dedupeKey, data }) => ({
          id: triggerId,
          user_id: userId,
          operates,
          topic,
          dedupe_key: dedupeKey,
          data,
          now: nowMs,
        })),
      )
      // This is a separate statement: the insert does not see what another transaction has just committed.
      const rows = yield* each(
        readRecorded,
        sorted.map(({ userId, dedupeKey }) => ({ user_id: userId, dedupe_key: dedupeKey })),
      )
      for (const row of rows) stored.set(nameOf(row.user_id, row.dedupe_key), row)
    }
    return items.map((item) => toRecorded(item, stored.get(nameOf(item.userId, item.dedupeKey))))
  })
}

/** Neither contains a line break. */
const nameOf = (userId: string, dedupeKey: string) => `${userId}\n${dedupeKey}`

type Recorded = RowOf<typeof readRecorded>

function toRecorded(item: TriggerItem, row: Recorded | undefined): RecordedTrigger {
  if (row === undefined) throw new Error('A key whose trigger is stored has a row')
  const { id, topic, created_at } = row
  return {
    triggerId: id,
    topic,
    dedupeKey: item.dedupeKey,
    createdAtMs: created_at,
    duplicate: id !== item.triggerId,
  }
}

/** A trigger without its data. */
const TRIGGER_ROW = {
  id: 'text',
  user_id: 'text',
  topic: 'text',
  dedupe_key: 'text',
  created_at: 'integer',
  processed_at: 'integer?',
  settled_at: 'integer?',
} as const

const readTrigger = statement('read_trigger', {
  params: { id: 'text' },
  row: { ...TRIGGER_ROW, data },
  sql: `SELECT id, user_id, topic, dedupe_key, data, created_at, processed_at, settled_at FROM ichido.triggers WHERE id = $id`,
})

const OF_TRIGGER = `o.trigger_id, o.definition_id, o.outcome, o.job_id, o.reason, o.field, o.updated_at,
  (SELECT d.name FROM ichido.job_definitions d WHERE d.id = o.definition_id) AS definition FROM ichido.trigger_outcomes o`

const MADE_ROW = { outcome, job_id: 'text?', reason: 'text?', field: 'text?', updated_at: 'integer' } as const

const readOutcomes = statement('read_trigger_outcomes', {
  params: { trigger_id: 'text' },
  row: { trigger_id: 'text', definition_id: 'text', definition: 'text?', ...MADE_ROW },
  postgres: `SELECT ${OF_TRIGGER} WHERE o.trigger_id = ANY($trigger_id::uuid[]) ORDER BY o.definition_id`,
  sqlite: `SELECT ${OF_TRIGGER} WHERE o.trigger_id = $trigger_id ORDER BY o.definition_id`,
})

/** The ledger of a definition, newest first. The page before ended with the trigger `after`. */
const readLedger = statement('read_trigger_ledger', {
  params: { definition_id: 'text', after: 'text', limit: 'integer' },
  row: { trigger_id: 'text', topic: 'text', dedupe_key: 'text', triggered_at: 'integer', ...MADE_ROW },
  sql: `SELECT o.trigger_id, g.topic, g.dedupe_key, o.triggered_at, o.outcome, o.job_id, o.reason, o.field, o.updated_at
    FROM ichido.trigger_outcomes o JOIN ichido.triggers g ON g.id = o.trigger_id
    WHERE o.definition_id = $definition_id AND o.trigger_id < $after ORDER BY o.trigger_id DESC LIMIT $limit`,
})

/** Counts unprocessed triggers and their greatest age, and waiting triggers. */
const countTriggers = statement('count_triggers', {
  params: {},
  row: { unprocessed: 'integer', oldest_ms: 'integer?', waiting: 'integer' },
  sql: `SELECT (SELECT count(*) FROM ichido.triggers WHERE processed_at IS NULL) AS unprocessed,
    (SELECT now_ms() - min(created_at) FROM ichido.triggers WHERE processed_at IS NULL) AS oldest_ms,
    (SELECT count(*) FROM ichido.triggers WHERE processed_at IS NOT NULL AND settled_at IS NULL) AS waiting`,
})

interface TriggerFilter {
  /** The triggers' user; null: all users. */
  userId: string | null
  topic: string | null
  definitionId: string | null
  state: TriggerState | null
}

export type TriggerOutcomeRow = RowOf<typeof readOutcomes>
export type TriggerEntryRow = RowOf<typeof readLedger>

/** A trigger without its data, and its outcomes. */
export interface TriggerRows {
  trigger: Values<typeof TRIGGER_ROW>
  outcomes: TriggerOutcomeRow[]
}

interface TriggerWithData extends TriggerRows {
  trigger: RowOf<typeof readTrigger>
}

const WHERE: Record<TriggerState, string> = {
  unprocessed: 'g.processed_at IS NULL',
  waiting: 'g.processed_at IS NOT NULL AND g.settled_at IS NULL',
  processed: 'g.settled_at IS NOT NULL',
}

/** Newest first, without data. Ids rise with time, so a page continues after the last id. */
export function listTriggers(filter: TriggerFilter, limit: number, after: string | null): Command<Listed<TriggerRows>> {
  return command('list_triggers', function* work(): Work<Listed<TriggerRows>> {
    const params: SqlValue[] = []
    const bind = (value: SqlValue) => `$${params.push(value)}`
    const { userId, topic, definitionId, state } = filter
    const where = state === null ? [] : [WHERE[state]]
    if (userId !== null) where.push(`g.user_id = ${bind(userId)}`)
    if (topic !== null) where.push(`g.topic = ${bind(topic)}`)
    // With a definition, the query starts at the ledger, by its primary key.
    const id = definitionId === null ? 'g.id' : 'o.trigger_id'
    const from = definitionId === null ? '' : 'ichido.trigger_outcomes o CROSS JOIN '
    if (definitionId !== null) where.push(`o.definition_id = ${bind(definitionId)}`, `g.id = coalesce(${id}, ${id})`)
    if (after !== null) where.push(`${id} < ${bind(after)}`)
    const condition = where.length === 0 ? '' : `WHERE ${where.join(' AND ')}`
    const list = `SELECT g.id, g.user_id, g.topic, g.dedupe_key, g.created_at, g.processed_at, g.settled_at
      FROM ${from}ichido.triggers g ${condition} ORDER BY ${id} DESC LIMIT ${limit + 1}`
    const found = yield* select(TRIGGER_ROW, list, params)
    const page = pageOf(found, limit, ({ id }) => id)
    const outcomes = yield* outcomesOf(page.rows)
    return { ...page, rows: page.rows.map((trigger) => ({ trigger, outcomes: outcomes.get(trigger.id) ?? [] })) }
  })
}

/** Returns the trigger with its data; null if there is none. */
export function findTrigger(triggerId: string): Command<TriggerWithData | null> {
  return command('find_trigger', function* work(): Work<TriggerWithData | null> {
    const trigger = yield* one(readTrigger, { id: triggerId })
    if (trigger === undefined) return null
    return { trigger, outcomes: (yield* outcomesOf([trigger])).get(triggerId) ?? [] }
  })
}

function* outcomesOf(triggers: readonly { id: string }[]): Work<Map<string, TriggerOutcomeRow[]>> {
  const rows = yield* each(
    readOutcomes,
    triggers.map(({ id }) => ({ trigger_id: id })),
  )
  return Map.groupBy(rows, (row) => row.trigger_id)
}

/** The ledger of a definition's triggers, newest first. */
export function readTriggerLedger(
  definitionId: string,
  limit: number,
  after: string | null,
): Command<Listed<TriggerEntryRow>> {
  return command('read_trigger_ledger', function* work(): Work<Listed<TriggerEntryRow>> {
    const page = { definition_id: definitionId, after: after ?? LAST_ID, limit: limit + 1 }
    const found = yield* query(readLedger, page)
    return pageOf(found, limit, (row) => row.trigger_id)
  })
}

export interface TriggerCounts {
  unprocessed: number
  /** The age of the oldest unprocessed trigger; null if there is none. */
  oldestMs: number | null
  waiting: number
}

export function readTriggerCounts(): Command<TriggerCounts> {
  return command('count_triggers', function* work(): Work<TriggerCounts> {
    const { unprocessed, oldest_ms, waiting } = yield* exactlyOne(countTriggers, {})
    return { unprocessed, oldestMs: oldest_ms, waiting }
  })
}
