import pg from 'pg'
import { MIGRATIONS, SCHEMA_VERSION } from '../migrations/index.ts'
import { refusal, schemaVerdict } from '../migrations/migration.ts'
import {
  BadValue,
  type Command,
  HeldUp,
  type Store,
  type StoreHealth,
  StoreRefused,
  StoreUnavailable,
} from '../port.ts'
import type { Row, Statement, Step, Work } from '../statement.ts'
import { textArraysOf, toArrays } from './postgres-arrays.ts'
import { isBadValue, isConnectionLoss, isContention, isDiskFull, isTakenKey, sqlState } from './postgres-errors.ts'
import { openPools } from './postgres-pools.ts'
import { requireRoom, storeFull } from './postgres-room.ts'

export interface PostgresOptions {
  /** The caller's own pool; it stays open when the store closes. */
  pool?: pg.Pool
  /** Or an address, for a pool of the store's own. */
  url?: string
  schema?: string
  now: () => number
  /** Goes forward only: how long to try again is not for a clock that jumps. */
  monotonic: () => number
  sleep: (ms: number) => Promise<void>
  allowNoFsync?: boolean
}

const POOL_MAX = 10
const CONNECT_TIMEOUT_MS = 5_000
/**
 * How long a command is tried again while the database restarts or fails over, before the caller hears of it. Counted from
 * when the database went away: who calls after that hears of it at once.
 */
const RETRY_FOR_MS = 15_000
const RETRY_PAUSE_MS = 50
/** Of one transaction: longer than any batch takes. Who comes alone is tried again, who came in a batch is taken out of it. */
const LOCK_TIMEOUT_MS = 2_000
/** A server that says nothing for this long, longer than it may wait for a lock, is given up on. */
const SILENCE_MS = 10_000
/** A node that vanished in the middle of a transaction must not hold its users' locks until TCP notices, in hours. */
const IDLE_IN_TRANSACTION_MS = 10_000

/** READ COMMITTED, whatever the database's default: a stricter level would count quotas in a snapshot older than the lock. */
const BEGIN = 'BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL synchronous_commit = on'

/**
 * Of the connections that write. They are the store's own, for an application's pool has other wishes for its own work, and
 * can be used up by transactions that wait for a submit. Prepared plans are made once and kept: one made while a table was
 * still empty would scan it for ever, so that a batch of submits took 50 times as long at 100,000 jobs. Every statement of a
 * command has its index; the planner is told not to look elsewhere, nor to take a small table whole for its pages being far
 * apart.
 */
const SESSION = [
  "SET default_transaction_isolation = 'read committed'",
  'SET default_transaction_read_only = off',
  'SET synchronous_commit = on',
  `SET lock_timeout = ${LOCK_TIMEOUT_MS}`,
  `SET idle_in_transaction_session_timeout = ${IDLE_IN_TRANSACTION_MS}`,
  'SET plan_cache_mode = force_generic_plan',
  'SET enable_seqscan = off',
  'SET enable_hashjoin = off',
  'SET enable_mergejoin = off',
  'SET random_page_cost = 1.1',
  'SET jit = off',
].join(';')

const WITHIN = { query_timeout: SILENCE_MS }

const INT8_OID = 20
const NO_TRANSACTION = '25P01'
const LOCK_TIMEOUT = '55P03'
const UNIQUE_VIOLATION = '23505'
const types = {
  getTypeParser(oid: number, format?: 'text' | 'binary') {
    // Times in ms, counters and money in millionths all stay below 2^53.
    return oid === INT8_OID ? Number : pg.types.getTypeParser(oid, format)
  },
}

export interface PgQuery {
  name?: string
  text: string
  values?: unknown[]
  types?: unknown
  query_timeout?: number
}

/** The part of `pg` that a command needs: a pool's client, or the client of the caller's own transaction. */
export interface PgClient {
  query(config: PgQuery): Promise<{ rows: unknown[] }>
}

export interface PostgresStore extends Store {
  readonly engine: 'postgres'
  /** Runs the command's statements on a transaction of the caller's: they count if and when the caller commits. */
  writeIn<T>(client: PgClient, command: Command<T>): Promise<T>
}

