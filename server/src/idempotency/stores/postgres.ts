import type { Pool, PoolClient } from 'pg'
import type { Answer } from '../answer.ts'
import { KeyLost, type Keys, type Sectioned } from './port.ts'
import {
  answerValues,
  claimValues,
  holderValues,
  POSTGRES_SCHEMA,
  placeValues,
  readRecord,
  type SqlValue,
  statements,
  TABLE,
} from './sql.ts'

export type PostgresKeys = Keys<PoolClient, Answer | Promise<Answer>>

/**
 * The database's own clock: those of several nodes differ, and a lease must not lapse by that. Of the statement, for an index
 * is of no use against a clock that goes on while it runs.
 */
const DATABASE_CLOCK = '(extract(epoch FROM statement_timestamp()) * 1000)::bigint'

export const SQL = statements({ now: DATABASE_CLOCK, unlessLocked: 'FOR UPDATE SKIP LOCKED' })
/** `CREATE TABLE IF NOT EXISTS` of two nodes at once fails in one of them without it. Any number will do. */
const SCHEMA_LOCK = 0x1c41d0

/** Keys in the application's own PostgreSQL database, through its pool, in the first schema of its search_path. */
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
      // Outside of a query nobody hears that the connection broke, and unheard it would end the process.
      client.on('error', unheard)
      const { sectioned, broken } = await transact(client, holder, work, settle)
      client.off('error', unheard)
      client.release(broken)
      return sectioned
    },
  }
}

const unheard = (): void => {}

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

/** What PostgreSQL says when there is no such savepoint, or no transaction, any more. */
const ENDED = ['3B001', '25P01']

/**
 * A connection that broke, at COMMIT too, leaves no doubt behind: whoever writes the record next waits until that transaction
 * is over, and its guard sees what became of it. A section that ended the transaction by itself does.
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
  // Looks first: the application's role may not be allowed to make tables.
  const { rows } = await pool.query('SELECT to_regclass($1) IS NOT NULL AS found', [TABLE])
  if (rows[0].found !== true) await pool.query(`SELECT pg_advisory_xact_lock(${SCHEMA_LOCK}); ${POSTGRES_SCHEMA}`)
}
