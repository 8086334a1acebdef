import pg from 'pg'
import { BadValue, LockTimeout, StoreUnavailable } from '../../../core/node/store-errors.ts'
import { type Command, type Store, type StoreHealth, StoreRefused } from '../../port.ts'
import type { Row, Statement, Step, Work } from '../../statement.ts'
import { textArraysOf, toArrays } from './arrays.ts'
import { CommitDoubted, commitTransaction, committing } from './commit.ts'
import { ErrorListeners } from './error-listeners.ts'
import { isBadValue, isConnectionLoss, isContention, isDiskFull, isReadOnly, isTakenKey, sqlState } from './errors.ts'
import { migrate, postgresText, schemaVersion } from './migrate.ts'
import { requireRoom, storeFull } from './room.ts'
import { CONNECT_TIMEOUT_MS, type Connection, inspect, Servers, WITHIN } from './servers.ts'
import { BEGIN, BEGIN_POOLED, openPools, READING_SESSION, SESSION } from './settings.ts'
import { vacuum } from './vacuum.ts'

export interface PostgresOptions {
  /** The caller's own pool. It stays open when the store closes. */
  pool?: pg.Pool
  /** An address, for the store's own pool. */
  url?: string
  schema?: string
  now: () => number
  /** Measures how long to try again, because the clock may jump. */
  monotonic: () => number
  sleep: (ms: number) => Promise<void>
  allowNoFsync?: boolean
}

const POOL_MAX = 10
/**
 * How long a command tries again while the database restarts or fails over. It counts from the start of the outage: a later
 * call fails at once.
 */
const RETRY_FOR_MS = 15_000
const RETRY_PAUSE_MS = 50

const INT8_OID = 20
const NO_TRANSACTION = '25P01'
const LOCK_TIMEOUT = '55P03'
const UNIQUE_VIOLATION = '23505'
const types = {
  getTypeParser(oid: number, format?: 'text' | 'binary') {
    // Times in ms, counters and money in millionths stay below 2^53.
    return oid === INT8_OID ? Number : pg.types.getTypeParser(oid, format)
  },
}

interface PgQuery {
  name?: string
  text: string
  values?: unknown[]
  types?: unknown
  query_timeout?: number
}

/** The part of `pg` that a command needs. It is a pool's client, or the client of the caller's own transaction. */
export interface PgClient {
  query(config: PgQuery): Promise<{ rows: unknown[] }>
}

export interface PostgresStore extends Store {
  readonly engine: 'postgres'
  /** Runs the command in the caller's own transaction. It counts when the caller commits. */
  writeIn<T>(client: PgClient, command: Command<T>): Promise<T>
}

/** A connection that was inspected. */
interface Entered {
  client: pg.PoolClient
  pooled: boolean
}

function* onlyStep(step: Step): Work<Row[]> {
  return yield step
}