export async function openPostgres(options: PostgresOptions): Promise<PostgresStore> {
  const schema = options.schema ?? 'ichido'
  if (!/^[a-z_][a-z0-9_]{0,29}$/.test(schema)) {
    throw new Error(
      `DATABASE_SCHEMA must be a plain lower-case identifier of at most 30 characters, not ${JSON.stringify(schema)}`,
    )
  }
  const own = { connectionString: options.url, max: POOL_MAX, connectionTimeoutMillis: CONNECT_TIMEOUT_MS }
  const readers = options.pool ?? new pg.Pool(own)
  // The options as they are: a copy would lack the password, which a pool hides from listings.
  const writers = (max: number) => {
    const pool = new pg.Pool(options.pool?.options ?? own)
    pool.options.max = max
    return pool
  }
  const pools = openPools(writers)
  // A server that is killed right after "ready" says so in the same piece of data, before whoever awaits the connection
  // runs: that too must be heard.
  const hear = (client: pg.PoolClient) => void client.on('error', () => {})
  const ours = [...(options.pool === undefined ? [readers] : []), ...pools.all]
  // A connection that breaks while idle is replaced when it is needed; unheard, the event would end the process.
  for (const pool of ours) pool.on('error', () => {})
  for (const pool of [readers, ...pools.all]) pool.on('connect', hear)

  async function letGo(): Promise<void> {
    readers.off('connect', hear)
    await Promise.all(ours.map((pool) => pool.end()))
  }

  /** What went wrong before anything of a command was sent. */
  const unsent = new WeakSet<object>()
  async function connect(pool: pg.Pool): Promise<pg.PoolClient> {
    return enter(pool).catch((error: Error) => {
      unsent.add(error)
      throw error
    })
  }

  const seen = new WeakSet<pg.PoolClient>()
  async function enter(pool: pg.Pool): Promise<pg.PoolClient> {
    const client = await pool.connect()
    if (seen.has(client)) return client
    hear(client)
    try {
      const found = await durability(client)
      if (!isDurable(found) && !options.allowNoFsync) throw new StoreRefused(notDurable(found))
      if (pool !== readers) await client.query({ text: SESSION, ...WITHIN })
      seen.add(client)
      return client
    } catch (error) {
      client.release(true)
      throw error
    }
  }

  const known = new Map<Statement, { text: string; texts: ReadonlySet<number> }>()
  function formOf(statement: Statement) {
    let form = known.get(statement)
    if (form === undefined) {
      form = { text: postgresText(statement.postgres, schema), texts: textArraysOf(statement.postgres) }
      if (statement.name !== '') known.set(statement, form)
    }
    return form
  }

  async function perform(client: PgClient, step: Step, keepPlan: boolean): Promise<Row[]> {
    const { statement } = step
    const { text, texts } = formOf(statement)
    const values = step.kind === 'query' ? [...step.params] : toArrays(step.rows, texts)
    const named = statement.name === '' || !keepPlan ? {} : { name: `ichido_${schema}_${statement.name}` }
    const { rows } = await client.query({ ...named, text, values, types, ...WITHIN })
    return rows as Row[]
  }

  /** Plans are kept only where SESSION has told the planner what to look at. */
  async function drive<T>(client: PgClient, work: Work<T>, keepPlans = false): Promise<T> {
    let next = work.next()
    while (!next.done) next = work.next(await perform(client, next.value, keepPlans))
    return next.value
  }

  async function transaction<T>(command: Command<T>, again: boolean): Promise<T> {
    const client = await connect(pools.of(command))
    try {
      await client.query({ text: BEGIN, ...WITHIN })
      const answer = await drive(client, command.work(again), true)
      await client.query({ text: 'COMMIT', ...WITHIN })
      client.release()
      return answer
    } catch (error) {
      const broken = isConnectionLoss(error)
      if (!broken) await client.query({ text: 'ROLLBACK', ...WITHIN }).catch(() => {})
      client.release(broken)
      throw error
    }
  }

  async function write<T>(command: Command<T>): Promise<T> {
    let left = command
    return persist(async (again) => {
      const { atOnce } = left
      if (atOnce === undefined || again) return transaction(left, again)
      const rows = await withClient(pools.of(left), (client) => perform(client, atOnce.step, true)).catch((error) => {
        if (atOnce.impatient && isContention(error)) return []
        throw error
      })
      const answer = atOnce.settle(rows)
      if (answer !== null) return answer
      left = atOnce.left?.(rows) ?? { ...command, atOnce: undefined }
      return transaction(left, false)
    }, command.yields)
  }

  let awaySinceMs: number | null = null

  /** Runs again what can run again; only `uncertain` tries may have been committed unheard. */
  async function persist<T>(attempt: (again: boolean) => Promise<T>, yields = false): Promise<T> {
    const beganMs = options.monotonic()
    let uncertain = false
    for (let pauseMs = RETRY_PAUSE_MS; ; pauseMs = Math.min(1_000, pauseMs * 2)) {
      try {
        const answer = await attempt(uncertain)
        awaySinceMs = null
        return answer
      } catch (error) {
        // An unheard try was committed after this one had looked for it: the next one finds its rows.
        const ours = uncertain && sqlState(error) === UNIQUE_VIOLATION
        if (isBadValue(error) && !ours) throw new BadValue(String(error), { cause: error })
        if (isDiskFull(error)) throw storeFull(error)
        const lost = isConnectionLoss(error)
        awaySinceMs = lost ? (awaySinceMs ?? options.monotonic()) : null
        if (!lost && !ours && !isContention(error)) throw error
        if (yields && !uncertain && sqlState(error) === LOCK_TIMEOUT) throw new HeldUp(String(error), { cause: error })
        uncertain ||= lost && !unsent.has(Object(error))
        // Of what may have been committed a failure is not told before its own time is up, however long the outage has lasted.
        const sinceMs = uncertain ? beganMs : Math.min(beganMs, awaySinceMs ?? beganMs)
        if (options.monotonic() + pauseMs > sinceMs + RETRY_FOR_MS) {
          throw lost
            ? unreachable(error)
            : new StoreUnavailable(`PostgreSQL is held up: ${String(error)}`, { cause: error })
        }
        await options.sleep(pauseMs)
      }
    }
  }

  async function withClient<T>(pool: pg.Pool, use: (client: pg.PoolClient) => Promise<T>): Promise<T> {
    const client = await connect(pool)
    try {
      const answer = await use(client)
      client.release()
      return answer
    } catch (error) {
      client.release(isConnectionLoss(error))
      throw error
    }
  }

  try {
    await withClient(readers, (client) => migrate(client, schema))
  } catch (error) {
    await letGo()
    throw isDiskFull(error) ? storeFull(error) : error
  }

  return {
    engine: 'postgres',
    write,
    read: (command) => persist(() => withClient(readers, (client) => drive(client, command.work(false)))),
    async writeIn(client, command) {
      await enterSavepoint(client)
      for (let tries = 1; ; tries++) {
        try {
          await requireReadCommitted(client)
          const answer = await drive(client, command.work(false))
          await client.query({ text: `RELEASE SAVEPOINT ${SAVEPOINT}` })
          return answer
        } catch (error) {
          await client.query({ text: `ROLLBACK TO SAVEPOINT ${SAVEPOINT}` }).catch(() => {})
          // Whoever took the key first has committed: the next try finds it.
          if (!isTakenKey(error) || tries === TRIES_IN_MAX) throw error
        }
      }
    },
    health: () =>
      withClient(readers, async (client): Promise<StoreHealth> => {
        const found = await durability(client)
        const before = options.now()
        const { rows } = await client.query(
          postgresText('SELECT now_ms()::float8 AS now, current_database() AS db', schema),
        )
        return {
          engine: 'postgres',
          location: `${rows[0].db}, schema ${schema}`,
          schemaVersion: await schemaVersion(client, schema),
          durability: found,
          durable: isDurable(found),
          clockSkewMs: Math.round(rows[0].now - (before + options.now()) / 2),
        }
      }),
    requireRoom: () =>
      withClient(pools.of({ name: 'require_room' }), (client) =>
        requireRoom((text) => client.query({ text: postgresText(text, schema), ...WITHIN })),
      ),
    close: letGo,
  }
}

