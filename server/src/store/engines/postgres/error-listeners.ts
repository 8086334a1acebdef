import type pg from 'pg'

const ignore = () => {}

/**
 * Listens to the errors of connections: a connection that breaks without a listener ends the process. The next statement on it
 * fails, so the error itself can be ignored. The connections of an application's pool outlive the store, so the listeners are
 * removed again.
 */
export class ErrorListeners {
  /** Every connection with the listener, and whether the store uses it now. */
  readonly #inUse = new Map<pg.PoolClient, boolean>()
  #stopped = false

  readonly add = (client: pg.PoolClient): void => {
    if (this.#inUse.has(client)) return
    this.#inUse.set(client, false)
    client.on('error', ignore)
  }

  /** The pool has closed the connection. */
  readonly forget = (client: pg.PoolClient): void => {
    this.#inUse.delete(client)
  }

  use(client: pg.PoolClient): void {
    this.add(client)
    this.#inUse.set(client, true)
  }

  /** Called before the store gives the connection back: the pool listens to idle connections. */
  giveBack(client: pg.PoolClient): void {
    this.#inUse.set(client, false)
    if (this.#stopped) this.#remove(client)
  }

  /** Removes the listeners, from a connection in use when the store gives it back. */
  stop(): void {
    this.#stopped = true
    for (const [client, inUse] of this.#inUse) if (!inUse) this.#remove(client)
  }

  #remove(client: pg.PoolClient): void {
    client.off('error', ignore)
    this.#inUse.delete(client)
  }
}
