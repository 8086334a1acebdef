import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import pg from 'pg'
import { realWorld } from '../../server/src/node/world.ts'
import { openPostgres } from '../../server/src/store/engines/postgres/postgres.ts'
import { DATABASE_FILE, openSqlite } from '../../server/src/store/engines/sqlite/sqlite.ts'
import { type Contestant, type Handle, keyOf, payload, type Settings, storageOf } from '../contest/contestant.ts'

const LIVE =
  'job_id, run_id, run_no, queue, kind, user_id, retry_count, priority, run_at, fair_tag, created_at, attempt, version, n'
const HASH = `'${'0'.repeat(64)}'`

// $1 is the id and $2 the payload, or arrays of them; $3 the time; $4 the key.
const jobs = (from: string) => `INSERT INTO ichido.jobs (id, kind, queue, user_id, payload, policy, priority,
    estimated_cost_micros, created_at)
  SELECT id, 'welcome', 'default', 'local', payload, '{}', 0, 0, $3 FROM ${from}`
const ready = (from: string) => `INSERT INTO ichido.ready (${LIVE}, bytes)
  SELECT id, id, 1, 'default', 'welcome', 'local', 0, 0, $3, $3, $3, 0, 1, 1, octet_length(payload) FROM ${from}`
const keys = (from: string) => `INSERT INTO ichido.idempotency_keys (idempotency_key, user_id, operation, request_hash,
    hash_version, job_id, response_status, response_body, created_at, expires_at)
  SELECT key, 'local', 'submit', ${HASH}, 1, id, 201, '${'x'.repeat(250)}', $3, $3 + 86400000 FROM ${from}`

// $1 is the id of a job, or an array of them, and $2 the time. PostgreSQL keeps the events of a lease and an end in columns of the
// run, SQLite in rows of `events`.
interface Told {
  columns: string
  values: string
}
const IN_ROWS: Told = { columns: '', values: '' }
const TX = 'pg_current_xact_id()::text::bigint'
const LEASED: Told = { columns: ', leased_n, leased_tx', values: `, n + 1, ${TX}` }
const ENDED: Told = {
  columns: ', leased_n, leased_tx, ended_n, ended_tx',
  values: `, leased_n, leased_tx, n + 1, ${TX}`,
}

const held = (
  from: string,
  told = IN_ROWS,
) => `INSERT INTO ichido.held (${LIVE}, worker_id, poll_id, token, assigned_at,
    lease_expires_at, lease_ttl_ms, continuation_ms, start_id, started_at, leader_epoch${told.columns})
  SELECT ${LIVE.replace('attempt, version, n', 'attempt + 1, version + 1, n + 1')}, 'worker', 'poll', '${'x'.repeat(22)}', $2,
    $2, 60000, 60000, 'start', $2, 1${told.values} FROM ${from}`
const ENDING = 'worker_id, token, assigned_at, start_id, started_at, leader_epoch, lease_expires_at'
const ended = (
  from: string,
  told = IN_ROWS,
) => `INSERT INTO ichido.ended (job_id, run_no, run_id, user_id, latest, state,
    attempt, retry_count, version, run_at, fair_tag, created_at, ${ENDING}, finished_at, n, outcome_hash${told.columns})
  SELECT job_id, run_no, run_id, user_id, true, 'SUCCEEDED', attempt, retry_count, version + 1, run_at, fair_tag, created_at,
    ${ENDING}, $2, n + 1, ${HASH}${told.values} FROM ${from}`
const events = (
  state: string,
  from: string,
) => `INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at)
  SELECT job_id, n + 1, 'run', n + 1, '', '{"state":"${state}","attempt":1}', $2 FROM ${from}`

const MOVES = 250
/** The store uses these settings, too: a plan that was made on an empty table would always scan it. */
const PLANNER = '-c plan_cache_mode=force_generic_plan -c enable_seqscan=off'

/** Writes only the rows that the promises need, in the real tables and indexes: no checks and no answers. */
interface Rows {
  insert(ids: string[], payloads: string[], keys: string[] | null): Promise<void>
  lease(ids: string[]): Promise<void>
  finish(ids: string[]): Promise<void>
  close(): Promise<void>
}

