import { AdvisedError } from '../core/node/store-errors.ts'
import type { Row, Step, Work } from './statement.ts'

/**
 * The store takes commands, never callbacks: a command yields its statements one by one and does not await, so that
 * SQLite runs it from BEGIN to COMMIT without letting anything in between, and PostgreSQL in one transaction.
 */
export interface Command<T> {
  readonly name: string
  /**
   * Called anew for every try. `again` is true when an earlier try may have been committed without anybody
   * hearing of it: whoever inserts then looks for its own ids first.
   */
  work(again: boolean): Work<T>
  /** It is of a batch: when somebody keeps what it needs, it is given up (`LockTimeout`) instead of tried again. */
  readonly failFastOnLock?: boolean
  /** Tried before `work`, by an engine whose every statement is a journey. */
  readonly fastPath?: FastPath<T> | undefined
}

/**
 * One statement, a transaction by itself, that carries the whole command out when nothing about it is out of the
 * ordinary, or else changes nothing.
 */
export interface FastPath<T> {
  readonly step: Step
  /** Null: it was out of the ordinary. */
  settle(rows: readonly Row[]): T | null
  /** What it would have to wait for keeps it from being carried out: `settle` is given no rows. */
  readonly declineOnLock?: true
  /** What is still to be done then, where each item stands for itself and some were carried out; else all of it. */
  left?(rows: readonly Row[]): Command<T>
}

export interface StoreHealth {
  engine: 'sqlite' | 'postgres'
  /** What is stored where, for people; without credentials. */
  location: string
  schemaVersion: number
  /** Settings that make an acknowledged write durable, as read back from the engine. */
  durability: Readonly<Record<string, string>>
  durable: boolean
  /** A connection pooler sits between this process and PostgreSQL. */
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
  close(): Promise<void>
}

/** The embedded store's folder belongs to another process. */
export class StoreInUse extends AdvisedError {
  override readonly name = 'StoreInUse'
}

/** The store is not one that this Ichido may work on; the message says why, and what to do. */
export class StoreRefused extends AdvisedError {
  override readonly name = 'StoreRefused'
}

export function command<T>(name: string, work: (again: boolean) => Work<T>, fastPath?: FastPath<T>): Command<T> {
  return { name, work, fastPath }
}
