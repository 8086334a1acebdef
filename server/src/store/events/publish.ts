import { eventRules, type StoredEvent, seqProblem, storedSeq } from '../../core/events/event.ts'
import { parsePolicy } from '../../core/run/job.ts'
import type { RunRefusal } from '../../core/run/run-state.ts'
import { type Command, commandIn } from '../port.ts'
import type { Room } from '../runs/rooms.sql.ts'
import { explainRefusal, factsOf, foldBy, leaseIdOf, tokenOf } from '../runs/run-facts.ts'
import { HOLDER, HOLDS, HOLDS_SQLITE, SORTED } from '../runs/runs.sql.ts'
import { each, type RowOf, statement, type Work } from '../statement.ts'

/** A job that events are published to. */
const OF_JOB = 'r.job_id, r.attempt, j.kind, j.policy'

export const PUBLISHER_ROW = {
  job_id: 'text',
  attempt: 'integer',
  kind: 'text',
  policy: { json: parsePolicy },
  last_n: 'integer',
  now: 'integer',
} as const

/**
 * Reserves `count` numbers. Guards the holder and RUNNING. The row locks, taken in the order of the jobs, order the
 * events of a job. `last_n` is the number of the last event before.
 */
export const raisePublishers = statement('raise_publishers', {
  params: { ...HOLDER, count: 'integer' },
  row: { ...PUBLISHER_ROW, worker_id: 'text', token: 'text', tx: 'integer?' },
  postgres: `WITH t AS MATERIALIZED (
      SELECT t.* FROM unnest($job_id::uuid[], $worker_id::text[], $token::text[], $count::bigint[])
        AS t(job_id, worker_id, token, count) ${SORTED}),
    r AS (UPDATE ichido.held r SET n = r.n + t.count FROM t WHERE ${HOLDS} AND r.started_at IS NOT NULL
      RETURNING r.job_id, r.attempt, r.worker_id, r.token, r.n - t.count AS last_n)
    SELECT ${OF_JOB}, r.worker_id, r.token, r.last_n, now_ms() AS now, pg_current_xact_id()::text::bigint AS tx
    FROM r JOIN ichido.jobs j ON j.id = r.job_id`,
  sqlite: [
    `UPDATE ichido.held AS r SET n = n + $count WHERE ${HOLDS_SQLITE} AND r.started_at IS NOT NULL`,
    `SELECT ${OF_JOB}, r.worker_id, r.token, r.n - $count AS last_n, now_ms() AS now, NULL AS tx
      FROM ichido.held r JOIN ichido.jobs j ON j.id = r.job_id WHERE r.job_id = $job_id AND changes() = 1`,
  ],
})

/** Reserves numbers in the room where the job's latest run is, as `raisePublishers` does. */
export function raiseIn(room: Room) {
  const ofLatest = room === 'ended' ? 'AND r.latest' : ''
  return statement(`raise_${room}`, {
    params: { job_id: 'text', count: 'integer' },
    row: PUBLISHER_ROW,
    postgres: `WITH t AS MATERIALIZED (
        SELECT t.* FROM unnest($job_id::uuid[], $count::bigint[]) AS t(job_id, count) ${SORTED}),
      r AS (UPDATE ichido.${room} r SET n = r.n + t.count FROM t WHERE by_key(r.job_id, t.job_id) ${ofLatest}
        RETURNING r.job_id, r.attempt, r.n - t.count AS last_n)
      SELECT ${OF_JOB}, r.last_n, now_ms() AS now FROM r JOIN ichido.jobs j ON j.id = r.job_id`,
    sqlite: [
      `UPDATE ichido.${room} AS r SET n = n + $count WHERE r.job_id = $job_id ${ofLatest}`,
      `SELECT ${OF_JOB}, r.n - $count AS last_n, now_ms() AS now
        FROM ichido.${room} r JOIN ichido.jobs j ON j.id = r.job_id WHERE r.job_id = $job_id ${ofLatest} AND changes() = 1`,
    ],
  })
}

/** Returns unused numbers. The runs are locked. */
const lowerIn = (room: Room) => {
  const ofLatest = room === 'ended' ? 'AND r.latest' : ''
  return statement(`lower_${room}`, {
    params: { job_id: 'text', n: 'integer' },
    row: {},
    postgres: `UPDATE ichido.${room} r SET n = t.n FROM unnest($job_id::uuid[], $n::bigint[]) AS t(job_id, n)
      WHERE by_key(r.job_id, t.job_id) ${ofLatest}`,
    sqlite: `UPDATE ichido.${room} AS r SET n = $n WHERE r.job_id = $job_id ${ofLatest}`,
  })
}
const LOWER = { ready: lowerIn('ready'), held: lowerIn('held'), ended: lowerIn('ended') }

/**
 * The runs of the jobs are locked, so no other transaction stores their events. The index refuses an event that is
 * stored already: an insert with ON CONFLICT takes three times as long on PostgreSQL. The parameters have the names of
 * `StoredEvent`, so that events need not be copied.
 */
const insertEvents = statement('insert_events', {
  params: {
    jobId: 'text',
    n: 'integer',
    stage: 'text',
    seq: 'integer',
    domain: 'text',
    data: 'text',
    createdAtMs: 'integer',
  },
  row: {},
  postgres: `INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at)
    SELECT * FROM unnest($jobId::uuid[], $n::bigint[], $stage::text[], $seq::bigint[], $domain::text[], $data::text[],
      $createdAtMs::bigint[])`,
  sqlite: `INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at)
    VALUES ($jobId, $n, $stage, $seq, $domain, $data, $createdAtMs)`,
})

