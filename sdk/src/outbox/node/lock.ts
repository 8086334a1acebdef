import { mkdirSync } from 'node:fs'
import { dirname } from 'node:path'
import type { DatabaseSync } from 'node:sqlite'
import { sleep, type Timers } from '../../world.ts'
import { OutboxUnavailable } from '../item.ts'

const SQLITE_BUSY = 5
const ASK_AGAIN_MS = 20

/**
 * A lock between all processes of a machine. It is SQLite's lock on a file, which the system releases when the process ends. A
 * file with a process number would not do: numbers are reused, and differ between containers.
 */
export class FileLock {
  readonly #path: string
  readonly #timers: Timers
  #last: Promise<unknown> = Promise.resolve()

  constructor(path: string, timers: Timers) {
    this.#path = path
    this.#timers = timers
  }

  /** Runs the work under the lock; waits for it until the signal aborts. */
  run<T>(work: () => T | Promise<T>, signal?: AbortSignal): Promise<T> {
    const turn = this.#last.then(async () => {
      const database = this.#open()
      try {
        while (!this.#isTaken(database)) {
          signal?.throwIfAborted()
          await sleep(this.#timers, ASK_AGAIN_MS * (0.5 + this.#timers.random()), signal)
        }
        signal?.throwIfAborted()
        return await work()
      } finally {
        database.close()
      }
    })
    this.#last = turn.catch(() => {})
    return turn
  }

  #open(): DatabaseSync {
    const sqlite = process.getBuiltinModule?.('node:sqlite')
    if (sqlite === undefined) throw new OutboxUnavailable('An outbox in a file needs Node 22.13 or later')
    try {
      mkdirSync(dirname(this.#path), { recursive: true, mode: 0o700 })
      return new sqlite.DatabaseSync(this.#path, { timeout: 0 })
    } catch (error) {
      throw this.#unusable(error)
    }
  }

  #isTaken(database: DatabaseSync): boolean {
    try {
      database.exec('BEGIN EXCLUSIVE')
      return true
    } catch (error) {
      // The lowest byte is the primary result code.
      if (error instanceof Error && 'errcode' in error && (Number(error.errcode) & 0xff) === SQLITE_BUSY) return false
      throw this.#unusable(error)
    }
  }

  #unusable(error: unknown): OutboxUnavailable {
    const why = error instanceof Error ? error.message : String(error)
    return new OutboxUnavailable(`The lock file ${this.#path} cannot be used: ${why}`, { cause: error })
  }
}
