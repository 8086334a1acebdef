import type { Client, HandleOptions, Handler, Kind, RetryOptions, World } from '@ichido/sdk'
import type pg from 'pg'

/** Opens a folder with SQLite, for one process. */
export interface FolderOptions {
  /** The folder of the database, artifacts and backups; it is created if it does not exist. */
  dataDir: string
}

interface DatabaseOptions {
  /** The PostgreSQL schema of the tables; default: `ichido`. */
  schema?: string
  /** The address of PostgreSQL itself, for wake-ups, if the other address leads to a pooler such as PgBouncer. */
  databaseDirectUrl?: string
}

/** Opens PostgreSQL through a pool of the application, for several processes. */
export interface PoolOptions extends DatabaseOptions {
  /** The application's own pool; `close()` leaves it open. */
  pool: pg.Pool
}

/** Opens PostgreSQL through its own pool, for several processes. */
export interface DatabaseUrlOptions extends DatabaseOptions {
  /** The address of the database, such as `postgres://user:password@host/database`. */
  databaseUrl: string
}

/** Connects to a server over HTTP. This process submits and watches jobs, but does not handle them. */
export interface ServerOptions {
  /** The URL of the server, such as `https://jobs.example.org`. */
  url: string
  /** A token of that server; not needed while it runs in open mode. */
  token?: string
  /** How failed calls are retried, and their timeouts. */
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
    // Without the stack, which would only show places in this library.
    this.stack = `${this.name}: ${message}`
  }
}
