import { type Command, command, commandIn } from '../port.ts'
import { each, eachStep, query, type RowOf, readRows, statement, type Work } from '../statement.ts'
import { LED, LED_SQLITE, TERM, type Term } from '../system/term.ts'
import { DUE } from './lease-runs.sql.ts'
import { queueHead } from './queues.ts'

const TIME = 'SELECT q.tag FROM ichido.queue_times q WHERE q.queue = t.queue AND q.priority = t.priority'
const LAST = `SELECT r.fair_tag FROM ichido.ready r
      WHERE r.queue = t.queue AND r.priority = t.priority AND r.user_id = t.user_id AND r.${DUE}
        AND r.fair_tag > coalesce((${TIME}), -1) AND r.fair_tag >= 0
      ORDER BY r.fair_tag DESC LIMIT 1`
const TAGS = `t.queue, t.user_id, t.priority, (${TIME}) AS time, (${LAST}) AS last`

/**
 * The queue's time, and the highest tag beyond it among the user's ready runs; null: there is none. Tags before the queue's time
 * are left out, because leased runs stay in the index while a snapshot can see them, and the scan would step over all of them.
 */
const readTags = statement('read_last_tags', {
  params: { queue: 'text', user_id: 'text', priority: 'integer' },
  row: { queue: 'text', user_id: 'text', priority: 'integer', time: 'integer?', last: 'integer?' },
  postgres: `SELECT ${TAGS} FROM unnest($queue::text[], $user_id::text[], $priority::integer[]) AS t(queue, user_id, priority)`,
  sqlite: `SELECT ${TAGS} FROM (SELECT $queue AS queue, $user_id AS user_id, $priority AS priority) t`,
})

const TIMES = 'queue, priority, tag, updated_at'
const raised = (
  greatest: string,
) => `ON CONFLICT (queue, priority) DO UPDATE SET tag = ${greatest}(q.tag, excluded.tag), updated_at = excluded.updated_at
    RETURNING queue, priority, tag`

/** Takes sorted rows, and answers with the times in force. A queue's time never goes back. */
const raiseTimes = statement('raise_queue_times', {
  params: { queue: 'text', priority: 'integer', tag: 'integer' },
  row: { queue: 'text', priority: 'integer', tag: 'integer' },
  postgres: `INSERT INTO ichido.queue_times AS q (${TIMES})
    SELECT t.*, now_ms() FROM unnest($queue::text[], $priority::integer[], $tag::bigint[]) t ${raised('greatest')}`,
  sqlite: `INSERT INTO ichido.queue_times AS q (${TIMES}) VALUES ($queue, $priority, $tag, now_ms()) ${raised('max')}`,
})

const IDLE = `q.updated_at < (SELECT now_ms()) - CAST($age_ms AS bigint) AND NOT EXISTS (
        SELECT 1 FROM ichido.ready r WHERE r.queue = q.queue AND r.priority = q.priority AND r.${DUE})`

/** Removes the times of queues that have no work and no lease for `age_ms`. */
const removeTimes = statement('remove_queue_times', {
  params: { ...TERM, max: 'integer', age_ms: 'integer' },
  row: { queue: 'text' },
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT q.ctid AS place FROM l CROSS JOIN ichido.queue_times q WHERE ${IDLE}
      ORDER BY q.queue, q.priority LIMIT $max FOR UPDATE OF q SKIP LOCKED)
    DELETE FROM ichido.queue_times WHERE ctid IN (SELECT place FROM c) RETURNING queue`,
  sqlite: `DELETE FROM ichido.queue_times WHERE ${LED_SQLITE} AND rowid IN (
      SELECT q.rowid FROM ichido.queue_times q WHERE ${IDLE} LIMIT $max) RETURNING queue`,
})

/** Tags order the runs of one priority in a queue. */
export interface Place {
  queue: string
  userId: string
  priority: number
}

/** The place of a run that is ready, and its tag. */
export type Tagged<P extends Place = Place> = P & { fairTag: number }

export interface LastTag extends Place {
  /** The last tag that was leased from the queue. */
  timeTag: number
  /** The highest tag of the user's ready runs; 0: none is ready. */
  lastTag: number
}

/**
 * Gives tags to runs that become ready in this transaction, one for each place. Each tag is behind the user's last tag, and not
 * before the time of the queue. `leased` has the times that this node has not shared yet.
 */
export function* giveTags<P extends Place>(places: readonly P[], leased: readonly QueueTime[]): Work<Tagged<P>[]> {
  const times = new Map(leased.map((time) => [timeName(time), time.tag]))
  const last = new Map<string, number>()
  for (const found of yield* readLastTags(distinct(places))) {
    last.set(placeName(found), Math.max(found.timeTag, found.lastTag, times.get(timeName(found)) ?? 0))
  }
  return places.map((place) => {
    const name = placeName(place)
    const fairTag = (last.get(name) ?? 0) + 1
    last.set(name, fairTag)
    return { ...place, fairTag }
  })
}

function* readLastTags(places: readonly Place[]): Work<LastTag[]> {
  const rows = yield* each(readTags, places.map(toRow))
  const heads = new Map<string, number>()
  for (const row of rows) {
    if (row.time !== null || heads.has(timeName(row))) continue
    // Until a run is leased from a queue, the queue's time is the tag of its first run.
    heads.set(timeName(row), (yield* queueHead(row.queue, row.priority)) ?? 0)
  }
  return rows.map((row) => toLastTag(row, heads.get(timeName(row)) ?? 0))
}

/** One round trip if all queues have a time. The command writes nothing, so it needs no commit on a standby. */
export function findLastTags(places: readonly Place[]): Command<LastTag[]> {
  const asked = distinct(places)
  return commandIn('batches', 'find_last_tags', () => readLastTags(asked), {
    step: eachStep(readTags, asked.map(toRow)),
    settle(answer) {
      const rows = readRows(readTags, answer)
      return rows.some(({ time }) => time === null) ? null : rows.map((row) => toLastTag(row, 0))
    },
  })
}

const toRow = ({ queue, userId, priority }: Place) => ({ queue, user_id: userId, priority })

type TagRow = RowOf<typeof readTags>

/** Each priority has its own time, because a high priority runs ahead of the others. */
export const timeName = ({ priority, queue }: Pick<Place, 'queue' | 'priority'>) => `${priority} ${queue}`

const placeName = (place: Place) => JSON.stringify([timeName(place), place.userId])

const distinct = (places: readonly Place[]) => [...new Map(places.map((place) => [placeName(place), place])).values()]

function toLastTag({ queue, user_id, priority, time, last }: TagRow, head: number): LastTag {
  return { queue, userId: user_id, priority, timeTag: time ?? head, lastTag: last ?? 0 }
}

export type QueueTime = Pick<Place, 'queue' | 'priority'> & { tag: number }

/** Answers with the times in force, which other nodes may have raised further. */
export function raiseQueueTimes(times: readonly QueueTime[]): Command<QueueTime[]> {
  // Sorted, so that two nodes cannot deadlock.
  const sorted = times.toSorted((a, b) => (a.queue === b.queue ? a.priority - b.priority : a.queue < b.queue ? -1 : 1))
  return command('raise_queue_times', function* work(): Work<QueueTime[]> {
    return (yield* each(raiseTimes, sorted)).map(({ queue, priority, tag }) => ({ queue, priority, tag }))
  })
}

export function removeQueueTimes(term: Term, ageMs: number, max: number): Command<number> {
  return command('remove_queue_times', function* work(): Work<number> {
    return (yield* query(removeTimes, { ...term, max, age_ms: ageMs })).length
  })
}
