import {
  eventRules,
  type ForeignEvent,
  type IngestedEvent,
  type StoredEvent,
  seqProblem,
} from '../../core/events/event.ts'
import { StoreUnavailable } from '../../core/node/store-errors.ts'
import { type Command, command } from '../port.ts'
import { JOB_AND_END, type Room } from '../runs/rooms.sql.ts'
import { foldBy } from '../runs/run-facts.ts'
import { each, statement, type Values, type Work } from '../statement.ts'
import { EXPIRED } from '../system/retention.sql.ts'
import { findStored, identityOf, insertNumbered, type PUBLISHER_ROW, raiseIn } from './publish.ts'

/** Does not find a job that has expired. */
const readKept = statement('read_kept', {
  params: { job_id: 'text' },
  row: { job_id: 'text' },
  postgres: `SELECT j.id AS job_id FROM ${JOB_AND_END} WHERE j.id = ANY($job_id::uuid[]) AND NOT ${EXPIRED}`,
  sqlite: `SELECT j.id AS job_id FROM ${JOB_AND_END} WHERE j.id = $job_id AND NOT ${EXPIRED}`,
})

/** In the order of the locks. */
const ROOMS: readonly [Room, ReturnType<typeof raiseIn>][] = [
  ['ready', raiseIn('ready')],
  ['held', raiseIn('held')],
  ['ended', raiseIn('ended')],
]

export type IngestOutcome =
  | ({ kind: 'stored' | 'repeated' } & IngestedEvent)
  /** The job does not exist, or has expired. */
  | { kind: 'unknown' }
  /** The job has no such stage, or the stage does not have this seq. */
  | { kind: 'refused' }

/** A run may change rooms while each room is looked into. */
const LOCK_TRIES_MAX = 5

/**
 * Stores events of publishers that know the job but hold no lease, each once. The latest run's row is locked, as for
 * all events, so that two nodes with the same event store it once and cursors have no gap. Such an event has no
 * attempt: its seq is stored unchanged, because otherwise the same event would be new in the next attempt.
 */
export function ingestEvents(items: readonly ForeignEvent[]): Command<IngestOutcome[]> {
  return command('ingest', function* work(): Work<IngestOutcome[]> {
    const counts = new Map<string, number>()
    for (const { jobId } of items) counts.set(jobId, (counts.get(jobId) ?? 0) + 1)
    const locked = yield* lockLatest(counts)
    const rowOf = new Map([...locked.values()].flat().map((row) => [row.job_id, row]))
    const read = items.map((item) => wantedOf(item, rowOf.get(item.jobId)))
    const { firsts, repeats } = foldBy(
      read.filter((one) => 'jobId' in one),
      identityOf,
    )
    const found = yield* findStored(firsts)
    const news = firsts.filter((event) => !found.has(event))
    for (const [event, row] of found) {
      event.n = row.n
      event.createdAtMs = row.created_at
    }
    const last = new Map<string, number>()
    for (const [room, rows] of locked) {
      const jobs = new Set(rows.map((row) => row.job_id))
      const inRoom = news.filter(({ jobId }) => jobs.has(jobId))
      const ends = yield* insertNumbered(inRoom, room, rows, (row) => counts.get(row.job_id) ?? 0)
      for (const [jobId, n] of ends) last.set(jobId, n)
    }
    for (const [repeat, first] of repeats) Object.assign(repeat, { n: first.n, createdAtMs: first.createdAtMs })
    const stored = new Set(news)
    return read.map((one): IngestOutcome => {
      if (!('jobId' in one)) return one
      return { kind: stored.has(one) ? 'stored' : 'repeated', event: one, last: one.n === last.get(one.jobId) }
    })
  })
}

type LatestRun = Values<typeof PUBLISHER_ROW>

/** By room, the latest runs. They are locked, and numbers are reserved for the events of each job. An unknown job has no row. */
function* lockLatest(counts: ReadonlyMap<string, number>): Work<Map<Room, LatestRun[]>> {
  const locked = new Map<Room, LatestRun[]>(ROOMS.map(([room]) => [room, []]))
  const kept = yield* each(
    readKept,
    [...counts.keys()].map((job_id) => ({ job_id })),
  )
  let jobIds = kept.map((row) => row.job_id)
  for (let tries = 0; jobIds.length > 0; tries++) {
    // The jobs keep moving, or were removed, so the entry is read again later.
    if (tries === LOCK_TRIES_MAX) throw new StoreUnavailable('The latest run of a job could not be locked')
    for (const [room, raise] of ROOMS) {
      const rows = yield* each(
        raise,
        jobIds.map((job_id) => ({ job_id, count: counts.get(job_id) ?? 0 })),
      )
      locked.get(room)?.push(...rows)
      const found = new Set(rows.map((row) => row.job_id))
      jobIds = jobIds.filter((jobId) => !found.has(jobId))
    }
  }
  return locked
}

function wantedOf({ jobId, stage, seq, data }: ForeignEvent, row: LatestRun | undefined): StoredEvent | IngestOutcome {
  if (row === undefined) return { kind: 'unknown' }
  const rules = eventRules(row.kind, row.policy)
  if (seqProblem(rules, stage, seq) !== null) return { kind: 'refused' }
  return { jobId, domain: rules.domain, n: 0, stage, seq, data, createdAtMs: row.now }
}
