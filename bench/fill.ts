import pg from 'pg'
import { command, type Store } from '../server/src/store/port.ts'
import { queryText, select } from '../server/src/store/statement.ts'

/** Jobs inserted with SQL alone, numbered from 1 to `count`: one every `SPACING_MS`, the last one now. */
export interface Filling {
  count: number
  nowMs: number
}

const SPACING_MS = 36
const QUEUES = 10
const KINDS = 20
const USERS = 100
const TEAMS = 20
/** One in this many jobs has a label. */
const LABELED = 10
/** The keys of the first jobs have expired, so that retention can remove these jobs. */
export const EXPIRED = 5_000
/** One transaction inserts at most this many jobs. */
const PART = 50_000

export const queueOf = (n: number): string => `queue-${n % QUEUES}`
export const kindOf = (n: number): string => `kind-${n % KINDS}`
export const userOf = (n: number): string => `user-${n % USERS}`
export const teamOf = (n: number): string => `team-${Math.floor(n / LABELED) % TEAMS}`
export const filledKeyOf = (n: number): string => `key-${n}`

/** The id that `ID` below gives to job `n`. */
export function filledIdOf({ count, nowMs }: Filling, n: number): string {
  const hex = (value: number, width: number) => value.toString(16).padStart(width, '0')
  const ms = hex(nowMs - (count - n) * SPACING_MS, 12)
  return `${ms.slice(0, 8)}-${ms.slice(8)}-7${hex(n % 4096, 3)}-8000-${hex(n, 12)}`
}

const MS = `($2 - ($1 - n) * ${SPACING_MS})`
const STATE = `CASE n % 100 WHEN 0 THEN 'FAILED' WHEN 1 THEN 'CANCELED' ELSE 'SUCCEEDED' END`
const WAITS = '(n % 100 = 2)'

/** What to insert: a table with its columns, and a SELECT from the jobs `t` (n, ms, id). */
export type Selects = Readonly<Record<string, string>>

const SELECTS: Selects = {
  'jobs (id, kind, queue, user_id, payload, policy, priority, labels, estimated_cost_micros, created_at)': `
    SELECT id, 'kind-' || (n % ${KINDS}), 'queue-' || (n % ${QUEUES}), 'user-' || (n % ${USERS}),
      '{"to":"user-' || n || '@example.org","template":"welcome","n":' || n || '}', '{}', 0,
      CASE n % ${LABELED} WHEN 0 THEN '{"team":"team-' || (n / ${LABELED} % ${TEAMS}) || '"}' END, 0, ms FROM t`,
  [`ready (job_id, run_id, run_no, queue, kind, user_id, attempt, retry_count, version, priority, run_at, fair_tag, created_at, n,
    bytes)`]: `
    SELECT id, id, 1, 'queue-' || (n % ${QUEUES}), 'kind-' || (n % ${KINDS}), 'user-' || (n % ${USERS}), 1, 0, 4, 0, ms, ms, ms, 3, 60
    FROM t WHERE ${WAITS}`,
  [`ended (job_id, run_no, run_id, user_id, latest, state, attempt, retry_count, version, run_at, fair_tag, created_at, started_at,
    finished_at, n)`]: `
    SELECT id, 1, id, 'user-' || (n % ${USERS}), true, ${STATE}, 1, 0, 4, ms, ms, ms, ms + 1000, ms + 1000, 3
    FROM t WHERE NOT ${WAITS}`,
  [`idempotency_keys (idempotency_key, user_id, operation, request_hash, hash_version, job_id, response_status, response_body,
    created_at, expires_at)`]: `
    SELECT 'key-' || n, 'user-' || (n % ${USERS}), 'submit', 'hash-' || n, 1, id, 201, '{"job_id":"…"}', ms,
      ms + CASE WHEN n <= ${EXPIRED} THEN 0 ELSE 86400000 END FROM t`,
  'job_labels (name, value, job_id)': `
    SELECT 'team', 'team-' || (n / ${LABELED} % ${TEAMS}), id FROM t WHERE n % ${LABELED} = 0`,
}

