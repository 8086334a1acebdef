import type { ForeignEvent, IngestedEvent, StoredEvent } from '../../core/events/event.ts'
import { eventRules, seqProblem } from '../../core/events/seq.ts'
import { StoreUnavailable } from '../../core/node/store-errors.ts'
import { type Command, command } from '../port.ts'
import { foldBy } from '../runs/fold.ts'
import { each, type RowOf, type Work } from '../statement.ts'
import * as sql from './events.sql.ts'
import { findStored, identityOf, insertNumbered } from './publish.ts'

export type IngestOutcome =
  | ({ kind: 'stored' | 'repeated' } & IngestedEvent)
  /** There is no such job, or it is past its time. */
  | { kind: 'unknown' }
  /** The job has no such stage, or the stage no such seq. */
  | { kind: 'refused' }

/** A run is superseded at most once for each try of its job. */
const LOCK_TRIES_MAX = 5

/**
 * Stores events of publishers that hold no lease, each once: they have a job, but no run. The latest run's row is locked, as by
 * everybody who stores events, so that two nodes that bring the same event store it once, and cursors have no gap. Such an
 * event has no attempt: its seq is stored as it came, or the same event brought again in the next attempt would be another one.
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

type LatestRun = RowOf<typeof sql.raiseLatest>

/** Locks the latest runs and makes room for so many events of each job. An unknown job has no row. */
function* lockLatest(counts: ReadonlyMap<string, number>): Work<LatestRun[]> {
  const locked: LatestRun[] = []
  let jobIds = [...counts.keys()]
  for (let tries = 0; jobIds.length > 0; tries++) {
    // Other nodes keep making new runs of the job: the entry is read again later.
    if (tries === LOCK_TRIES_MAX) throw new StoreUnavailable('The latest run of a job could not be locked')
    const latest = yield* each(
      sql.readLatestRuns,
      jobIds.map((job_id) => ({ job_id })),
    )
    const rows = yield* each(
      sql.raiseLatest,
      latest.map(({ id, job_id }) => ({ run_id: id, count: counts.get(job_id) ?? 0 })),
    )
    locked.push(...rows)
    const found = new Set(rows.map((row) => row.job_id))
    // The next run was made between the two statements.
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