export function unreachable(cause: unknown): StoreUnavailable {
  return new StoreUnavailable(`PostgreSQL cannot be reached: ${String(cause)}`, { cause })
}

function postgresText(text: string, schema: string): string {
  return text
    .replace(/\bichido\./g, `${schema}.`)
    .replace(/\bnow_ms\(\)/g, '(extract(epoch FROM clock_timestamp()) * 1000)::bigint')
}

async function durability(client: pg.PoolClient): Promise<Record<string, string>> {
  const text = `SELECT current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_page_writes`
  const { rows } = await client.query({ text, ...WITHIN })
  return { ...rows[0], synchronous_commit: 'on (set in every transaction)' }
}

function isDurable(found: Record<string, string>): boolean {
  return found.fsync === 'on' && found.full_page_writes === 'on'
}

function notDurable(found: Record<string, string>): string {
  return `This PostgreSQL may lose acknowledged work: fsync is ${found.fsync}, full_page_writes is ${found.full_page_writes}. Turn both on, or set ALLOW_NO_FSYNC=1 for data that may be lost.`
}

const TRIES_IN_MAX = 3
const SAVEPOINT = 'ichido_submit'

/** What fails here must not take the caller's transaction along. And there must be one: a savepoint tells. */
async function enterSavepoint(client: PgClient): Promise<void> {
  try {
    await client.query({ text: `SAVEPOINT ${SAVEPOINT}` })
  } catch (error) {
    if (sqlState(error) !== NO_TRANSACTION) throw error
    throw new TypeError('tx must be a client inside a transaction: BEGIN first', { cause: error })
  }
}

