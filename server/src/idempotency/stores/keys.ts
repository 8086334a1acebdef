import type { Answer, StoredAnswer } from '../answer.ts'

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

/** The table for SQLite, for your own migrations; the plugin creates it on first use. Times are in ms. */
export const SQLITE_SCHEMA = columns('BLOB')
/** The table for PostgreSQL, for your own migrations; the plugin creates it on first use. Times are in ms. */
export const POSTGRES_SCHEMA = columns('BYTEA')

const PLACE = 'user_id = $1 AND route = $2 AND key = $3'
const MINE = `${PLACE} AND holder = $4`
const CLEARED = 'response_status = NULL, response_headers = NULL, response_body = NULL, expires_at = NULL'

/** A key belongs to one user and one route; for others the same text is another key. */
export interface Place {
  user: string
  route: string
  key: string
}

/** The holder runs the request. Its random id fences every write, so a holder that lost its lease changes nothing. */
export interface Holder extends Place {
  holder: string
}

export interface Claim extends Holder {
  requestHash: string
  hashVersion: number
  leaseMs: number
}

export interface KeyRecord {
  requestHash: string
  hashVersion: number
  holder: string
  state: 'held' | 'in_doubt' | 'answered'
  /** Held, but the lease has expired. */
  lapsed: boolean
  /** Answered, but the answer has expired and counts as removed. */
  expired: boolean
  answer: StoredAnswer | null
  createdAtMs: number
}

/**
 * The table of keys in the application's own database. `Tx` is the argument of a section; `Returned` is its return type: an
 * answer, or on PostgreSQL also the promise of one.
 */
export interface Keys<Tx, Returned> {
  /** Inserts a record for the key; false if the key already has one. */
  claim(claim: Claim): Promise<boolean>
  find(place: Place): Promise<KeyRecord | null>
  /** Replaces an expired answer with a new request, if the record is unchanged since it was read. */
  reclaim(claim: Claim, seenHolder: string): Promise<boolean>
  /** Takes over a key that is in doubt or whose lease expired, if the record is unchanged since it was read. */
  takeOver(holder: Holder, leaseMs: number, seenHolder: string): Promise<boolean>
  renew(holder: Holder, leaseMs: number): Promise<boolean>
  answer(holder: Holder, answer: StoredAnswer, ttlMs: number): Promise<boolean>
  doubt(holder: Holder): Promise<boolean>
  /** Deletes a key whose request did nothing. */
  release(holder: Holder): Promise<boolean>
  /**
   * Runs the section in a transaction. `settle` returns the answer to store in the same transaction, or null for a rollback. The
   * transaction commits only if the holder still holds the key. Without a holder, nothing is stored.
   */
  section(
    holder: Holder | null,
    work: (tx: Tx) => Returned,
    settle: (answer: Answer) => { store: StoredAnswer; ttlMs: number } | null,
  ): Promise<Sectioned>
  /** Deletes at most `limit` expired answers; returns how many. */
  removeExpired(limit: number): Promise<number>
}

/** `certain` is false if the section ended the transaction itself, and may have committed a part of its work. */
export type Sectioned =
  | { outcome: 'committed' | 'rolled_back'; answer: Answer }
  | { outcome: 'failed'; error: unknown; certain: boolean }

/** Another request took over the key while this process was silent; the section was rolled back. */
export class KeyLost extends Error {
  override name = 'KeyLost'
  constructor() {
    super(
      'The lease on the idempotency key expired and another request took over the key; this section was rolled back',
    )
  }
}

interface Dialect {
  /** The SQL expression for the current time. */
  now: string
  /** Added to a SELECT: skips a record that a section is writing, because its holder is alive. */
  unlessLocked: string
}

/** All but the last take user, route and key first; those of a holder take its id as the fourth. One changed row means success. */
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
    /** As claim, and the holder that was read. Guards: the same answer, still expired. */
    reclaim: `UPDATE ${TABLE} SET holder = $4, state = 'held', created_at = ${now}, lease_expires_at = ${now} + $5,
      request_hash = $6, hash_version = $7, ${CLEARED}
      WHERE ${PLACE} AND holder = $8 AND expires_at <= ${now} AND ${notLocked}`,
    /** holder, lease ms, the holder that was read. Guards: the same holder, still without a lease. */
    takeOver: `UPDATE ${TABLE} SET holder = $4, state = 'held', lease_expires_at = ${now} + $5
      WHERE ${PLACE} AND holder = $6 AND (state = 'in_doubt' OR (state = 'held' AND lease_expires_at <= ${now}))
      AND ${notLocked}`,
    /** holder, lease ms. Guards: no takeover; an expired lease is renewed, too. */
    renew: `UPDATE ${TABLE} SET lease_expires_at = ${now} + $5 WHERE ${MINE} AND state = 'held' AND ${notLocked}`,
    /** holder, ttl ms, status, headers, body. Guards: no takeover; a late answer counts, too. */
    answer: `UPDATE ${TABLE} SET state = 'answered', expires_at = ${now} + $5,
      response_status = $6, response_headers = $7, response_body = $8
      WHERE ${MINE} AND state <> 'answered'`,
    /** holder. Guards: held by it. */
    doubt: `UPDATE ${TABLE} SET state = 'in_doubt' WHERE ${MINE} AND state = 'held'`,
    /** holder. Guards: held by it. */
    release: `DELETE FROM ${TABLE} WHERE ${MINE} AND state = 'held'`,
    /** holder. One row: the caller may write; on PostgreSQL no takeover is possible until the transaction ends. */
    hold: `SELECT 1 FROM ${TABLE} WHERE ${MINE} AND state = 'held'`,
    /** limit. Records without an answer stay, because a person must resolve them. */
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

type Row = Readonly<Record<string, unknown>>

/** Reads a row of either driver; `pg` returns int8 as text. */
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
