import type { StoredEvent } from '../../core/events/event.ts'
import { eventRules, seqProblem, storedSeq } from '../../core/events/seq.ts'
import type { RunRefusal } from '../../core/run/run-state.ts'
import { type Command, command } from '../port.ts'
import { foldBy } from '../runs/fold.ts'
import { explain, factsOf } from '../runs/run-facts.ts'
import { each, type RowOf, type Work } from '../statement.ts'
import * as sql from './events.sql.ts'

export interface PublishItem {
  runId: string
  workerId: string
  leaseId: string
  /** `data` is JSON text. */
  events: readonly { stage: string; seq: number; data: string }[]
}

export type PublishOutcome =
  /**
   * For each event what was stored; null: it was there before. The transaction has no other events than those of the batch;
   * null on SQLite, and when some may be of a try that was not heard of.
   */
  | { kind: 'stored'; jobId: string; events: (StoredEvent | null)[]; tx: number | null }
  | { kind: 'refused'; reason: RunRefusal | 'NOT_FOUND' }
  /** Nothing of the item was stored. */
  | { kind: 'invalid'; field: string; message: string }

/** What an item wants to be stored; the numbers are given out last. */
interface Wanted {
  kind: 'wanted'
  jobId: string
  events: StoredEvent[]
  tx: number | null
}

/**
 * (job, stage, seq) is stored once: who comes first is stored, whatever the data of the others. The cursor is raised under the
 * run's row lock, so that readers never skip an event. An item is published as a whole or not at all, and none fails another.
 * Most events are new. Unless it is to `look` for them first, one that is there already fails the batch as a BadValue.
 */
export function publishBatch(items: readonly PublishItem[], look: boolean): Command<PublishOutcome[]> {
  /** Of tries whose commit may not have been heard of. */
  const transactions = new Set<number | null>()
  return command('publish', function* work(again): Work<PublishOutcome[]> {
    const { firsts } = foldBy(items, holderOf)
    const room = new Map<string, number>()
    for (const item of items) raise(room, holderOf(item), item.events.length)
    const rows = yield* each(
      sql.raisePublishers,
      firsts.map((item) => ({
        run_id: item.runId,
        worker_id: item.workerId,
        lease_id: item.leaseId,
        count: room.get(holderOf(item)) ?? 0,
      })),
    )
    const publishers = new Map(rows.map((row) => [holderIn(row), row]))
    const refusalOf = yield* refuse(firsts.filter((item) => !publishers.has(holderOf(item))))
    const read = items.map((item) => {
      const publisher = publishers.get(holderOf(item))
      return publisher === undefined ? refusalOf(item) : wantedOf(item, publisher)
    })
    const wanted = foldBy(read.flatMap(eventsOf), identityOf).firsts
    const found = look || again ? yield* findStored(wanted) : new Map<StoredEvent, PublishedRow>()
    const ours = wanted.filter((event) => claim(event, found.get(event), transactions))
    const news = wanted.filter((event) => !found.has(event))
    yield* insertNumbered(news, rows, (row) => room.get(holderIn(row)) ?? 0)
    for (const row of rows) transactions.add(row.tx)
    const stored = new Set([...ours, ...news])
    return read.map((one): PublishOutcome => {
      if (one.kind !== 'wanted') return one
      const tx = again ? null : one.tx
      return { ...one, tx, kind: 'stored', events: one.events.map((event) => (stored.has(event) ? event : null)) }
    })
  })
}

type Publisher = RowOf<typeof sql.raisePublishers>
type PublishedRow = RowOf<typeof sql.readPublished>

// A lease_id begins with its run's id; neither it, nor an id or a seq, has a space in it.
const holderOf = ({ workerId, leaseId }: PublishItem) => `${leaseId} ${workerId}`
const holderIn = ({ lease_id, worker_id }: Publisher) => `${lease_id} ${worker_id}`
export const identityOf = ({ jobId, stage, seq }: StoredEvent) => `${jobId} ${seq} ${stage}`
const identityIn = ({ job_id, seq, stage }: PublishedRow) => `${job_id} ${seq} ${stage}`
const eventsOf = (one: Wanted | PublishOutcome) => (one.kind === 'wanted' ? one.events : [])

function raise(counts: Map<string, number>, name: string, by: number): number {
  const count = (counts.get(name) ?? 0) + by
  counts.set(name, count)
  return count
}

function* refuse(strangers: readonly PublishItem[]): Work<(item: PublishItem) => PublishOutcome> {
  const facts = yield* factsOf(strangers)
  return ({ runId, workerId, leaseId }) => {
    const reason = explain(facts.get(runId), { verb: 'heartbeat', workerId, leaseId })
    return { kind: 'refused', reason: reason === 'repeat' ? 'LEASE_LOST' : reason }
  }
}

function wantedOf({ events }: PublishItem, publisher: Publisher): Wanted | PublishOutcome {
  const { job_id: jobId, attempt, now: createdAtMs, tx } = publisher
  const rules = eventRules(publisher.kind, publisher.policy)
  for (const [i, { stage, seq }] of events.entries()) {
    const problem = seqProblem(rules, stage, seq)
    if (problem !== null) return { kind: 'invalid', field: `events.${i}.seq`, message: problem }
  }
  const { domain, seqScope } = rules
  return {
    kind: 'wanted',
    jobId,
    tx,
    events: events.map(({ stage, seq, data }) => {
      return { jobId, domain, n: 0, stage, seq: storedSeq(seqScope, attempt, seq), data, createdAtMs }
    }),
  }
}

/** Those that are in the store already. */
export function* findStored(wanted: readonly StoredEvent[]): Work<Map<StoredEvent, PublishedRow>> {
  const rows = yield* each(
    sql.readPublished,
    wanted.map(({ jobId, stage, seq }) => ({ job_id: jobId, stage, seq })),
  )
  const known = new Map(rows.map((row) => [identityIn(row), row]))
  return new Map(
    wanted.flatMap((event): [StoredEvent, PublishedRow][] => {
      const row = known.get(identityOf(event))
      return row === undefined ? [] : [[event, row]]
    }),
  )
}

/** Whether it was stored by one of our own tries. */
function claim(event: StoredEvent, row: PublishedRow | undefined, transactions: ReadonlySet<number | null>): boolean {
  if (row === undefined || !transactions.has(row.tx)) return false
  event.n = row.n
  event.createdAtMs = row.created_at
  return true
}

/**
 * There is room for all that was wanted; what repeats and refused ones do not need goes back, so that no gap is left. Answers
 * with the last number of each job.
 */
export function* insertNumbered<R extends Pick<Publisher, 'run_id' | 'job_id' | 'last_n'>>(
  news: readonly StoredEvent[],
  rows: readonly R[],
  roomOf: (row: R) => number,
): Work<ReadonlyMap<string, number>> {
  const last = new Map(rows.map((row) => [row.job_id, row.last_n]))
  for (const event of news) event.n = raise(last, event.jobId, 1)
  yield* each(sql.insertEvents, news)
  const lower = rows.flatMap((row) => {
    const n = last.get(row.job_id) ?? 0
    return n < row.last_n + roomOf(row) ? [{ run_id: row.run_id, n }] : []
  })
  yield* each(sql.lowerPublishers, lower)
  return last
}
