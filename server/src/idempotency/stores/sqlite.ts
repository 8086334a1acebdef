import type { DatabaseSync, StatementSync } from 'node:sqlite'
import { platformWorld, sleep } from '@ichido/sdk/world'
import type { Answer } from '../answer.ts'
import type { IdempotencyWorld } from '../settings.ts'
import {
  answerValues,
  claimValues,
  holderValues,
  KeyLost,
  type Keys,
  placeValues,
  readRecord,
  type Sectioned,
  SQLITE_SCHEMA,
  type SqlValue,
  statements,
} from './keys.ts'

/** The keys of an application on SQLite. */
export type SqliteKeys = Keys<DatabaseSync, Answer>

const NOW = '$now'
const SQL = statements({ now: NOW, unlessLocked: '' })

/** How long a write waits for another process, or for a transaction that the application holds across an await. */
const BUSY_MAX_MS = 5_000
const BUSY_PAUSE_MS = 5
const SQLITE_BUSY = 5
/** The lowest byte is the primary result code. */
const PRIMARY_CODE = 0xff

/**
 * Keeps keys in the application's SQLite database, on its own connection.
 *
 * @example
 * const keys = sqliteKeys(new DatabaseSync('shop.db'))
 */
export function sqliteKeys(database: DatabaseSync, world: IdempotencyWorld = platformWorld): SqliteKeys {
  const prepared = new Map<string, StatementSync>()
  let ready = false

  function statement(text: string): StatementSync {
    if (!ready) {
      database.exec(SQLITE_SCHEMA)
      ready = true
    }
    let known = prepared.get(text)
    if (known === undefined) {
      known = database.prepare(text)
      prepared.set(text, known)
    }
    return known
  }

  /** With the `$` prefix, because the application may have disabled bare names. */
  function named(text: string, values: SqlValue[]): Record<string, SqlValue> {
    const parameters = Object.fromEntries(values.map((value, i) => [`$${i + 1}`, value]))
    return text.includes(NOW) ? { ...parameters, [NOW]: world.now() } : parameters
  }

  const run = (text: string, values: SqlValue[]) => Number(statement(text).run(named(text, values)).changes)
  const first = (text: string, values: SqlValue[]) => statement(text).get(named(text, values))

  /**
   * Runs the work outside of every transaction of the application: a ROLLBACK of a transaction that a handler holds across an
   * await would undo it after the answer was sent.
   */
  async function alone<T>(work: () => T): Promise<T> {
    const deadlineMs = world.monotonic() + BUSY_MAX_MS
    for (;;) {
      const inside = database.isTransaction === true
      const late = world.monotonic() >= deadlineMs
      if (inside && late) {
        throw new Error(
          `The application has held a transaction open for ${BUSY_MAX_MS} ms; on SQLite it must not await inside a transaction`,
        )
      }
      if (!inside) {
        try {
          return work()
        } catch (error) {
          if (!isBusy(error) || late) throw error
        }
      }
      await sleep(world, BUSY_PAUSE_MS)
    }
  }

  const change = (text: string, values: SqlValue[]): Promise<boolean> => alone(() => run(text, values) === 1)

  return {
    claim: (claim) => change(SQL.claim, claimValues(claim)),
    find: (place) =>
      alone(() => {
        const row = first(SQL.find, [...placeValues(place)])
        return row === undefined ? null : readRecord(row)
      }),
    reclaim: (claim, seen) => change(SQL.reclaim, [...claimValues(claim), seen]),
    takeOver: (holder, leaseMs, seen) => change(SQL.takeOver, [...holderValues(holder), leaseMs, seen]),
    renew: (holder, leaseMs) => change(SQL.renew, [...holderValues(holder), leaseMs]),
    answer: (holder, answer, ttlMs) => change(SQL.answer, answerValues(holder, answer, ttlMs)),
    doubt: (holder) => change(SQL.doubt, holderValues(holder)),
    release: (holder) => change(SQL.release, holderValues(holder)),
    removeExpired: (limit) => alone(() => run(SQL.removeExpired, [limit])),

    async section(holder, work, settle) {
      if (work.constructor.name === 'AsyncFunction') throw new TypeError(MUST_NOT_AWAIT)
      // Nothing awaits between BEGIN and COMMIT or ROLLBACK, so no other request can get in between.
      return alone(() => {
        statement(SQL.hold)
        database.exec('BEGIN IMMEDIATE; SAVEPOINT ichido_section')
        return transact(holder, work, settle)
      })
    },
  }

  function transact(...[holder, work, settle]: Parameters<SqliteKeys['section']>): Sectioned {
    try {
      if (holder !== null && first(SQL.hold, holderValues(holder)) === undefined) throw new KeyLost()
      const answer = work(database)
      if (answer instanceof Promise) throw new TypeError(MUST_NOT_AWAIT)
      const kept = settle(answer)
      if (kept === null) {
        database.exec('ROLLBACK')
        return { outcome: 'rolled_back', answer }
      }
      if (holder !== null) run(SQL.answer, answerValues(holder, kept.store, kept.ttlMs))
      database.exec('COMMIT')
      return { outcome: 'committed', answer }
    } catch (error) {
      return { outcome: 'failed', error, certain: rolledBack() }
    }
  }

  /** False if the section ended the transaction itself, and may have committed a part of its work. */
  function rolledBack(): boolean {
    const undone = succeeds('ROLLBACK TO ichido_section')
    succeeds('ROLLBACK')
    return undone
  }

  function succeeds(sql: string): boolean {
    try {
      database.exec(sql)
      return true
    } catch {
      return false
    }
  }
}

const MUST_NOT_AWAIT =
  'On SQLite the section of withKey must be synchronous: all requests share one connection, and an await would let other requests write inside this transaction'

function isBusy(error: unknown): boolean {
  if (!(error instanceof Error) || !('errcode' in error)) return false
  return (Number(error.errcode) & PRIMARY_CODE) === SQLITE_BUSY
}
