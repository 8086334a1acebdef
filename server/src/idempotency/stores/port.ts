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
 * The table of keys in the application's own database. `Tx` is what a section gets to write with; `Returned` is what it
 * may return: an answer, and on databases with connections of their own also the promise of one.
 */
export interface Keys<Tx, Returned> {
  /** Enters a key that is not there; false when there is a record already, whatever it says. */
  claim(claim: Claim): Promise<boolean>
  find(place: Place): Promise<KeyRecord | null>
  /** Takes the place of an answered record whose time is over, as it was seen: for a request of its own. */
  reclaim(claim: Claim, seenHolder: string): Promise<boolean>
  /** Takes over from a holder that left the key in doubt or let its lease lapse, as it was seen. */
  takeOver(holder: Holder, leaseMs: number, seenHolder: string): Promise<boolean>
  renew(holder: Holder, leaseMs: number): Promise<boolean>
  answer(holder: Holder, answer: StoredAnswer, ttlMs: number): Promise<boolean>
  doubt(holder: Holder): Promise<boolean>
  /** Forgets a key whose request did nothing. */
  release(holder: Holder): Promise<boolean>
  /**
   * Runs the section in a transaction. `settle` says what to store: the transaction then holds the answer too and is
   * committed if the holder still is the holder; null rolls it back. Without a holder there is no record to keep.
   */
  section(
    holder: Holder | null,
    work: (tx: Tx) => Returned,
    settle: (answer: Answer) => { store: StoredAnswer; ttlMs: number } | null,
  ): Promise<Sectioned>
  /** At most `limit` answered records whose time is over; returns how many. */
  removeExpired(limit: number): Promise<number>
}

/** `certain` is false when the section ended the transaction by itself, and may have committed half of its work. */
export type Sectioned =
  | { outcome: 'committed' | 'rolled_back'; answer: Answer }
  | { outcome: 'failed'; error: unknown; certain: boolean }

/** The key was taken over while its holder was away: what the section wrote has been rolled back. */
export class KeyLost extends Error {
  override name = 'KeyLost'
  constructor() {
    super(
      'The lease on the idempotency key lapsed and another request took it over; nothing of this section was written',
    )
  }
}
