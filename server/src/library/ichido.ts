import type { Client, HandleOptions, Handler, Kind, RetryOptions, World } from '@ichido/sdk'
import type pg from 'pg'

/** A folder of this process alone, on SQLite. */
export interface FolderOptions {
  /** Where the database, artifacts and backups are; made if it is missing. */
  dataDir: string
}

interface DatabaseOptions {
  /** The PostgreSQL schema of the tables; default: `ichido`. */
  schema?: string
  /** PostgreSQL itself, for wake-ups, when the other address leads to a connection pooler such as PgBouncer. */
  databaseDirectUrl?: string
}

/** PostgreSQL over a pool of the application, for several processes. */
export interface PoolOptions extends DatabaseOptions {
  /** The application's own pool; `close()` leaves it open. */
  pool: pg.Pool
}

/** PostgreSQL over a pool that `open()` makes, for several processes. */
export interface DatabaseUrlOptions extends DatabaseOptions {
  /** Such as `postgres://user:password@host/database`. */
  databaseUrl: string
}

/** A server that runs elsewhere, over HTTP. Jobs are submitted and watched here, but not handled. */
export interface ServerOptions {
  /** Where the server is, such as `https://jobs.example.org`. */
  url: string
  /** A token of that server; not needed while it runs in open mode. */
  token?: string
  /** How often, and for how long, a call that did not reach the server is sent again. */
  retry?: RetryOptions
}

interface CommonOptions {
  /** Called when something fails outside of any call, such as a lost connection; default: a warning of the process. */
  onTrouble?: (where: string, error: unknown) => void
  /** Clock, timers, ids and randomness; for tests and simulations. */
  world?: World
}

/** Where the jobs are: in a folder, in PostgreSQL, or on a server. */
export type OpenOptions = (FolderOptions | PoolOptions | DatabaseUrlOptions | ServerOptions) & CommonOptions

/** A store that this process opens itself. */
export type StoreOptions = (FolderOptions | PoolOptions | DatabaseUrlOptions) & CommonOptions

/** Ichido inside an application, or a connection to one that runs elsewhere. */
export interface Ichido extends Submitting {
  /**
   * Runs jobs of this kind until `close()`. In process only.
   *
   * @example
   * ichido.handle(resize, async ({ payload, signal, progress }) => {
   *   await progress({ percent: 50 })
   *   return { bytes: await resizeImage(payload.url, signal) }
   * }, { concurrency: 8 })
   */
  handle<PayloadIn, PayloadOut, Result, ResultIn>(
    kind: Kind<PayloadIn, PayloadOut, Result, ResultIn>,
    handler: Handler<PayloadOut, NoInfer<ResultIn>>,
    options?: HandleOptions,
  ): void
  /**
   * Takes no more work, waits for running handlers (30 s unless `drainMs` is given), aborts those that still run, and closes
   * the store. A handler that runs for 10 s more is left behind: `onTrouble` is called, and its job waits for its lease.
   */
  close(options?: {
    /** How long to wait for running handlers; default: 30 000. */
    drainMs?: number
  }): Promise<void>
}

type Submitting = Pick<Client, 'submit' | 'batch' | 'trigger' | 'job' | 'list' | 'reservations' | 'artifacts'>

export function submitting(client: Client): Submitting {
  return {
    submit: client.submit.bind(client) as Ichido['submit'],
    batch: client.batch.bind(client),
    trigger: client.trigger.bind(client),
    job: client.job.bind(client) as Ichido['job'],
    list: client.list.bind(client),
    reservations: client.reservations,
    artifacts: client.artifacts,
  }
}

export const CLOSED = 'This Ichido was closed'

/** The store could not be opened; the message says why and what to do. */
export class NotOpened extends Error {
  override readonly name = 'NotOpened'
  /** The code of the system or of PostgreSQL, such as ECONNREFUSED or 3D000; empty if there is none. */
  readonly code: string

  constructor(message: string, code: string) {
    super(message)
    this.code = code
    // Uncaught, it is read by whoever set the options: where in this library it came up tells them nothing.
    this.stack = `${this.name}: ${message}`
  }
}
