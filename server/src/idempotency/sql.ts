import type { StoredAnswer } from './answer.ts'
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

/** Times are in ms. Both are made by themselves on first use; here for those whose migrations are made by hand. */
export const SQLITE_SCHEMA = columns('BLOB')
export const POSTGRES_SCHEMA = columns('BYTEA')

export interface Dialect {
  /** The present as an expression of a parameter that may be null where the database's own clock is used. */
  now: (parameter: string) => string
  /** Behind a SELECT: passes over a record that a section is writing, for its holder is alive. */
  unlessLocked: string
}

const PLACE = 'user_id = $1 AND route = $2 AND key = $3'
const MINE = `${PLACE} AND holder = $4`
const CLEARED = 'response_status = NULL, response_headers = NULL, response_body = NULL, expires_at = NULL'

/** Statements of one place take user, route, key first; those of a holder its id as the fourth. */
export function statements({ now, unlessLocked }: Dialect) {
  const NOW = now('$5')
  const at = (condition: string) =>
    `(user_id, route, key) IN (SELECT user_id, route, key FROM ${TABLE} WHERE ${PLACE} AND ${condition} ${unlessLocked})`
  return {
    /** holder, now, lease ms, request hash, hash version. One row: the key is the caller's. */
    claim: `INSERT INTO ${TABLE}
      (user_id, route, key, holder, state, created_at, lease_expires_at, request_hash, hash_version)
      VALUES ($1, $2, $3, $4, 'held', ${NOW}, ${NOW} + $6, $7, $8)
      ON CONFLICT (user_id, route, key) DO NOTHING`,
    /** (unused), now. */
    find: `SELECT request_hash, hash_version, holder, state, response_status, response_headers, response_body, created_at,
      CASE WHEN state = 'held' AND lease_expires_at <= ${now('$4')} THEN 1 ELSE 0 END AS lapsed,
      CASE WHEN expires_at <= ${now('$4')} THEN 1 ELSE 0 END AS expired
      FROM ${TABLE} WHERE ${PLACE}`,
    /** As claim, and the holder that was seen. Guards: still that answer, and its time still over. */
    reclaim: `UPDATE ${TABLE} SET holder = $4, state = 'held', created_at = ${NOW}, lease_expires_at = ${NOW} + $6,
      request_hash = $7, hash_version = $8, ${CLEARED}
      WHERE ${at(`holder = $9 AND expires_at <= ${NOW}`)}`,
    /** holder, now, lease ms, the holder that was seen. Guards: still that holder, still without a lease. */
    takeOver: `UPDATE ${TABLE} SET holder = $4, state = 'held', lease_expires_at = ${NOW} + $6
      WHERE ${at(`holder = $7 AND (state = 'in_doubt' OR (state = 'held' AND lease_expires_at <= ${NOW}))`)}`,
    /** holder, now, lease ms. A lapsed lease that nobody took over can still be renewed. */
    renew: `UPDATE ${TABLE} SET lease_expires_at = ${NOW} + $6 WHERE ${at("holder = $4 AND state = 'held'")}`,
    /** holder, now, ttl ms, status, headers, body. Late answers count as long as nobody took over. */
    answer: `UPDATE ${TABLE} SET state = 'answered', expires_at = ${NOW} + $6,
      response_status = $7, response_headers = $8, response_body = $9
      WHERE ${MINE} AND state <> 'answered'`,
    /** holder. */
    doubt: `UPDATE ${TABLE} SET state = 'in_doubt' WHERE ${MINE} AND state = 'held'`,
    /** holder. */
    release: `DELETE FROM ${TABLE} WHERE ${MINE} AND state = 'held'`,
    /** holder. One row: the caller may write; on PostgreSQL nobody can take over until the transaction ends. */
    hold: `SELECT 1 FROM ${TABLE} WHERE ${MINE} AND state = 'held'`,
    /** now, limit. */
    removeExpired: `DELETE FROM ${TABLE} WHERE (user_id, route, key) IN (SELECT user_id, route, key FROM ${TABLE}
      WHERE expires_at <= ${now('$1')} ORDER BY expires_at LIMIT $2 ${unlessLocked})`,
  }
}

export type SqlValue = string | number | null | Uint8Array

export const placeValues = ({ user, route, key }: Place): SqlValue[] => [user, route, key]
export const holderValues = (holder: Holder): SqlValue[] => [...placeValues(holder), holder.holder]

export const claimValues = (claim: Claim, nowMs: number | null): SqlValue[] => [
  ...holderValues(claim),
  nowMs,
  claim.leaseMs,
  claim.requestHash,
  claim.hashVersion,
]

export const answerValues = (
  holder: Holder,
  { status, headers, body }: StoredAnswer,
  ttlMs: number,
  nowMs: number | null,
): SqlValue[] => [...holderValues(holder), nowMs, ttlMs, status, JSON.stringify(headers), body]

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
