import { AdvisedError } from '../core/node/store-errors.ts'
import type { Row, Step, Work } from './statement.ts'

/**
 * The store takes commands, never callbacks. A command yields its statements one by one and cannot await. So SQLite runs it from
 * BEGIN to COMMIT without a pause, and PostgreSQL in one transaction.
 */
export interface Command<T> {
  readonly name: string
  /** Unset: the lane of all other commands. */
  readonly lane?: Lane | undefined
  /** Called for every try. `again`: an earlier try may have committed, so a command that inserts first looks for its own ids. */
  work(again: boolean): Work<T>
  /** For a batch: on a lock timeout it fails with `LockTimeout` instead of trying again. */
  readonly failFastOnLock?: boolean
  /** PostgreSQL tries it before `work`, to save round trips. */
  readonly fastPath?: FastPath<T> | undefined
}

/**
 * Each lane has its own connections to PostgreSQL, so that commands of one lane never wait for those of another:
 * - `batches`: a few commands at a time, each with many items. The calls of other lanes do not delay them.
 * - `users`: commands that lock users, whose rows an application may keep locked. The leader's work goes on meanwhile.
 * - `urgent`: heartbeats and the leadership. A locked user can delay all other commands for seconds. By then the leases of all
 *   workers would expire, and the leader would lose its term.
 */
export type Lane = 'batches' | 'users' | 'urgent'

/** One statement, a transaction by itself. It does the whole command in the common case, and otherwise changes nothing. */
export interface FastPath<T> {
  readonly step: Step
  /** Null: the statement has not done the command. */
  settle(rows: readonly Row[]): T | null
  /** On a lock timeout the statement counts as one without rows. */
  readonly declineOnLock?: true
  /** The command for the items that are left, if the statement can do some items of a batch. Unset: the whole command. */
  left?(rows: readonly Row[]): Command<T>
}

/** A page of a list. */
export interface Listed<T> {
  rows: T[]
  /** Where the next page begins; null at the end. */
  next: string | null
}

/** A page of a list. `found` has one entry more than the page if another page follows. */
export function pageOf<Entry, Place>(found: readonly Entry[], limit: number, placeOf: (entry: Entry) => Place) {
  const rows = found.slice(0, limit)
  const last = rows.at(-1)
  return { rows, next: found.length > limit && last !== undefined ? placeOf(last) : null }
}

export interface StoreHealth {
  engine: 'sqlite' | 'postgres'
  /** For people, without credentials. */
  location: string
  schemaVersion: number
  /** Settings that make an acknowledged write durable, as read back from the engine. */
  durability: Readonly<Record<string, string>>
  durable: boolean
  /** A connection pooler is between this process and PostgreSQL. */
  pooled: boolean
  /** The store's clock minus this process's clock. */
  clockSkewMs: number
}

export interface Store {
  readonly engine: 'sqlite' | 'postgres'
  /** Runs the command in one transaction. An uncertain COMMIT is answered by running it again. */
  write<T>(command: Command<T>): Promise<T>
  /** Runs the command outside a transaction; it must not write. */
  read<T>(command: Command<T>): Promise<T>
  health(): Promise<StoreHealth>
  /** Throws `StoreFull` unless there is room for more than a few rows. It leaves nothing behind. */
  requireRoom(): Promise<void>
  /** Makes the space of runs that have left `ready` and `held` usable again, where much of it has collected. Returns the rooms. */
  vacuum(): Promise<string[]>
  close(): Promise<void>
}

/** The embedded store's folder belongs to another process. */
export class StoreInUse extends AdvisedError {
  override readonly name = 'StoreInUse'
}

/** This Ichido must not use the store. The message says why, and what to do. */
export class StoreRefused extends AdvisedError {
  override readonly name = 'StoreRefused'
}

export function command<T>(name: string, work: (again: boolean) => Work<T>): Command<T> {
  return { name, work }
}

export function commandIn<T>(
  lane: Lane,
  name: string,
  work: (again: boolean) => Work<T>,
  fastPath?: FastPath<T>,
): Command<T> {
  return { name, lane, work, fastPath }
}

/** The answer that a command would give now: its statements run in a transaction that is rolled back. */
export async function rehearse<T>(store: Pick<Store, 'write'>, { name, lane, work }: Command<T>): Promise<T> {
  function* rehearsed(again: boolean): Work<never> {
    throw new Rehearsed(yield* work(again))
  }
  try {
    return await store.write({ name, lane, work: rehearsed })
  } catch (error) {
    if (error instanceof Rehearsed) return error.answer as T
    throw error
  }
}

/** Thrown out of a transaction to end it without a commit. */
class Rehearsed extends Error {
  readonly answer: unknown

  constructor(answer: unknown) {
    super('This was a rehearsal')
    this.answer = answer
  }
}