export const readPublished = statement('read_published', {
  params: { job_id: 'text', stage: 'text', seq: 'integer' },
  row: { job_id: 'text', n: 'integer', stage: 'text', seq: 'integer', created_at: 'integer', tx: 'integer' },
  postgres: `SELECT e.job_id, e.n, e.stage, e.seq, e.created_at, e.tx
    FROM unnest($job_id::uuid[], $stage::text[], $seq::bigint[]) AS t(job_id, stage, seq)
    JOIN ichido.events e ON e.job_id = t.job_id AND e.stage = t.stage AND e.seq = t.seq AND e.stage <> 'run'`,
  sqlite: `SELECT job_id, n, stage, seq, created_at, 0 AS tx FROM ichido.events
    WHERE job_id = $job_id AND stage = $stage AND seq = $seq AND stage <> 'run'`,
})

export interface PublishItem {
  jobId: string
  workerId: string
  leaseId: string
  /** `data` is JSON text. */
  events: readonly { stage: string; seq: number; data: string }[]
}

export type PublishOutcome =
  /**
   * Each stored event; null: it was stored before. `tx` contains only events of this batch; null on SQLite, and if some
   * events may be of an uncertain commit.
   */
  | { kind: 'stored'; jobId: string; events: (StoredEvent | null)[]; tx: number | null }
  | { kind: 'refused'; reason: RunRefusal | 'NOT_FOUND' }
  /** Nothing of the item was stored. */
  | { kind: 'invalid'; field: string; message: string }

/** The events that an item wants to store. They are numbered last. */
interface Wanted {
  kind: 'wanted'
  jobId: string
  events: StoredEvent[]
  tx: number | null
}

/**
 * An event (job, stage, seq) is stored once: the first wins, whatever the data of later ones. The cursor rises under
 * the run's row lock, so that readers never skip an event. An item is published as a whole or not at all, and does not
 * fail other items. Most events are new: without `look`, an event that is stored already fails the batch as a BadValue.
 */
export function publishBatch(items: readonly PublishItem[], look: boolean): Command<PublishOutcome[]> {
  /** Transactions of tries whose commit is uncertain. */
  const transactions = new Set<number | null>()
  return commandIn('batches', 'publish', function* work(again): Work<PublishOutcome[]> {
    const { firsts } = foldBy(items, holderOf)
    const room = new Map<string, number>()
    for (const item of items) raise(room, holderOf(item), item.events.length)
    const rows = yield* each(
      raisePublishers,
      firsts.map((item) => ({
        job_id: item.jobId,
        worker_id: item.workerId,
        token: tokenOf(item.leaseId),
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
    yield* insertNumbered(news, 'held', rows, (row) => room.get(holderIn(row)) ?? 0)
    for (const row of rows) transactions.add(row.tx)
    const stored = new Set([...ours, ...news])
    return read.map((one): PublishOutcome => {
      if (one.kind !== 'wanted') return one
      const tx = again ? null : one.tx
      return { ...one, tx, kind: 'stored', events: one.events.map((event) => (stored.has(event) ? event : null)) }
    })
  })
}

type Publisher = RowOf<typeof raisePublishers>
type PublishedRow = RowOf<typeof readPublished>

// A lease_id begins with its job's id. Neither ids nor numbers contain a space.
const holderOf = ({ workerId, leaseId }: PublishItem) => `${leaseId} ${workerId}`
const holderIn = ({ job_id, token, worker_id }: Publisher) => `${leaseIdOf(job_id, token)} ${worker_id}`
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
  return ({ workerId, leaseId }) => {
    const reason = explainRefusal(facts.get(leaseId), { verb: 'heartbeat', workerId, leaseId })
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

/** Finds events that are stored already. */
export function* findStored(wanted: readonly StoredEvent[]): Work<Map<StoredEvent, PublishedRow>> {
  const rows = yield* each(
    readPublished,
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

/** True if one of our own tries stored the event. */
function claim(event: StoredEvent, row: PublishedRow | undefined, transactions: ReadonlySet<number | null>): boolean {
  if (row === undefined || !transactions.has(row.tx)) return false
  event.n = row.n
  event.createdAtMs = row.created_at
  return true
}

/**
 * Inserts the new events with their numbers, and returns the reserved numbers that were not needed, so that there is no
 * gap. The result is the last number of each job.
 */
export function* insertNumbered<R extends Pick<Publisher, 'job_id' | 'last_n'>>(
  news: readonly StoredEvent[],
  room: Room,
  rows: readonly R[],
  roomOf: (row: R) => number,
): Work<ReadonlyMap<string, number>> {
  const last = new Map(rows.map((row) => [row.job_id, row.last_n]))
  for (const event of news) event.n = raise(last, event.jobId, 1)
  yield* each(insertEvents, news)
  const lower = rows.flatMap((row) => {
    const n = last.get(row.job_id) ?? 0
    return n < row.last_n + roomOf(row) ? [{ job_id: row.job_id, n }] : []
  })
  yield* each(LOWER[room], lower)
  return last
}