/** Under a stricter level all statements share one snapshot, older than the lock on the user: quotas would overshoot. */
async function requireReadCommitted(client: PgClient): Promise<void> {
  const { rows } = await client.query({ text: `SELECT current_setting('transaction_isolation') AS level` })
  const [{ level }] = rows as [{ level: string }]
  if (level !== 'read committed') {
    throw new TypeError(`submit with tx needs a READ COMMITTED transaction; this one is ${level.toUpperCase()}`)
  }
}

async function schemaVersion(client: pg.PoolClient, schema: string): Promise<number> {
  const { rows } = await client.query(`SELECT coalesce(max(version), 0) AS version FROM ${schema}.schema_migrations`)
  return Number(rows[0].version)
}

async function migrate(client: pg.PoolClient, schema: string): Promise<void> {
  await client.query('BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE')
  try {
    // Nodes that start together migrate one after the other.
    await client.query(`SELECT pg_advisory_xact_lock(hashtext('ichido migrate ' || $1))`, [schema])
    const exists = await client.query('SELECT 1 FROM pg_namespace WHERE nspname = $1', [schema])
    if (exists.rows.length === 0) await client.query(`CREATE SCHEMA ${schema}`)
    await client.query(
      `CREATE TABLE IF NOT EXISTS ${schema}.schema_migrations (version integer PRIMARY KEY, name text NOT NULL, applied_at bigint NOT NULL)`,
    )
    const found = await schemaVersion(client, schema)
    if (schemaVerdict(found, SCHEMA_VERSION) === 'refuse') throw new StoreRefused(refusal(found, SCHEMA_VERSION))
    for (const migration of MIGRATIONS.filter((m) => m.version > found)) {
      for (const statement of [...migration.statements, ...(migration.postgresOnly ?? [])]) {
        await client.query(postgresText(statement, schema))
      }
      await client.query(postgresText('INSERT INTO ichido.schema_migrations VALUES ($1, $2, now_ms())', schema), [
        migration.version,
        migration.name,
      ])
    }
    await client.query('COMMIT')
  } catch (error) {
    await client.query('ROLLBACK').catch(() => {})
    throw error
  }
}
