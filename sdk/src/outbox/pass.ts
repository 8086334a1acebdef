import type { World } from '../world.ts'
import type { OutboxItem, Send } from './item.ts'
import type { Network, OutboxStore, StoredItem } from './ports.ts'
import { DELAY_MAX_MS, dueInMs, judge, refuseErrorAnswer, type Verdict, wordsOf } from './verdict.ts'

export interface PassOptions<Body, Answer> {
  store: OutboxStore
  send: Send<Body, Answer>
  network: Network
  world: Pick<World, 'now' | 'random'>
  signal: AbortSignal
  onlyDue: boolean
  attemptsMax: number
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
  /** Tried since the last answer, and got none. */
  #unanswered: { item: StoredItem; error: unknown }[] = []

  constructor(options: PassOptions<Body, Answer>) {
    this.#options = options
  }

  /** Settles with what it tried, as it is now. */
  async run(): Promise<OutboxItem<Body, Answer>[]> {
    const { store, network, signal } = this.#options
    if (!(await network.online())) return []
    for (let waiting = await this.#waiting(); waiting.length > 0; waiting = await this.#waiting()) {
      for (const { id } of waiting) {
        signal.throwIfAborted()
        // A person may have dropped it meanwhile.
        const item = await store.get(id)
        if (item?.status !== 'queued') continue
        if (!(await this.#try(item)) && !(await network.online())) return this.#done()
      }
    }
    return this.#done()
  }

  async #waiting(): Promise<StoredItem[]> {
    const { store, world, onlyDue } = this.#options
    const nowMs = world.now()
    // What is due later than any delay is so because the clock was set back.
    const isDue = ({ dueAtMs }: StoredItem) => dueAtMs <= nowMs || dueAtMs > nowMs + DELAY_MAX_MS
    const kept = await store.list()
    return kept.filter((item) => item.status === 'queued' && !this.#tried.has(item.id) && (!onlyDue || isDue(item)))
  }

  #done(): OutboxItem<Body, Answer>[] {
    return [...this.#tried.values()]
  }

  /** Settles with whether there was an answer. */
  async #try(item: StoredItem): Promise<boolean> {
    const { store, signal, begin } = this.#options
    begin(item)
    let outcome: Outcome<Answer> = { item, dropped: false }
    try {
      const { verdict, answer, error } = await this.#deliver(item)
      // Cut off by us: whatever it says, that was no attempt.
      if (verdict !== 'sent') signal.throwIfAborted()
      if (verdict === 'unanswered') {
        this.#unanswered.push({ item, error })
        return false
      }
      if (verdict === 'sent') {
        await store.remove(item.id)
        outcome = { item, dropped: false, sent: { answer } }
      } else outcome = await this.#count(item, error, verdict === 'refused')
    } finally {
      this.#end(outcome)
    }
    // There was an answer, so the network is there: it is these items that get none.
    for (const { item, error } of this.#unanswered.splice(0)) this.#end(await this.#count(item, error, false))
    return true
  }

  async #deliver({ key, body }: StoredItem): Promise<Delivery<Answer>> {
    const { send, world, signal } = this.#options
    try {
      // What was put is a Body; nobody else writes to the store.
      const answer = await send({ key, body: body as Body }, signal)
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
