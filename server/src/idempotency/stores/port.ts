import type { Answer, StoredAnswer } from '../answer.ts'

/** A key belongs to one user and one route: elsewhere the same text is another key. */
export interface Place {
  user: string
  route: string
  key: string
}

/** Who runs the request: a random id fences every write, so that a holder that lost its lease changes nothing. */
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
  /** Of a held one: its holder did not renew its lease in time. */
  lapsed: boolean
  /** Of an answered one: its time is over, and it counts as removed. */
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

/** `certain` is false when the section ended the transaction by itself, and may have committed half of its work. */
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