export async function openPostgres(options: PostgresOptions): Promise<PostgresStore> {
  const schema = options.schema ?? 'ichido'
  if (!/^[a-z_][a-z0-9_]{0,29}$/.test(schema)) {
    throw new Error(
      `DATABASE_SCHEMA must be a plain lower-case identifier of at most 30 characters, not ${JSON.stringify(schema)}`,
    )
  }
  const servers = new Servers(options.url ?? '')
  const Client = servers.clientClass()
  const own = { Client, max: POOL_MAX, connectionTimeoutMillis: CONNECT_TIMEOUT_MS }
  const readers = options.pool ?? new pg.Pool(own)
  // Not a copy of the options: it would lack the password, which a pool does not enumerate.
  const writers = (max: number) => {
    const pool = new pg.Pool(options.pool?.options ?? own)
    pool.options.max = max
    return pool
  }
  const pools = openPools(writers)
  const ours = [...(options.pool === undefined ? [readers] : []), ...Object.values(pools)]
  // An idle connection that breaks is replaced when it is needed. Without a listener, the event would end the process.
  for (const pool of ours) pool.on('error', () => {})
  // A server that is killed right after "ready" may say so in the same packet, before the code that awaits the connection runs:
  // this error needs a listener, too.
  const listeners = new ErrorListeners()
  for (const pool of [readers, ...Object.values(pools)])
    pool.on('connect', listeners.add).on('remove', listeners.forget)

  async function letGo(): Promise<void> {
    await Promise.all(ours.map((pool) => pool.end()))
    readers.off('connect', listeners.add).off('remove', listeners.forget)
    listeners.stop()
  }

  /** Errors from before a command was sent. */
  const unsent = new WeakSet<object>()
  async function connect(pool: pg.Pool): Promise<Entered> {
    return servers
      .tryEach(() => enter(pool))
      .catch((error: Error) => {
        unsent.add(error)
        throw error
      })
  }

  /** Rises when a server refuses a write: other connections may lead to the same standby, so they are inspected again. */
  let suspicions = 0
  const entered = new WeakMap<pg.PoolClient, Entered & { suspicions: number }>()
  async function enter(pool: pg.Pool): Promise<Entered> {
    const client = await pool.connect()
    const before = entered.get(client)
    listeners.use(client)
    if (before?.suspicions === suspicions) return before
    try {
      const asked = suspicions
      const { pooled, durability } = await inspect(client)
      if (!isDurable(durability) && !options.allowNoFsync) throw new StoreRefused(notDurable(durability))
      if (ours.includes(pool) && !pooled) {
        await client.query({ text: pool === readers ? READING_SESSION : SESSION, ...WITHIN })
      }
      const entry = { client, pooled, suspicions: asked }
      entered.set(client, entry)
      return entry
    } catch (error) {
      release(client, true)
      throw error
    }
  }

  function release(client: pg.PoolClient, isBroken: boolean): void {
    listeners.giveBack(client)
    client.release(isBroken)
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
    if (step.kind === 'each' && step.rows.length === 0) return []
    const { text, texts } = formOf(statement)
    const values = step.kind === 'query' ? [...step.params] : toArrays(step.rows, texts)
    const named = statement.name === '' || !keepPlan ? {} : { name: `ichido_${schema}_${statement.name}` }
    const { rows } = await client.query({ ...named, text, values, types, ...WITHIN })
    return rows as Row[]
  }

  /**
   * Plans are kept only on connections with the settings of SESSION. Behind a pooler, the next transaction does not have the kept
   * plan, and another client may have taken its name.
   */
  async function drive<T>(client: PgClient, work: Work<T>, keepPlans = false): Promise<T> {
    let next = work.next()
    while (!next.done) next = work.next(await perform(client, next.value, keepPlans))
    return next.value
  }

  const transaction = <T>(command: Command<T>, again: boolean): Promise<T> =>
    withClient(pools[command.lane ?? 'others'], (entry) => inTransaction(entry, command.work(again), again))

  async function inTransaction<T>({ client, pooled }: Entered, work: Work<T>, again: boolean): Promise<T> {
    try {
      await client.query({ text: pooled ? BEGIN_POOLED : BEGIN, ...WITHIN })
      const answer = await drive(client, work, !pooled)
      await commitTransaction(client, again)
      return answer
    } catch (error) {
      const over = isConnectionLoss(error) || error instanceof CommitDoubted
      if (!over) await client.query({ text: 'ROLLBACK', ...WITHIN }).catch(() => {})
      throw error
    }
  }

  /** Behind a pooler the statement needs a transaction for its settings. */
  const alone = (command: Command<unknown>, step: Step): Promise<Row[]> =>
    withClient(pools[command.lane ?? 'others'], (entry) =>
      entry.pooled
        ? inTransaction(entry, onlyStep(step), false)
        : committing(entry.client, () => perform(entry.client, step, true)),
    )

  async function write<T>(command: Command<T>): Promise<T> {
    let left = command
    return persist(async (again) => {
      const { fastPath } = left
      if (fastPath === undefined || again) return transaction(left, again)
      const rows = await alone(left, fastPath.step).catch((error) => {
        if (fastPath.declineOnLock && isContention(error)) return []
        throw error
      })
      const answer = fastPath.settle(rows)
      if (answer !== null) return answer
      left = fastPath.left?.(rows) ?? { ...command, fastPath: undefined }
      return transaction(left, false)
    }, command.failFastOnLock)
  }

  let awaySinceMs: number | null = null

  /** Tries again where that is possible. Only `uncertain` tries may have committed. */
  async function persist<T>(attempt: (again: boolean) => Promise<T>, failFastOnLock = false): Promise<T> {
    const beganMs = options.monotonic()
    let uncertain = false
    for (let pauseMs = RETRY_PAUSE_MS; ; pauseMs = Math.min(1_000, pauseMs * 2)) {
      try {
        const answer = await attempt(uncertain)
        awaySinceMs = null
        return answer
      } catch (error) {
        // An earlier try has committed after this try looked for its rows: the next try finds them.
        const ours = uncertain && sqlState(error) === UNIQUE_VIOLATION
        if (isBadValue(error) && !ours) throw new BadValue(String(error), { cause: error })
        const full = isDiskFull(error)
        if (full && !uncertain) throw storeFull(error)
        const lost = isConnectionLoss(error)
        const readOnly = isReadOnly(error)
        if (readOnly) suspicions++
        awaySinceMs = lost ? (awaySinceMs ?? options.monotonic()) : null
        const doubted = error instanceof CommitDoubted
        if (!lost && !ours && !full && !doubted && !isContention(error)) throw error
        if (failFastOnLock && !uncertain && sqlState(error) === LOCK_TIMEOUT)
          throw new LockTimeout(String(error), { cause: error })
        uncertain ||= doubted || (lost && !readOnly && !unsent.has(Object(error)))
        // A command that may have committed fails only after its own time, however long the outage has lasted.
        const sinceMs = uncertain ? beganMs : Math.min(beganMs, awaySinceMs ?? beganMs)
        if (options.monotonic() + pauseMs > sinceMs + RETRY_FOR_MS) {
          if (full) throw storeFull(error)
          throw lost
            ? unreachable(error)
            : new StoreUnavailable(`PostgreSQL is blocked: ${String(error)}`, { cause: error })
        }
        await options.sleep(pauseMs)
      }
    }
  }

  async function withClient<T>(pool: pg.Pool, use: (entry: Entered) => Promise<T>): Promise<T> {
    const entry = await connect(pool)
    const { client } = entry
    try {
      const answer = await use(entry)
      release(client, false)
      return answer
    } catch (error) {
      release(client, isConnectionLoss(error))
      throw error
    }
  }

  try {
    await withClient(readers, ({ client }) => migrate(client, schema))
  } catch (error) {
    await letGo()
    throw isDiskFull(error) ? storeFull(error) : error
  }

  return {
    engine: 'postgres',
    write,
    read: (command) => persist(() => withClient(readers, ({ client }) => drive(client, command.work(false)))),
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
          // The transaction that took the key has committed: the next try finds the key.
          if (!isTakenKey(error) || tries === TRIES_IN_MAX) throw error
        }
      }
    },
    health: () =>
      withClient(readers, async ({ client }): Promise<StoreHealth> => {
        const { pooled, durability } = await inspect(client)
        const before = options.now()
        const { rows } = await client.query(
          postgresText('SELECT now_ms()::float8 AS now, current_database() AS db', schema),
        )
        return {
          engine: 'postgres',
          location: `${rows[0].db}, schema ${schema}`,
          schemaVersion: await schemaVersion(client, schema),
          durability: { ...durability, synchronous_commit: 'on (set in every transaction)' },
          durable: isDurable(durability),
          pooled,
          clockSkewMs: Math.round(rows[0].now - (before + options.now()) / 2),
        }
      }),
    requireRoom: () =>
      withClient(pools.others, ({ client }) =>
        requireRoom((text) => client.query({ text: postgresText(text, schema), ...WITHIN })),
      ),
    vacuum: () => withClient(pools.others, ({ client }) => vacuum(client, schema)),
    close: letGo,
  }
}

