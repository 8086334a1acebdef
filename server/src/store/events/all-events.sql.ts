import { statement } from '../statement.ts'

// SQLite has one writer: there the order of the rows is the order of the commits, and the rowid stands for the transaction.
const perEngine = (text: (tx: string, domain: string) => string) => ({
  postgres: text('e.tx', `coalesce(nullif(j.policy, '{}')::json ->> 'domain', j.kind)`),
  sqlite: text('e.rowid', `coalesce(json_extract(j.policy, '$.domain'), j.kind)`),
})

/** Every transaction below `settled` has ended; none has begun at `ahead` or above. */
export const readHorizon = statement('read_horizon', {
  postgres: `SELECT pg_snapshot_xmin(s)::text::bigint AS settled, pg_snapshot_xmax(s)::text::bigint AS ahead
    FROM pg_current_snapshot() s`,
  sqlite: `SELECT coalesce(max(rowid), 0) + 1 AS settled, coalesce(max(rowid), 0) + 1 AS ahead FROM ichido.events`,
})

const counted = (
  tx: string,
  from: string,
  to: string,
  max: string,
) => `SELECT count(*) AS count FROM (SELECT 1 FROM ichido.events e
    WHERE ${tx} >= ${from} AND ${tx} < ${to} LIMIT ${max}) w`

/** Takes two transactions and a maximum, of each piece: how many events are of the first or later ones and before the second. */
export const countPieces = statement('count_pieces', {
  postgres: `SELECT c.count FROM unnest($1::bigint[], $2::bigint[]) AS p(low, high)
    CROSS JOIN LATERAL (${counted('e.tx', 'p.low', 'p.high', '($3::integer[])[1]')}) c`,
  sqlite: counted('e.rowid', '$1', '$2', '$3'),
})

const name = (tx: string) => `${tx} AS tx, e.job_id, e.n, e.stage, e.seq,
  CASE WHEN e.n = 2 THEN NOT EXISTS (SELECT 1 FROM ichido.events f WHERE f.job_id = e.job_id AND f.n = 1) ELSE false END AS begins`
const columns = (
  tx: string,
  domain: string,
) => `${name(tx)}, e.data, e.created_at, j.kind, j.queue, ${domain} AS domain,
  j.created_at AS job_created_at`

const after = (tx: string) => `(${tx}, e.job_id, e.n) > (CAST($1 AS bigint), $2, CAST($3 AS bigint))`

/** What a statement takes after a place ($1 transaction, $2 job, $3 number): $4 kind, $5 queue, $6 domain, $7 stage, or null. */
const wanted = (tx: string, domain: string) => `${after(tx)}
  AND (CAST($4 AS text) IS NULL OR j.kind = $4) AND (CAST($5 AS text) IS NULL OR j.queue = $5)
  AND (CAST($6 AS text) IS NULL OR ${domain} = $6) AND (CAST($7 AS text) IS NULL OR e.stage = $7)`

/** Takes a place and a filter as above, two transactions and a maximum: the events in between, in their order. */
export const readWindow = statement(
  'read_window',
  perEngine(
    (tx, domain) => `SELECT ${columns(tx, domain)} FROM ichido.events e JOIN ichido.jobs j ON j.id = e.job_id
    WHERE ${tx} >= $8 AND ${tx} < $9 AND ${wanted(tx, domain)} ORDER BY ${tx}, e.job_id, e.n LIMIT $10`,
  ),
)

/** Takes a place, two transactions and a maximum, of each piece: what identifies the events in it, in their order. */
export const readNames = statement('read_names', {
  postgres: `SELECT w.* FROM unnest($4::bigint[], $5::bigint[]) AS p(low, high)
    CROSS JOIN LATERAL (SELECT ${name('e.tx')} FROM ichido.events e WHERE e.tx >= p.low AND e.tx < p.high
      AND (e.tx, e.job_id, e.n) > (($1::bigint[])[1], ($2::uuid[])[1], ($3::bigint[])[1])
      ORDER BY e.tx, e.job_id, e.n LIMIT ($6::integer[])[1]) w
    ORDER BY w.tx, w.job_id, w.n LIMIT ($6::integer[])[1]`,
  sqlite: `SELECT ${name('e.rowid')} FROM ichido.events e WHERE e.rowid >= $4 AND e.rowid < $5 AND ${after('e.rowid')}
    ORDER BY e.rowid, e.job_id, e.n LIMIT $6`,
})

/** Takes jobs and numbers of events. */
export const readNamed = statement('read_named', {
  postgres: perEngine(
    (tx, domain) => `SELECT ${columns(tx, domain)} FROM unnest($1::uuid[], $2::bigint[]) AS t(job_id, n)
    JOIN ichido.events e ON e.job_id = t.job_id AND e.n = t.n JOIN ichido.jobs j ON j.id = e.job_id`,
  ).postgres,
  sqlite: perEngine(
    (tx, domain) => `SELECT ${columns(tx, domain)} FROM ichido.events e JOIN ichido.jobs j ON j.id = e.job_id
    WHERE e.job_id = $1 AND e.n = $2`,
  ).sqlite,
})

/** Takes a place and a filter as above, a transaction, a maximum and a job: the events of the job before that transaction. */
export const readOfJob = statement(
  'read_of_job',
  perEngine(
    (tx, domain) => `SELECT ${columns(tx, domain)} FROM ichido.events e JOIN ichido.jobs j ON j.id = e.job_id
    WHERE e.job_id = $10 AND ${tx} < $8 AND ${wanted(tx, domain)} ORDER BY ${tx}, e.job_id, e.n LIMIT $9`,
  ),
)

// A transaction that wrote very many events, as a restore does, is read along the primary key, a part at a time.

/** Takes a place and a filter as above, and how many events to look at. */
export const readGroup = statement('read_group', {
  postgres: perEngine(
    (tx, domain) => `SELECT ${columns(tx, domain)} FROM (
      SELECT * FROM ichido.events e WHERE (e.job_id, e.n) > ($2, $3) ORDER BY e.job_id, e.n LIMIT $8) e
    JOIN ichido.jobs j ON j.id = e.job_id WHERE ${tx} = $1 AND ${wanted(tx, domain)} ORDER BY e.job_id, e.n`,
  ).postgres,
  sqlite: [],
})

/** Takes a place and how many events to look at: what identifies those of the place's transaction. */
export const readNamesOfGroup = statement('read_names_of_group', {
  postgres: `SELECT ${name('e.tx')} FROM (
      SELECT * FROM ichido.events e WHERE (e.job_id, e.n) > ($2, $3) ORDER BY e.job_id, e.n LIMIT $4) e
    WHERE e.tx = $1 ORDER BY e.job_id, e.n`,
  sqlite: [],
})

/** Takes transaction, job, number and how many events to look at: the last one of them, and how many are of the transaction. */
export const scanGroup = statement('scan_group', {
  postgres: `SELECT e.job_id, e.n, count(*) FILTER (WHERE e.tx = $1) OVER () AS found FROM (
      SELECT job_id, n, tx FROM ichido.events WHERE (job_id, n) > ($2, $3) ORDER BY job_id, n LIMIT $4) e
    ORDER BY e.job_id DESC, e.n DESC LIMIT 1`,
  sqlite: [],
})

/** Takes transaction, job, number: whether the transaction has events after that place. */
export const isGroupLeft = statement('is_group_left', {
  postgres: `SELECT EXISTS (SELECT 1 FROM ichido.events e WHERE e.tx = $1 AND (e.job_id, e.n) > ($2, $3)) AS left`,
  sqlite: [],
})
