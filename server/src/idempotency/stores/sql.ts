import type { StoredAnswer } from '../answer.ts'
import type { Claim, Holder, KeyRecord, Place } from './port.ts'

export const TABLE = 'ichido_idempotency_keys'

const columns = (bytes: string) => `
CREATE TABLE IF NOT EXISTS ${TABLE} (
  user_id TEXT NOT NULL,
  route TEXT NOT NULL,
  key TEXT NOT NULL,
  request_hash TEXT NOT NULL,
  hash_version INTEGER NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('held', 'in_doubt', 'answered')),
  holder TEXT NOT NULL,
  lease_expires_at BIGINT NOT NULL,
  response_status INTEGER,
  response_headers TEXT,
  response_body ${bytes},
  created_at BIGINT NOT NULL,
  expires_at BIGINT,
  PRIMARY KEY (user_id, route, key),
  CHECK ((state = 'answered') = (expires_at IS NOT NULL AND response_status IS NOT NULL AND response_headers IS NOT NULL))
);
CREATE INDEX IF NOT EXISTS ${TABLE}_expires ON ${TABLE} (expires_at) WHERE expires_at IS NOT NULL;
`

/** Times are in ms. The plugin creates both on first use; they are exported for your own migrations. */
export const SQLITE_SCHEMA = columns('BLOB')
export const POSTGRES_SCHEMA = columns('BYTEA')

export interface Dialect {
  /** The present, as an expression. */
  now: string
  /** Behind a SELECT: passes over a record that a section is writing, for its holder is alive. */
  unlessLocked: string
}

const PLACE = 'user_id = $1 AND route = $2 AND key = $3'
const MINE = `${PLACE} AND holder = $4`
const CLEARED = 'response_status = NULL, response_headers = NULL, response_body = NULL, expires_at = NULL'

/** All but the last take user, route and key first, and those of a holder its id as the fourth; one row changed is a yes. */
export function statements({ now, unlessLocked }: Dialect) {
  const notLocked = `EXISTS (SELECT 1 FROM ${TABLE} WHERE ${PLACE} ${unlessLocked})`
  return {
    /** holder, lease ms, request hash, hash version. Guards: there is no record. */
    claim: `INSERT INTO ${TABLE}
      (user_id, route, key, holder, state, created_at, lease_expires_at, request_hash, hash_version)
      VALUES ($1, $2, $3, $4, 'held', ${now}, ${now} + $5, $6, $7)
      ON CONFLICT (user_id, route, key) DO NOTHING`,
    find: `SELECT request_hash, hash_version, holder, state, response_status, response_headers, response_body, created_at,
      CASE WHEN state = 'held' AND lease_expires_at <= ${now} THEN 1 ELSE 0 END AS lapsed,
      CASE WHEN expires_at <= ${now} THEN 1 ELSE 0 END AS expired
      FROM ${TABLE} WHERE ${PLACE}`,
    /** As claim, and the holder that was seen. Guards: still that answer, and its time still over. */
    reclaim: `UPDATE ${TABLE} SET holder = $4, state = 'held', created_at = ${now}, lease_expires_at = ${now} + $5,
      request_hash = $6, hash_version = $7, ${CLEARED}
      WHERE ${PLACE} AND holder = $8 AND expires_at <= ${now} AND ${notLocked}`,
    /** holder, lease ms, the holder that was seen. Guards: still that holder, still without a lease. */
    takeOver: `UPDATE ${TABLE} SET holder = $4, state = 'held', lease_expires_at = ${now} + $5
      WHERE ${PLACE} AND holder = $6 AND (state = 'in_doubt' OR (state = 'held' AND lease_expires_at <= ${now}))
      AND ${notLocked}`,
    /** holder, lease ms. Guards: nobody took over; a lease that lapsed unseen is renewed too. */
    renew: `UPDATE ${TABLE} SET lease_expires_at = ${now} + $5 WHERE ${MINE} AND state = 'held' AND ${notLocked}`,
    /** holder, ttl ms, status, headers, body. Guards: nobody took over; then a late answer counts as well. */
    answer: `UPDATE ${TABLE} SET state = 'answered', expires_at = ${now} + $5,
      response_status = $6, response_headers = $7, response_body = $8
      WHERE ${MINE} AND state <> 'answered'`,
    /** holder. Guards: held by it. */
    doubt: `UPDATE ${TABLE} SET state = 'in_doubt' WHERE ${MINE} AND state = 'held'`,
    /** holder. Guards: held by it. */
    release: `DELETE FROM ${TABLE} WHERE ${MINE} AND state = 'held'`,
    /** holder. One row: the caller may write; on PostgreSQL nobody can take over until the transaction ends. */
    hold: `SELECT 1 FROM ${TABLE} WHERE ${MINE} AND state = 'held'`,
    /** limit. Records without an answer stay: somebody has to find out about them. */
    removeExpired: `DELETE FROM ${TABLE} WHERE expires_at <= ${now} AND (user_id, route, key) IN (
      SELECT user_id, route, key FROM ${TABLE} WHERE expires_at <= ${now} ORDER BY expires_at LIMIT $1 ${unlessLocked})`,
  }
}

export type SqlValue = string | number | null | Uint8Array

export const placeValues = ({ user, route, key }: Place): SqlValue[] => [user, route, key]
export const holderValues = (holder: Holder): SqlValue[] => [...placeValues(holder), holder.holder]

export const claimValues = (claim: Claim): SqlValue[] => [
  ...holderValues(claim),
  claim.leaseMs,
  claim.requestHash,
  claim.hashVersion,
]

export function answerValues(holder: Holder, { status, headers, body }: StoredAnswer, ttlMs: number): SqlValue[] {
  return [...holderValues(holder), ttlMs, status, JSON.stringify(headers), body]
}

export type Row = Readonly<Record<string, unknown>>

/** Both drivers' rows: numbers may come as text (int8 of `pg`). */
export function readRecord(row: Row): KeyRecord {
  const state = String(row.state)
  if (state !== 'held' && state !== 'in_doubt' && state !== 'answered')
    throw new Error(`${TABLE} has the state ${state}`)
  return {
    requestHash: String(row.request_hash),
    hashVersion: Number(row.hash_version),
    holder: String(row.holder),
    state,
    lapsed: Number(row.lapsed) === 1,
    expired: Number(row.expired) === 1,
    answer: state === 'answered' ? readAnswer(row) : null,
    createdAtMs: Number(row.created_at),
  }
}

function readAnswer(row: Row): StoredAnswer {
  const headers: unknown = JSON.parse(String(row.response_headers))
  if (!Array.isArray(headers)) throw new Error(`${TABLE} has response_headers that are no list`)
  return {
    status: Number(row.response_status),
    headers: headers.map(([name, value]): [string, string] => [String(name), String(value)]),
    body: row.response_body instanceof Uint8Array ? row.response_body : null,
  }
}