export function unreachable(cause: unknown): StoreUnavailable {
  return new StoreUnavailable(`PostgreSQL cannot be reached: ${String(cause)}`, { cause })
}

type Durability = Connection['durability']

function isDurable(found: Durability): boolean {
  return found.fsync === 'on' && found.full_page_writes === 'on'
}

function notDurable(found: Durability): string {
  return `This PostgreSQL may lose acknowledged work: fsync is ${found.fsync}, full_page_writes is ${found.full_page_writes}. Turn both on, or set ALLOW_NO_FSYNC=1 for data that may be lost.`
}

const TRIES_IN_MAX = 3
const SAVEPOINT = 'ichido_submit'

/** A failure must not end the caller's transaction. The savepoint also shows whether there is a transaction. */
async function enterSavepoint(client: PgClient): Promise<void> {
  try {
    await client.query({ text: `SAVEPOINT ${SAVEPOINT}` })
  } catch (error) {
    if (sqlState(error) !== NO_TRANSACTION) throw error
    throw new TypeError('tx must be a client inside a transaction: BEGIN first', { cause: error })
  }
}

/** At a stricter level all statements share one snapshot, which is older than the lock on the user: quotas would overshoot. */
async function requireReadCommitted(client: PgClient): Promise<void> {
  const { rows } = await client.query({ text: `SELECT current_setting('transaction_isolation') AS level` })
  const [{ level }] = rows as [{ level: string }]
  if (level !== 'read committed') {
    throw new TypeError(`submit with tx needs a READ COMMITTED transaction; this one is ${level.toUpperCase()}`)
  }
}
