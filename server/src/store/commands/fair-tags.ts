import { type Command, command } from '../port.ts'
import * as sql from '../sql/fair-tags.ts'
import { each, integer, integerOrNull, query, type Row, text, type Work } from '../statement.ts'
import { fence, type Term } from './leadership.ts'
import { queueHead } from './queues.ts'

/** Whose runs stand where: tags order the runs of one priority in a queue. */
export interface Place {
  queue: string
  userId: string
  priority: number
}

/** Tags for runs that become ready, one for each place, in their order. Part of the transaction that makes them ready. */
export type TagsFor = (places: readonly (Place & { runAtMs?: number | null })[]) => Work<number[]>

export interface LastTag extends Place {
  /** How far the queue has got. */
  timeTag: number
  /** The user's last one that is ready; 0: none is. */
  lastTag: number
}

export function* readLastTags(places: readonly Place[]): Work<LastTag[]> {
  const rows = yield* each(
    sql.readLastTags,
    places.map(({ queue, userId, priority }) => [queue, userId, priority]),
  )
  const found: LastTag[] = []
  for (const row of rows) {
    const [queue, userId, priority] = [text(row, 'queue'), text(row, 'user_id'), integer(row, 'priority')]
    // Until something is leased from a queue, its time is that of its first run.
    const timeTag = integerOrNull(row, 'time') ?? (yield* queueHead(queue, priority)) ?? 0
    found.push({ queue, userId, priority, timeTag, lastTag: integerOrNull(row, 'last') ?? 0 })
  }
  return found
}

export function findLastTags(places: readonly Place[]): Command<LastTag[]> {
  return command('find_last_tags', () => readLastTags(places))
}

export type QueueTime = Pick<Place, 'queue' | 'priority'> & { tag: number }

/** Answers with the times in force, which other nodes may have raised further. */
export function raiseQueueTimes(times: readonly QueueTime[]): Command<QueueTime[]> {
  const rows = times.map(({ queue, priority, tag }) => [queue, priority, tag] as const)
  // In one order, for another node may be at the same queues.
  const sorted = rows.toSorted((a, b) => (a[0] === b[0] ? a[1] - b[1] : a[0] < b[0] ? -1 : 1))
  return command('raise_queue_times', function* work(): Work<QueueTime[]> {
    return (yield* each(sql.raiseTimes, sorted)).map(toTime)
  })
}

function toTime(row: Row): QueueTime {
  return { queue: text(row, 'queue'), priority: integer(row, 'priority'), tag: integer(row, 'tag') }
}

export function removeQueueTimes(term: Term, ageMs: number, max: number): Command<number> {
  return command('remove_queue_times', function* work(): Work<number> {
    return (yield* query(sql.removeQueueTimes, ...fence(term), max, ageMs)).length
  })
}
