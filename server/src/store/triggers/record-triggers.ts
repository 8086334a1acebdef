import { type Command, command } from '../port.ts'
import { each, now, type RowOf, type Work } from '../statement.ts'
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
    const stored = new Map<string, Recorded>()
    // A key that retention has removed in between is inserted in the next round.
    for (let open = [...firsts]; open.length > 0; open = open.filter(([name]) => !stored.has(name))) {
      const sorted = open.toSorted(([a], [b]) => (a < b ? -1 : 1)).map(([, item]) => item)
      yield* each(
        sql.insertTriggers,
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
      // In a statement of its own: the one that inserts does not see what another transaction has just committed.
      const rows = yield* each(
        sql.readRecorded,
        sorted.map(({ userId, dedupeKey }) => ({ user_id: userId, dedupe_key: dedupeKey })),
      )
      for (const row of rows) stored.set(nameOf(row.user_id, row.dedupe_key), row)
    }
    return items.map((item) => toRecorded(item, stored.get(nameOf(item.userId, item.dedupeKey))))
  })
}

/** Neither has a line break. */
const nameOf = (userId: string, dedupeKey: string) => `${userId}\n${dedupeKey}`

type Recorded = RowOf<typeof sql.readRecorded>

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
