import { sleep } from '@ichido/sdk/world'
import { type Answer, encodeAnswer, fateOf, keptHeaders, type StoredAnswer } from './answer.ts'
import type { Settings } from './settings.ts'
import type { Holder, Keys, Place } from './stores/keys.ts'

/** The key of a request, for its handler. */
export interface Call<Tx, Returned> {
  /** The idempotency key; null if it is optional and was not sent. */
  readonly key: string | null
  /**
   * Runs the handler's writes and stores its answer in one transaction: both happen, or neither does. The request is answered
   * with the return value of the section. A 5xx (and 401, 403, 408, 429), or a throw, rolls both back.
   */
  withKey(section: (tx: Tx) => Returned): Promise<Answer>
}

/** The lease is renewed for at most this long, so that a handler that never answers does not hold its key forever. */
const HOLD_MAX_MS = 60 * 60_000
const RENEWALS_PER_LEASE = 3
const SETTLE_TRIES = 3
const SETTLE_PAUSE_MS = 200

/** The answer to send: the handler's own, the committed one, or, after a takeover, the stored one. */
type Finished = { send: 'own' } | { send: 'other'; answer: StoredAnswer } | { send: 'look_again' }

/** The exclusive right to run the request of a key, from the claim to its answer. */
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

  /** Resolves when the key is answered, released or left in doubt. */
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
      // Waiting requests get the committed answer now.
      this.#end()
    }
    return sectioned.answer
  }

  /** Stores, releases or leaves the key in doubt, by the handler's answer; the answer is sent after that. */
  async finish(answer: StoredAnswer): Promise<Finished> {
    try {
      if (this.#committed !== null) return { send: 'other', answer: this.#committed }
      return (await this.#persist(() => this.#settle(answer))) ? { send: 'own' } : { send: 'look_again' }
    } catch (error) {
      // The effect stands, so its caller gets the answer; for others the key is in doubt after its lease expires.
      this.#settings.onError(error)
      return { send: 'own' }
    } finally {
      this.#end()
    }
  }

  /** Retries, because a new connection may succeed. */
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

  /** Leaves the key for another call of the `recover` hook. */
  async leaveInDoubt(): Promise<void> {
    await this.#persist(() => this.#keys.doubt(this.#holder)).catch(this.#settings.onError)
    this.#end()
  }

  /** Ends the claim in this process only. */
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

/** A request without a key: the same call without a record. */
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
