import { type Command, command } from '../port.ts'
import { each, integer, now, type Row, type SqlValue, text, type Work } from '../statement.ts'
import * as sql from './triggers.sql.ts'

export interface TriggerItem {
  /** Made before the transaction begins, so that the same call can be tried again without doubling. */
  triggerId: string
  userId: string
  /** Its sender may run any definition, not only its own. */
  operates: boolean
  topic: string
  dedupeKey: string
  /** JSON text. */
  data: string
}

/** What is stored under a dedupe key: of this item, or of an earlier one. */
export interface RecordedTrigger {
  triggerId: string
  topic: string
  dedupeKey: string
  createdAtMs: number
  duplicate: boolean
}

/**
 * All of them, or none. The first item of a key is stored; those behind it, and those whose key is stored already, are
 * duplicates. After an uncertain commit the same ids are found under their keys.
 */
export function recordTriggers(items: readonly TriggerItem[]): Command<RecordedTrigger[]> {
  const firsts = new Map(items.toReversed().map((item) => [nameOf(item.userId, item.dedupeKey), item]))
  return command('record_triggers', function* work(): Work<RecordedTrigger[]> {
    const nowMs = yield* now()
    const stored = new Map<string, Row>()
    // A key that retention has removed in between is inserted in the next round.
    for (let open = [...firsts]; open.length > 0; open = open.filter(([name]) => !stored.has(name))) {
      const sorted = open.toSorted(([a], [b]) => (a < b ? -1 : 1)).map(([, item]) => item)
      yield* each(
        sql.insertTriggers,
        sorted.map((item) => columns(item, nowMs)),
      )
      // In a statement of its own: the one that inserts does not see what another transaction has just committed.
      const rows = yield* each(
        sql.readRecorded,
        sorted.map(({ userId, dedupeKey }) => [userId, dedupeKey]),
      )
      for (const row of rows) stored.set(nameOf(text(row, 'user_id'), text(row, 'dedupe_key')), row)
    }
    return items.map((item) => toRecorded(item, stored.get(nameOf(item.userId, item.dedupeKey))))
  })
}

/** Neither has a line break. */
const nameOf = (userId: string, dedupeKey: string) => `${userId}\n${dedupeKey}`

function columns({ triggerId, userId, operates, topic, dedupeKey, data }: TriggerItem, nowMs: number): SqlValue[] {
  return [triggerId, userId, operates, topic, dedupeKey, data, nowMs]
}

function toRecorded(item: TriggerItem, row: Row | undefined): RecordedTrigger {
  const triggerId = text(row, 'id')
  return {
    triggerId,
    topic: text(row, 'topic'),
    dedupeKey: item.dedupeKey,
    createdAtMs: integer(row, 'created_at'),
    duplicate: triggerId !== item.triggerId,
  }
}
