import type { Pool, PoolClient } from 'pg'
import type { Answer } from '../answer.ts'
import {
  answerValues,
  claimValues,
  holderValues,
  KeyLost,
  type Keys,
  POSTGRES_SCHEMA,
  placeValues,
  readRecord,
  type Sectioned,
  type SqlValue,
  statements,
  TABLE,
} from './keys.ts'

/** The keys of an application on PostgreSQL. */
export type PostgresKeys = Keys<PoolClient, Answer | Promise<Answer>>

/**
 * The database's clock, because the clocks of several nodes differ. The time of the statement, because an index cannot be used
 * with a clock that changes during the statement.
 */
const DATABASE_CLOCK = '(extract(epoch FROM statement_timestamp()) * 1000)::bigint'

export const SQL = statements({ now: DATABASE_CLOCK, unlessLocked: 'FOR UPDATE SKIP LOCKED' })
/** Any number. Without this lock, `CREATE TABLE IF NOT EXISTS` of two nodes at once fails in one of them. */
const SCHEMA_LOCK = 0x1c41d0

/**
 * Keeps keys in the application's PostgreSQL database, through its pool, in the first schema of its search_path.
 *
 * @example
 * const keys = postgresKeys(new pg.Pool({ connectionString: 'postgres://localhost/shop' }))
 */
export function postgresKeys(pool: Pool): PostgresKeys {
  let ready: Promise<void> | null = null

  function migrated(): Promise<void> {
    ready ??= migrate(pool).catch((error: unknown) => {
      ready = null
      throw error
    })
    return ready
  }

  async function change(text: string, values: SqlValue[]): Promise<boolean> {
    await migrated()
    return (await pool.query(text, values)).rowCount === 1
  }

  return {
    claim: (claim) => change(SQL.claim, claimValues(claim)),
    async find(place) {
      await migrated()
      const { rows } = await pool.query(SQL.find, [...placeValues(place)])
      return rows[0] === undefined ? null : readRecord(rows[0])
    },
    reclaim: (claim, seen) => change(SQL.reclaim, [...claimValues(claim), seen]),
    takeOver: (holder, leaseMs, seen) => change(SQL.takeOver, [...holderValues(holder), leaseMs, seen]),
    renew: (holder, leaseMs) => change(SQL.renew, [...holderValues(holder), leaseMs]),
    answer: (holder, answer, ttlMs) => change(SQL.answer, answerValues(holder, answer, ttlMs)),
    doubt: (holder) => change(SQL.doubt, holderValues(holder)),
    release: (holder) => change(SQL.release, holderValues(holder)),
    async removeExpired(limit) {
      await migrated()
      return (await pool.query(SQL.removeExpired, [limit])).rowCount ?? 0
    },
    async section(holder, work, settle) {
      await migrated()
      const client = await pool.connect()
      // Without a listener, a connection that breaks between queries would end the process.
      client.on('error', ignore)
      const { sectioned, broken } = await transact(client, holder, work, settle)
      client.off('error', ignore)
      client.release(broken)
      return sectioned
    },
  }
}

const ignore = (): void => {}

type Transacted = { sectioned: Sectioned; broken: boolean }

async function transact(
  client: PoolClient,
  ...[holder, work, settle]: Parameters<PostgresKeys['section']>
): Promise<Transacted> {
  try {
    await client.query('BEGIN; SAVEPOINT ichido_section')
    if (holder !== null) {
      const { rows } = await client.query(`${SQL.hold} FOR UPDATE`, holderValues(holder))
      if (rows.length === 0) throw new KeyLost()
    }
    const answer = await work(client)
    const kept = settle(answer)
    if (kept === null) {
      await client.query('ROLLBACK')
      return { sectioned: { outcome: 'rolled_back', answer }, broken: false }
    }
    if (holder !== null) {
      const stored = await client.query(SQL.answer, answerValues(holder, kept.store, kept.ttlMs))
      if (stored.rowCount !== 1) throw new KeyLost()
    }
    await client.query('COMMIT')
    return { sectioned: { outcome: 'committed', answer }, broken: false }
  } catch (error) {
    return failed(client, error)
  }
}

/** PostgreSQL's codes for a missing savepoint or transaction. */
const ENDED = ['3B001', '25P01']

/**
 * A broken connection, even during COMMIT, leaves no doubt: the next write of the record waits for the end of that transaction,
 * and its guard sees the result. Only a section that ended the transaction itself leaves doubt.
 */
async function failed(client: PoolClient, error: unknown): Promise<Transacted> {
  try {
    await client.query('ROLLBACK TO SAVEPOINT ichido_section; ROLLBACK')
    return { sectioned: { outcome: 'failed', error, certain: true }, broken: false }
  } catch (rollback) {
    const code = rollback instanceof Error && 'code' in rollback ? String(rollback.code) : ''
    return { sectioned: { outcome: 'failed', error, certain: !ENDED.includes(code) }, broken: true }
  }
}

async function migrate(pool: Pool): Promise<void> {
  // Checks first, because the application's role may not be allowed to create tables.
  const { rows } = await pool.query('SELECT to_regclass($1) IS NOT NULL AS found', [TABLE])
  if (rows[0].found !== true) await pool.query(`SELECT pg_advisory_xact_lock(${SCHEMA_LOCK}); ${POSTGRES_SCHEMA}`)
}