const POSTGRES = `WITH t AS (SELECT n, ms, ${postgresId(8)} AS id
  FROM (SELECT n, ${MS.replace('$2', '$2::bigint').replace('$1', '$1::bigint')} AS ms FROM generate_series($3::bigint, $4::bigint) n) s)`
const SQLITE = `WITH RECURSIVE s(n) AS (SELECT CAST($3 AS INTEGER) UNION ALL SELECT n + 1 FROM s WHERE n < $4),
  m AS (SELECT n, ${MS} AS ms FROM s), t AS (SELECT n, ms, ${sqliteId(8)} AS id FROM m)`

function postgresId(variant: number): string {
  return `(lpad(to_hex(ms), 12, '0') || '7' || lpad(to_hex(n % 4096), 3, '0') || '${variant}000' || lpad(to_hex(n), 12, '0'))::uuid`
}

function sqliteId(variant: number): string {
  return `printf('%08x-%04x-7%03x-${variant}000-%012x', ms >> 16, ms & 65535, n % 4096, n)`
}

/** Written in a SELECT, it is an id that differs from that of the job only in the digit `variant`, which is 9 at most. */
export const otherId = (variant: number): string => `other_id(${variant})`

const withIds = (sql: string, idOf: (variant: number) => string) =>
  sql.replaceAll(/other_id\((\d)\)/g, (_, variant) => idOf(Number(variant)))

const insertsOf = (selects: Selects) =>
  Object.entries(selects).map(([into, select]) => ({
    postgres: `${POSTGRES} INSERT INTO ichido.${into} ${withIds(select, postgresId)}`,
    sqlite: `INSERT INTO ichido.${into} ${SQLITE} ${withIds(select, sqliteId)}`,
  }))

/** On PostgreSQL, inserting a million rows is four times as fast if the indexes are created afterwards. */
const plainIndexes = (
  tables: readonly string[],
) => `SELECT i.indexname AS name, i.indexdef AS definition FROM pg_indexes i
    WHERE i.schemaname = 'ichido' AND i.tablename IN (${tables.map((table) => `'${table}'`).join(', ')})
      AND NOT EXISTS (SELECT 1 FROM pg_constraint c WHERE c.conname = i.indexname)`

const dropIndexes = (tables: readonly string[]) =>
  command('drop_indexes', function* work() {
    const indexes = yield* select({ name: 'text', definition: 'text' }, plainIndexes(tables), [])
    for (const { name } of indexes) yield* queryText(`DROP INDEX ichido.${name}`)
    return indexes.map(({ definition }) => definition)
  })

const insertPart = (selects: Selects, { count, nowMs }: Filling, from: number, to: number) =>
  command('fill', function* work() {
    for (const insert of insertsOf(selects)) yield* queryText(insert, count, nowMs, from, to)
  })

/** Inserts the jobs into an empty store, which has this address. */
export async function fill(store: Store, url: string, filling: Filling, selects = SELECTS): Promise<void> {
  const tables = Object.keys(selects).map((into) => into.slice(0, into.indexOf(' ')))
  const indexes = store.engine === 'postgres' ? await store.write(dropIndexes(tables)) : []
  for (let from = 1; from <= filling.count; from += PART) {
    await store.write(insertPart(selects, filling, from, Math.min(filling.count, from + PART - 1)))
  }
  if (indexes.length > 0) await createIndexes(url, indexes)
}

/** Not through the store, which gives up on a statement after ten seconds: an index of ten million jobs takes longer. */
async function createIndexes(url: string, definitions: readonly string[]): Promise<void> {
  const client = new pg.Client(url)
  await client.connect()
  for (const definition of definitions) await client.query(definition)
  await client.end()
}
