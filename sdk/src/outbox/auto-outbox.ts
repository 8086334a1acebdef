import { retryDelayMs } from '../client/retry.ts'
import type { OutboxItem } from './item.ts'
import { Outbox, type OutboxOptions } from './outbox.ts'
import { DELAY_MAX_MS } from './pass.ts'

/** The options of an `AutoOutbox`. */
export interface AutoOutboxOptions<Body, Answer> extends OutboxOptions<Body, Answer> {
  /** Called if an automatic flush failed, for example because the store does not work. The flush is tried again. */
  onTrouble?: ((error: unknown) => void) | undefined
}

/**
 * An outbox that flushes by itself: when it is opened, after a put, when the network is back, when an attempt is due, and
 * from time to time while the server does not answer.
 */
export class AutoOutbox<Body = unknown, Answer = unknown> extends Outbox<Body, Answer> {
  readonly #options: AutoOutboxOptions<Body, Answer>
  readonly #unsubscribe: (() => void)[]
  #flushing = false
  #wanted = false
  #closed = false
  /** The number of flushes in a row that left due items behind. */
  #inVain = 0
  #callOff = () => {}

  constructor(options: AutoOutboxOptions<Body, Answer>) {
    super(options)
    this.#options = options
    const { network, tabs } = options
    // Sends the items that a closed tab left. It waits first, because two tabs would otherwise wake each other endlessly.
    const onTold = tabs?.onTold(() => this.#flushing || this.#flushIn(this.#pauseMs()))
    this.#unsubscribe = [network.onOnline(() => this.#flushNow()), onTold ?? (() => {})]
    this.#flushNow()
  }

  /** Stores an item and sends it. */
  override async put(body: Body, options: { key?: string } = {}): Promise<OutboxItem<Body, Answer>> {
    const item = await super.put(body, options)
    this.#flushNow()
    return item
  }

  /** Gives a failed item new attempts and sends it. */
  override async retry(id: string): Promise<OutboxItem<Body, Answer>> {
    const item = await super.retry(id)
    this.#flushNow()
    return item
  }

  /** Stops the flushes and closes the outbox. */
  override async close(): Promise<void> {
    this.#closed = true
    this.#callOff()
    for (const unsubscribe of this.#unsubscribe) unsubscribe()
    await super.close()
  }

  #flushNow(): void {
    this.#wanted = true
    if (!this.#flushing) void this.#run()
  }

  async #run(): Promise<void> {
    this.#flushing = true
    while (this.#wanted && !this.#closed) {
      this.#wanted = false
      this.#callOff()
      try {
        await this.flush({ onlyDue: true })
        await this.#planNext()
      } catch (error) {
        if (this.#closed) break
        this.#options.onTrouble?.(error)
        this.#inVain += 1
        this.#flushIn(this.#pauseMs())
      }
    }
    this.#flushing = false
  }

  async #planNext(): Promise<void> {
    const { store, world } = this.#options
    const nowMs = world.now()
    const dueAtMs = (await store.list()).filter(({ status }) => status === 'queued').map((item) => item.dueAtMs)
    if (dueAtMs.length === 0) {
      this.#inVain = 0
      return
    }
    const left = dueAtMs.some((atMs) => atMs <= nowMs)
    this.#inVain = left ? this.#inVain + 1 : 0
    // A due time beyond every delay means that the clock was set back.
    const nextMs = Math.min(DELAY_MAX_MS, Math.min(...dueAtMs) - nowMs)
    this.#flushIn(left ? this.#pauseMs() : nextMs)
  }

  #pauseMs(): number {
    return retryDelayMs(Math.max(1, this.#inVain), undefined, this.#options.world.random)
  }

  #flushIn(ms: number): void {
    this.#callOff()
    this.#callOff = this.#closed ? () => {} : this.#options.world.after(ms, () => this.#flushNow())
  }
}
