import {
  eventRules,
  type ForeignEvent,
  type IngestedEvent,
  type StoredEvent,
  seqProblem,
} from '../../core/events/event.ts'
import { StoreUnavailable } from '../../core/node/store-errors.ts'
import { type Command, command } from '../port.ts'
import { foldBy } from '../runs/run-facts.ts'
import { each, type RowOf, statement, type Work } from '../statement.ts'
import { EXPIRED } from '../system/retention.sql.ts'
import { findStored, identityOf, insertNumbered, PUBLISHER, PUBLISHER_ROW } from './publish.ts'

/** Does not find a job that has expired. */
const readLatestRuns = statement('read_latest_runs', {
  params: { job_id: 'text' },
  row: { id: 'text', job_id: 'text' },
  postgres: `SELECT r.id, r.job_id FROM unnest($job_id::uuid[]) AS t(job_id)
    JOIN ichido.jobs j ON j.id = t.job_id JOIN ichido.runs r ON r.job_id = t.job_id AND r.latest WHERE NOT ${EXPIRED}`,
  sqlite: `SELECT r.id, r.job_id FROM ichido.jobs j JOIN ichido.runs r ON r.job_id = j.id AND r.latest
    WHERE j.id = $job_id AND NOT ${EXPIRED}`,
})

/** Guards that the run is still the latest. Makes room and locks as `raisePublishers` does. */
const raiseLatest = statement('raise_latest', {
  params: { run_id: 'text', count: 'integer' },
  row: PUBLISHER_ROW,
  postgres: `WITH t AS MATERIALIZED (
      SELECT t.* FROM unnest($run_id::uuid[], $count::bigint[]) AS t(run_id, count) ORDER BY t.run_id)
    UPDATE ichido.runs r SET last_event_n = r.last_event_n + t.count FROM t WHERE r.id = t.run_id AND r.latest
    RETURNING ${PUBLISHER('r.')}, r.last_event_n - t.count AS last_n, now_ms() AS now`,
  sqlite: [
    'UPDATE ichido.runs SET last_event_n = last_event_n + $count WHERE id = $run_id AND latest',
    `SELECT ${PUBLISHER('r.')}, r.last_event_n - $count AS last_n, now_ms() AS now
      FROM ichido.runs r WHERE r.id = $run_id AND changes() = 1`,
  ],
})

export type IngestOutcome =
  | ({ kind: 'stored' | 'repeated' } & IngestedEvent)
  /** The job does not exist, or has expired. */
  | { kind: 'unknown' }
  /** The job has no such stage, or the stage does not have this seq. */
  | { kind: 'refused' }

/** A run is superseded at most once for each attempt of its job. */
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
    const rows = yield* lockLatest(counts)
    const rowOf = new Map(rows.map((row) => [row.job_id, row]))
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
    const last = yield* insertNumbered(news, rows, (row) => counts.get(row.job_id) ?? 0)
    for (const [repeat, first] of repeats) Object.assign(repeat, { n: first.n, createdAtMs: first.createdAtMs })
    const stored = new Set(news)
    return read.map((one): IngestOutcome => {
      if (!('jobId' in one)) return one
      return { kind: stored.has(one) ? 'stored' : 'repeated', event: one, last: one.n === last.get(one.jobId) }
    })
  })
}

type LatestRun = RowOf<typeof raiseLatest>

/** Locks the latest runs and reserves numbers for the events of each job. An unknown job has no row. */
function* lockLatest(counts: ReadonlyMap<string, number>): Work<LatestRun[]> {
  const locked: LatestRun[] = []
  let jobIds = [...counts.keys()]
  for (let tries = 0; jobIds.length > 0; tries++) {
    // Other nodes keep creating new runs of the job, so the entry is read again later.
    if (tries === LOCK_TRIES_MAX) throw new StoreUnavailable('The latest run of a job could not be locked')
    const latest = yield* each(
      readLatestRuns,
      jobIds.map((job_id) => ({ job_id })),
    )
    const rows = yield* each(
      raiseLatest,
      latest.map(({ id, job_id }) => ({ run_id: id, count: counts.get(job_id) ?? 0 })),
    )
    locked.push(...rows)
    const found = new Set(rows.map((row) => row.job_id))
    // The next run was created between the two statements.
    jobIds = latest.map((row) => row.job_id).filter((jobId) => !found.has(jobId))
  }
  return locked
}

function wantedOf({ jobId, stage, seq, data }: ForeignEvent, row: LatestRun | undefined): StoredEvent | IngestOutcome {
  if (row === undefined) return { kind: 'unknown' }
  const rules = eventRules(row.kind, row.policy)
  if (seqProblem(rules, stage, seq) !== null) return { kind: 'refused' }
  return { jobId, domain: rules.domain, n: 0, stage, seq, data, createdAtMs: row.now }
}
