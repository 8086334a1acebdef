import { statement } from '../statement.ts'
import { ALL_EVENTS, eventsOf } from './event-sources.sql.ts'

// SQLite has one writer, so the rows are in the order of the commits, and the rowid stands for the transaction.
const perEngine = (text: (tx: string, domain: string, engine: 'postgres' | 'sqlite') => string) => ({
  postgres: text('e.tx', `coalesce(nullif(j.policy, '{}')::json ->> 'domain', j.kind)`, 'postgres'),
  sqlite: text('e.rowid', `coalesce(json_extract(j.policy, '$.domain'), j.kind)`, 'sqlite'),
})

/** Every transaction below `settled` has ended; none has begun at `ahead` or above. */
export const readHorizon = statement('read_horizon', {
  params: {},
  row: { settled: 'integer', ahead: 'integer' },
  postgres: `SELECT pg_snapshot_xmin(s)::text::bigint AS settled, pg_snapshot_xmax(s)::text::bigint AS ahead
    FROM pg_current_snapshot() s`,
  sqlite: `SELECT coalesce(max(rowid), 0) + 1 AS settled, coalesce(max(rowid), 0) + 1 AS ahead FROM ichido.events`,
})

const counted = (
  events: string,
  tx: string,
  from: string,
  to: string,
  max: string,
) => `SELECT count(*) AS count FROM (SELECT 1 FROM ${events} e
    WHERE ${tx} >= ${from} AND ${tx} < ${to} LIMIT ${max}) w`

/** Counts the events of the transactions from `low` on and before `high`. */
export const countPieces = statement('count_pieces', {
  params: { low: 'integer', high: 'integer', max: 'integer' },
  row: { count: 'integer' },
  postgres: `SELECT c.count FROM unnest($low::bigint[], $high::bigint[]) AS p(low, high)
    CROSS JOIN LATERAL (${counted(ALL_EVENTS.postgres, 'e.tx', 'p.low', 'p.high', '($max::integer[])[1]')}) c`,
  sqlite: counted(ALL_EVENTS.sqlite, 'e.rowid', '$low', '$high', '$max'),
})

const NAME_ROW = {
  tx: 'integer',
  job_id: 'text',
  n: 'integer',
  stage: 'text',
  seq: 'integer',
  begins: 'flag',
} as const
const EVENT_ROW = {
  ...NAME_ROW,
  data: 'text',
  created_at: 'integer',
  kind: 'text',
  queue: 'text',
  domain: 'text',
  job_created_at: 'integer',
} as const

/** The place after which a statement reads. */
const AFTER = { after_tx: 'integer', after_job_id: 'text', after_n: 'integer' } as const
/** A null field matches every event. */
const FILTER = { kind: 'text?', queue: 'text?', domain: 'text?', stage: 'text?' } as const

const name = (tx: string) => `${tx} AS tx, e.job_id, e.n, e.stage, e.seq, e.n = 2 AS begins`
const columns = (
  tx: string,
  domain: string,
) => `${name(tx)}, e.data, e.created_at, j.kind, j.queue, ${domain} AS domain,
  j.created_at AS job_created_at`

const after = (tx: string) =>
  `(${tx}, e.job_id, e.n) > (CAST($after_tx AS bigint), $after_job_id, CAST($after_n AS bigint))`

const wanted = (tx: string, domain: string) => `${after(tx)}
  AND (CAST($kind AS text) IS NULL OR j.kind = $kind) AND (CAST($queue AS text) IS NULL OR j.queue = $queue)
  AND (CAST($domain AS text) IS NULL OR ${domain} = $domain) AND (CAST($stage AS text) IS NULL OR e.stage = $stage)`

/** Reads the events of the transactions from `low` on and before `high`, in their order. */
export const readWindow = statement('read_window', {
  params: { ...AFTER, ...FILTER, low: 'integer', high: 'integer', max: 'integer' },
  row: EVENT_ROW,
  ...perEngine(
    (
      tx,
      domain,
      engine,
    ) => `SELECT ${columns(tx, domain)} FROM ${ALL_EVENTS[engine]} e JOIN ichido.jobs j ON j.id = e.job_id
    WHERE ${tx} >= $low AND ${tx} < $high AND ${wanted(tx, domain)} ORDER BY ${tx}, e.job_id, e.n LIMIT $max`,
  ),
})

/** Reads the names of the events of each piece, in their order. */
export const readNames = statement('read_names', {
  params: { ...AFTER, low: 'integer', high: 'integer', max: 'integer' },
  row: NAME_ROW,
  postgres: `SELECT w.* FROM unnest($low::bigint[], $high::bigint[]) AS p(low, high)
    CROSS JOIN LATERAL (SELECT ${name('e.tx')} FROM ${ALL_EVENTS.postgres} e WHERE e.tx >= p.low AND e.tx < p.high
      AND (e.tx, e.job_id, e.n) > (($after_tx::bigint[])[1], ($after_job_id::uuid[])[1], ($after_n::bigint[])[1])
      ORDER BY e.tx, e.job_id, e.n LIMIT ($max::integer[])[1]) w
    ORDER BY w.tx, w.job_id, w.n LIMIT ($max::integer[])[1]`,
  sqlite: `SELECT ${name('e.rowid')} FROM ichido.events e WHERE e.rowid >= $low AND e.rowid < $high
      AND ${after('e.rowid')} ORDER BY e.rowid, e.job_id, e.n LIMIT $max`,
})

export const readNamed = statement('read_named', {
  params: { job_id: 'text', n: 'integer' },
  row: EVENT_ROW,
  postgres: perEngine(
    (tx, domain) => `SELECT ${columns(tx, domain)} FROM unnest($job_id::uuid[], $n::bigint[]) AS t(job_id, n)
    CROSS JOIN LATERAL ${eventsOf.postgres('t.job_id')} e JOIN ichido.jobs j ON j.id = e.job_id WHERE e.n = t.n`,
  ).postgres,
  sqlite: perEngine(
    (tx, domain) => `SELECT ${columns(tx, domain)} FROM ichido.events e JOIN ichido.jobs j ON j.id = e.job_id
    WHERE e.job_id = $job_id AND e.n = $n`,
  ).sqlite,
})

/** Reads the events of a job that transactions before `high` wrote. */
export const readOfJob = statement('read_of_job', {
  params: { ...AFTER, ...FILTER, high: 'integer', max: 'integer', job_id: 'text' },
  row: EVENT_ROW,
  ...perEngine(
    (tx, domain, engine) => `SELECT ${columns(tx, domain)}
    FROM ${engine === 'postgres' ? eventsOf.postgres('$job_id') : ALL_EVENTS.sqlite} e JOIN ichido.jobs j ON j.id = e.job_id
    WHERE e.job_id = $job_id AND ${tx} < $high AND ${wanted(tx, domain)} ORDER BY ${tx}, e.job_id, e.n LIMIT $max`,
  ),
})
