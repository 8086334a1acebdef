import { sleep } from '@ichido/sdk/world'
import { type Answer, encodeAnswer, fateOf, keptHeaders, type StoredAnswer } from './answer.ts'
import type { Settings } from './settings.ts'
import type { Holder, Keys, Place } from './stores/port.ts'

/** The key of a request, for its handler. */
export interface Call<Tx, Returned> {
  /** Null if the key is optional and none was sent. */
  readonly key: string | null
  /**
   * Runs the handler's writes and stores its answer in one transaction: both happen, or neither does. The request is answered
   * with the return value of the section. A 5xx (and 401, 403, 408, 429), or a throw, rolls both back.
   */
  withKey(section: (tx: Tx) => Returned): Promise<Answer>
}

/** Renewing goes on for as long as a handler may take; one that never answers must not hold its key for ever. */
const HOLD_MAX_MS = 60 * 60_000
const RENEWALS_PER_LEASE = 3
const SETTLE_TRIES = 3
const SETTLE_PAUSE_MS = 200

/** What becomes of an answer: it goes out, it gives way to the one that was committed, or the key was taken over meanwhile. */
export type Finished = { send: 'own' } | { send: 'other'; answer: StoredAnswer } | { send: 'look_again' }

/** The sole right to run the request of one key, from the claim to its answer. */
export class KeyClaim<Tx, Returned> implements Call<Tx, Returned> {
  readonly #keys: Keys<Tx, Returned>
  readonly #holder: Holder
  readonly #settings: Settings
  readonly #endsAtMs: number
  #callOff: () => void = () => {}
  #committed: StoredAnswer | null = null
  #rolledBack = false
  #ended = false
  readonly #settled = Promise.withResolvers<void>()

  constructor(keys: Keys<Tx, Returned>, holder: Holder, settings: Settings) {
    this.#keys = keys
    this.#holder = holder
    this.#settings = settings
    this.#endsAtMs = settings.world.monotonic() + HOLD_MAX_MS
    this.#renewLater()
  }

  get key(): string {
    return this.#holder.key
  }

  get place(): Place {
    const { user, route, key } = this.#holder
    return { user, route, key }
  }

  /** Settles when the key is answered, released or left in doubt: whoever waits for it should look. */
  get settled(): Promise<void> {
    return this.#settled.promise
  }

  async withKey(section: (tx: Tx) => Returned): Promise<Answer> {
    if (this.#committed !== null || this.#ended) {
      throw new Error('The request with this key has been answered; withKey can commit only once')
    }
    this.#rolledBack = false
    const { ttlMs } = this.#settings
    let stored: StoredAnswer | null = null
    const sectioned = await this.#keys.section(this.#holder, section, (answer) => {
      const encoded = encodeAnswer(answer)
      stored = encoded
      return fateOf(answer.status) === 'store' ? { store: this.#kept(encoded), ttlMs } : null
    })
    if (sectioned.outcome === 'failed') {
      this.#rolledBack = sectioned.certain
      throw sectioned.error
    }
    if (sectioned.outcome === 'rolled_back') this.#rolledBack = true
    else {
      this.#committed = stored
      // Others have their answer now, whatever the handler does after.
      this.#end()
    }
    return sectioned.answer
  }

  /** Decides, by the answer that the handler made, what becomes of the key; the answer goes out after that. */
  async finish(answer: StoredAnswer): Promise<Finished> {
    try {
      if (this.#committed !== null) return { send: 'other', answer: this.#committed }
      return (await this.#persist(() => this.#settle(answer))) ? { send: 'own' } : { send: 'look_again' }
    } catch (error) {
      // The effect stands and its caller may know; for all others the key is in doubt once its lease has lapsed.
      this.#settings.onError(error)
      return { send: 'own' }
    } finally {
      this.#end()
    }
  }

  /** A connection that broke is no reason to leave a key in doubt: the next one may do. */
  async #persist(write: () => Promise<boolean>): Promise<boolean> {
    for (let tries = 1; tries < SETTLE_TRIES; tries++) {
      try {
        return await write()
      } catch {
        await sleep(this.#settings.world, SETTLE_PAUSE_MS)
      }
    }
    return write()
  }

  /** For a `recover` hook to look at again. */
  async leaveInDoubt(): Promise<void> {
    await this.#persist(() => this.#keys.doubt(this.#holder)).catch(this.#settings.onError)
    this.#end()
  }

  /** Lets go of the key without a word to the database. */
  #end(): void {
    this.#ended = true
    this.#callOff()
    this.#settled.resolve()
  }

  #settle(answer: StoredAnswer): Promise<boolean> {
    const fate = fateOf(answer.status)
    if (fate === 'store') return this.#keys.answer(this.#holder, this.#kept(answer), this.#settings.ttlMs)
    if (fate === 'release' || this.#rolledBack) return this.#keys.release(this.#holder)
    return this.#keys.doubt(this.#holder)
  }

  #kept({ status, headers, body }: StoredAnswer): StoredAnswer {
    const tooLarge = body !== null && body.length > this.#settings.responseMaxBytes
    return { status, headers: keptHeaders(headers, this.#settings.headers), body: tooLarge ? null : body }
  }

  #renewLater(): void {
    const { world, leaseMs, onError } = this.#settings
    this.#callOff = world.after(leaseMs / RENEWALS_PER_LEASE, () => {
      if (world.monotonic() >= this.#endsAtMs) return this.#end()
      this.#renewLater()
      this.#keys.renew(this.#holder, leaseMs).catch(onError)
    })
  }
}

/** Where no key was sent: the same call without a record. */
export class KeylessCall<Tx, Returned> implements Call<Tx, Returned> {
  readonly key = null
  readonly #keys: Keys<Tx, Returned>

  constructor(keys: Keys<Tx, Returned>) {
    this.#keys = keys
  }

  async withKey(section: (tx: Tx) => Returned): Promise<Answer> {
    const sectioned = await this.#keys.section(null, section, (answer) =>
      fateOf(answer.status) === 'store' ? { store: encodeAnswer(answer), ttlMs: 0 } : null,
    )
    if (sectioned.outcome === 'failed') throw sectioned.error
    return sectioned.answer
  }
}