/** The limit of all rows about Ichido: the barest loop that writes the same rows. It knows the ids and searches for nothing. */
export async function openFloor({ url }: Settings): Promise<Contestant> {
  const storage = storageOf(url)
  const rows = 'dataDir' in storage ? await openSqliteRows(storage.dataDir) : await openPostgresRows(url)
  const waiting: [number, string][] = []
  let taken = 0
  let working = false
  let prompt: Handle | null = null

  async function submitMany(first: number, count: number, keyed: boolean): Promise<void> {
    const numbers = Array.from({ length: count }, (_, i) => first + i)
    const ids = numbers.map(() => realWorld.uuid())
    const payloads = numbers.map((n) => JSON.stringify(payload(n)))
    await rows.insert(ids, payloads, keyed ? numbers.map(keyOf) : null)
    if (prompt === null) waiting.push(...numbers.map((n, i): [number, string] => [n, ids[i] ?? '']))
    else void prompt(first, null)
  }

  async function workOff(handle: Handle): Promise<void> {
    while (working && taken < waiting.length) {
      const runs = waiting.slice(taken, taken + MOVES)
      taken += runs.length
      const ids = runs.map(([, id]) => id)
      await rows.lease(ids)
      await Promise.all(runs.map(([n]) => handle(n, null)))
      await rows.finish(ids)
    }
  }

  return {
    submit: (n) => submitMany(n, 1, true),
    submitMany,
    async work(pace, handle) {
      // The least before a handler may begin: its job is on disk.
      if (pace === 'prompt') {
        prompt = handle
        return async () => {
          prompt = null
        }
      }
      working = true
      const both = Promise.all([workOff(handle), workOff(handle)])
      return async () => {
        working = false
        await both
      }
    },
    close: () => rows.close(),
  }
}

async function openPostgresRows(url: string): Promise<Rows> {
  const store = await openPostgres({ url, now: Date.now, monotonic: performance.now, sleep: () => Promise.resolve() })
  await store.close()
  const given = 's AS MATERIALIZED (SELECT * FROM unnest($1::uuid[], $2::text[]) AS t(id, payload))'
  const named = 'u AS MATERIALIZED (SELECT * FROM unnest($1::uuid[], $4::text[]) AS t(id, key))'
  const removed = (table: string, columns: string) =>
    `m AS (DELETE FROM ichido.${table} WHERE job_id = ANY($1::uuid[]) RETURNING ${columns})`
  const plain = { name: 'plain', text: `WITH ${given}, j AS (${jobs('s')}) ${ready('s')}` }
  const keyed = {
    name: 'keyed',
    text: `WITH ${given}, ${named}, j AS (${jobs('s')}), r AS (${ready('s')}) ${keys('u')}`,
  }
  const lease = { name: 'lease', text: `WITH ${removed('ready', LIVE)} ${held('m', LEASED)}` }
  const carried = `${LIVE}, ${ENDING}${LEASED.columns}`
  const finish = { name: 'finish', text: `WITH ${removed('held', carried)} ${ended('m', ENDED)}` }
  const pool = new pg.Pool({ connectionString: url, options: PLANNER })
  const move = (query: { name: string; text: string }) => async (ids: string[]) =>
    void (await pool.query({ ...query, values: [ids, Date.now()] }))
  return {
    async insert(ids, payloads, names) {
      const values = [ids, payloads, Date.now()]
      await pool.query(names === null ? { ...plain, values } : { ...keyed, values: [...values, names] })
    },
    lease: move(lease),
    finish: move(finish),
    close: () => pool.end(),
  }
}

async function openSqliteRows(dataDir: string): Promise<Rows> {
  await openSqlite({ dataDir, now: Date.now }).close()
  const db = new DatabaseSync(join(dataDir, DATABASE_FILE))
  db.exec('PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -65536')
  const prepare = (text: string) => db.prepare(text.replaceAll('ichido.', '').replaceAll(/\$(\d)/g, '?$1'))
  const inserts = [jobs, ready].map((insert) => prepare(insert('(SELECT $1 AS id, $2 AS payload)')))
  const named = prepare(keys('(SELECT $1 AS id, $4 AS key)'))
  function transaction(work: () => void): void {
    db.exec('BEGIN IMMEDIATE')
    work()
    db.exec('COMMIT')
  }
  function move(room: string, into: ((from: string) => string)[]): (ids: string[]) => Promise<void> {
    const writes = into.map((text) => prepare(text(`${room} WHERE job_id = $1`)))
    const remove = prepare(`DELETE FROM ${room} WHERE job_id = $1`)
    return async (ids) =>
      transaction(() => {
        for (const id of ids) {
          for (const write of writes) write.run(id, Date.now())
          remove.run(id)
        }
      })
  }
  return {
    insert: async (ids, payloads, names) =>
      transaction(() => {
        ids.forEach((id, i) => {
          const values = [id, payloads[i] ?? '', Date.now()]
          for (const insert of inserts) insert.run(...values)
          if (names !== null) named.run(...values, names[i] ?? '')
        })
      }),
    lease: move('ready', [(from) => held(from), (from) => events('RUNNING', from)]),
    finish: move('held', [(from) => ended(from), (from) => events('SUCCEEDED', from)]),
    close: async () => db.close(),
  }
}
