import { type Command, command } from '../port.ts'
import { each, integer, integerOrNull, query, type Row, text, type Work } from '../statement.ts'
import { fence, type Term } from '../system/leadership.ts'
import * as sql from './fair-tags.sql.ts'
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
  const rows = yield* each(sql.readLastTags, places.map(toRow))
  const heads = new Map<string, number>()
  for (const row of rows) {
    const [queue, priority] = [text(row, 'queue'), integer(row, 'priority')]
    if (row.time !== null || heads.has(headOf(row))) continue
    // Until something is leased from a queue, its time is that of its first run.
    heads.set(headOf(row), (yield* queueHead(queue, priority)) ?? 0)
  }
  return rows.map((row) => toLastTag(row, heads.get(headOf(row)) ?? 0))
}

/** In one journey where all queues have a time. Nothing is written: so there is nothing for a standby to have. */
export function findLastTags(places: readonly Place[]): Command<LastTag[]> {
  return command('find_last_tags', () => readLastTags(places), {
    step: { kind: 'each', statement: sql.readLastTags, rows: places.map(toRow) },
    settle: (rows) => (rows.some(({ time }) => time === null) ? null : rows.map((row) => toLastTag(row, 0))),
  })
}

const toRow = ({ queue, userId, priority }: Place) => [queue, userId, priority]

const headOf = (row: Row) => `${integer(row, 'priority')} ${text(row, 'queue')}`

function toLastTag(row: Row, head: number): LastTag {
  return {
    queue: text(row, 'queue'),
    userId: text(row, 'user_id'),
    priority: integer(row, 'priority'),
    timeTag: integerOrNull(row, 'time') ?? head,
    lastTag: integerOrNull(row, 'last') ?? 0,
  }
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
