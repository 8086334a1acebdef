import { type Command, command } from '../port.ts'
import { each, eachStep, query, type RowOf, readRows, type Work } from '../statement.ts'
import type { Term } from '../system/term.ts'
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
    if (row.time !== null || heads.has(headOf(row))) continue
    // Until something is leased from a queue, its time is that of its first run.
    heads.set(headOf(row), (yield* queueHead(row.queue, row.priority)) ?? 0)
  }
  return rows.map((row) => toLastTag(row, heads.get(headOf(row)) ?? 0))
}

/** In one journey where all queues have a time. Nothing is written: so there is nothing for a standby to have. */
export function findLastTags(places: readonly Place[]): Command<LastTag[]> {
  return command('find_last_tags', () => readLastTags(places), {
    step: eachStep(sql.readLastTags, places.map(toRow)),
    settle(answer) {
      const rows = readRows(sql.readLastTags, answer)
      return rows.some(({ time }) => time === null) ? null : rows.map((row) => toLastTag(row, 0))
    },
  })
}

const toRow = ({ queue, userId, priority }: Place) => ({ queue, user_id: userId, priority })

type TagRow = RowOf<typeof sql.readLastTags>

const headOf = ({ priority, queue }: TagRow) => `${priority} ${queue}`

function toLastTag({ queue, user_id, priority, time, last }: TagRow, head: number): LastTag {
  return { queue, userId: user_id, priority, timeTag: time ?? head, lastTag: last ?? 0 }
}

export type QueueTime = Pick<Place, 'queue' | 'priority'> & { tag: number }

/** Answers with the times in force, which other nodes may have raised further. */
export function raiseQueueTimes(times: readonly QueueTime[]): Command<QueueTime[]> {
  // In one order, for another node may be at the same queues.
  const sorted = times.toSorted((a, b) => (a.queue === b.queue ? a.priority - b.priority : a.queue < b.queue ? -1 : 1))
  return command('raise_queue_times', function* work(): Work<QueueTime[]> {
    return (yield* each(sql.raiseTimes, sorted)).map(({ queue, priority, tag }) => ({ queue, priority, tag }))
  })
}

export function removeQueueTimes(term: Term, ageMs: number, max: number): Command<number> {
  return command('remove_queue_times', function* work(): Work<number> {
    return (yield* query(sql.removeQueueTimes, { ...term, max, age_ms: ageMs })).length
  })
}
