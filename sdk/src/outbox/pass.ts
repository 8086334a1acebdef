import { TIMEOUT_MS, within } from '../client/retry.ts'
import type { World } from '../world.ts'
import type { OutboxItem, Send } from './item.ts'
import type { Network, OutboxStore, StoredItem } from './ports.ts'
import { DELAY_MAX_MS, dueInMs, judge, refuseErrorAnswer, type Verdict, wordsOf } from './verdict.ts'

export interface PassOptions<Body, Answer> {
  store: OutboxStore
  send: Send<Body, Answer>
  network: Network
  world: Pick<World, 'now' | 'after' | 'random'>
  signal: AbortSignal
  onlyDue: boolean
  attemptsMax: number
  /** What got no answer in earlier flushes. */
  silent: Set<string>
  begin(item: StoredItem): void
  end(outcome: Outcome<Answer>): OutboxItem<Body, Answer>
}

/** What came of a try: the item as it is now, unless a person dropped it meanwhile. */
export interface Outcome<Answer> {
  item: StoredItem
  dropped: boolean
  sent?: { answer: Answer }
}

type Delivery<Answer> =
  | { verdict: 'sent'; answer: Answer; error?: undefined }
  | { verdict: Verdict; error: unknown; answer?: undefined }

/** One flush, by whoever holds the lock. */
export class Pass<Body, Answer> {
  readonly #options: PassOptions<Body, Answer>
  readonly #tried = new Map<string, OutboxItem<Body, Answer>>()

  constructor(options: PassOptions<Body, Answer>) {
    this.#options = options
  }

  /** Settles with what it tried, as it is now. */
  async run(): Promise<OutboxItem<Body, Answer>[]> {
    if (await this.#options.network.online()) await this.#runOnline()
    return [...this.#tried.values()]
  }

  async #runOnline(): Promise<void> {
    const { store, signal } = this.#options
    for (let waiting = await this.#waiting(); waiting.length > 0; waiting = await this.#waiting()) {
      for (const { id } of waiting) {
        signal.throwIfAborted()
        // A person may have dropped it meanwhile, or it went before its turn.
        const item = this.#tried.has(id) ? undefined : await store.get(id)
        if (item?.status === 'queued' && !(await this.#mayGoOn(item))) return
      }
    }
  }

  /**
   * Tries it. Without an answer it may be that nobody is there, which is no attempt and ends the flush: what comes after
   * it must not overtake it. Or it is the item itself that gets no answer, and then it is an attempt like any other.
   */
  async #mayGoOn(item: StoredItem): Promise<boolean> {
    if ((await this.#try(item)) === undefined) return true
    if (!(await this.#options.network.online()) || !(await this.#isSomebodyThere(item))) return false
    const silence = await this.#try(item)
    if (silence !== undefined) this.#end(await this.#count(item, silence.error, false))
    return true
  }

  /** Where the network cannot be asked, the next item can: once this one was without an answer in two flushes. */
  async #isSomebodyThere({ id }: StoredItem): Promise<boolean> {
    const { network, silent } = this.#options
    if (network.asks) return true
    const probe = silent.has(id) ? (await this.#waiting()).find((other) => !silent.has(other.id)) : undefined
    if (probe !== undefined && (await this.#try(probe)) === undefined) return true
    // All were tried in their turn: from the beginning again.
    if (silent.has(id) && probe === undefined) silent.clear()
    silent.add(probe?.id ?? id)
    return false
  }

  async #waiting(): Promise<StoredItem[]> {
    const { store, world, onlyDue } = this.#options
    const nowMs = world.now()
    // What is due later than any delay is so because the clock was set back.
    const isDue = ({ dueAtMs }: StoredItem) => dueAtMs <= nowMs || dueAtMs > nowMs + DELAY_MAX_MS
    const kept = await store.list()
    return kept.filter((item) => item.status === 'queued' && !this.#tried.has(item.id) && (!onlyDue || isDue(item)))
  }

  /** Undefined when there was an answer. */
  async #try(item: StoredItem): Promise<{ error: unknown } | undefined> {
    const { store, signal, silent, begin } = this.#options
    begin(item)
    let outcome: Outcome<Answer> = { item, dropped: false }
    try {
      const { verdict, answer, error } = await this.#deliver(item)
      // Cut off by us: whatever it says, that was no attempt.
      if (verdict !== 'sent') signal.throwIfAborted()
      if (verdict === 'unanswered') return { error }
      silent.delete(item.id)
      if (verdict === 'sent') {
        await store.remove(item.id)
        outcome = { item, dropped: false, sent: { answer } }
      } else outcome = await this.#count(item, error, verdict === 'refused')
      return undefined
    } finally {
      this.#end(outcome)
    }
  }

  async #deliver({ key, body }: StoredItem): Promise<Delivery<Answer>> {
    const { send, world, signal } = this.#options
    try {
      // What was put is a Body; nobody else writes to the store.
      const delivery = { key, body: body as Body }
      const answer = await within(world, TIMEOUT_MS, signal, (either) => obeying(either, send(delivery, either)))
      await refuseErrorAnswer(answer, world)
      return { verdict: 'sent', answer }
    } catch (error) {
      return { verdict: judge(error), error }
    }
  }

  /** Writes an attempt down. */
  async #count(item: StoredItem, error: unknown, refused: boolean): Promise<Outcome<Answer>> {
    const { store, world, attemptsMax } = this.#options
    const attempts = item.attempts + 1
    const progress = {
      attempts,
      status: refused || attempts >= attemptsMax ? 'failed' : 'queued',
      dueAtMs: world.now() + dueInMs(attempts, error, world.random),
      error: wordsOf(error),
    } as const
    return { item: { ...item, ...progress }, dropped: !(await store.update(item.id, progress)) }
  }

  #end(outcome: Outcome<Answer>): void {
    this.#tried.set(outcome.item.id, this.#options.end(outcome))
  }
}

/** Also where `send` does not look at its signal: it must not hold up all others, in all tabs. */
function obeying<T>(signal: AbortSignal, work: Promise<T>): Promise<T> {
  const aborted = new Promise<never>((_, reject) => {
    signal.addEventListener('abort', () => reject(signal.reason), { once: true })
  })
  return Promise.race([work, aborted])
}
