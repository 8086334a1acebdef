import { ForeignAnswer, NoAnswer, Transient } from '../client/errors.ts'
import { mayRetry, retryAfterMs, retryDelayMs, TIMEOUT_MS, within } from '../client/retry.ts'
import { unlessAborted, type World } from '../world.ts'
import type { OutboxItem, StoredItem } from './item.ts'
import type { Network, OutboxStore, Send } from './ports.ts'

/** Slower than the client, so that a restarted server is back: 16 s, 32 s, 60 s … */
const SLOWER = 4
export const DELAY_MAX_MS = 3_600_000
const MESSAGE_LENGTH_MAX = 1_000
/**
 * The beginnings of the TypeErrors that `fetch` throws without a connection, in Chromium, Firefox, Safari and Node. Only the
 * message distinguishes them from a mistake in `send`, which must not be retried forever.
 */
const NO_CONNECTION =
  /^(failed to fetch|network ?error|error in input stream|load failed|the (network|internet) connection|fetch failed|terminated)/i

/** The meaning of a failed try: no answer, a temporary error, or a permanent refusal. */
type Verdict = 'unanswered' | 'again' | 'refused'

interface PassOptions<Body, Answer> {
  store: OutboxStore
  send: Send<Body, Answer>
  network: Network
  world: Pick<World, 'now' | 'after' | 'random'>
  signal: AbortSignal
  onlyDue: boolean
  attemptsMax: number
  /** Items that got no answer in earlier flushes. */
  silent: Set<string>
  begin(item: StoredItem): void
  end(outcome: Outcome<Answer>): OutboxItem<Body, Answer>
}

/** The item after a try; `dropped` if a person dropped it meanwhile. */
export interface Outcome<Answer> {
  item: StoredItem
  dropped: boolean
  sent?: { answer: Answer }
}

type Delivery<Answer> =
  | { verdict: 'sent'; answer: Answer; error?: undefined }
  | { verdict: Verdict; error: unknown; answer?: undefined }

/** One flush, under the lock. */
export class Pass<Body, Answer> {
  readonly #options: PassOptions<Body, Answer>
  readonly #tried = new Map<string, OutboxItem<Body, Answer>>()

  constructor(options: PassOptions<Body, Answer>) {
    this.#options = options
  }

  /** Resolves to the items that it tried. */
  async run(): Promise<OutboxItem<Body, Answer>[]> {
    if (await this.#options.network.online()) await this.#runOnline()
    return [...this.#tried.values()]
  }

  async #runOnline(): Promise<void> {
    const { store, signal } = this.#options
    for (let waiting = await this.#waiting(); waiting.length > 0; waiting = await this.#waiting()) {
      for (const { id } of waiting) {
        signal.throwIfAborted()
        // A person may have dropped it meanwhile, or it was sent early as a probe.
        const item = this.#tried.has(id) ? undefined : await store.get(id)
        if (item?.status === 'queued' && !(await this.#mayGoOn(item))) return
      }
    }
  }

  /**
   * Tries an item. If the server is unreachable, the try does not count and the flush ends, because later items must not overtake
   * it. If only this item gets no answer, the try counts as an attempt.
   */
  async #mayGoOn(item: StoredItem): Promise<boolean> {
    if ((await this.#try(item)) === undefined) return true
    if (!(await this.#options.network.online()) || !(await this.#isServerThere(item))) return false
    const silence = await this.#try(item)
    if (silence !== undefined) this.#end(await this.#count(item, silence.error, false))
    return true
  }

  /** If the network cannot tell, the next item is sent as a probe, after this one got no answer in two flushes. */
  async #isServerThere({ id }: StoredItem): Promise<boolean> {
    const { network, silent } = this.#options
    if (network.asks) return true
    const probe = silent.has(id) ? (await this.#waiting()).find((other) => !silent.has(other.id)) : undefined
    if (probe !== undefined && (await this.#try(probe)) === undefined) return true
    // All items were probed, so it starts again.
    if (silent.has(id) && probe === undefined) silent.clear()
    silent.add(probe?.id ?? id)
    return false
  }

  async #waiting(): Promise<StoredItem[]> {
    const { store, world, onlyDue } = this.#options
    const nowMs = world.now()
    // A due time beyond every delay means that the clock was set back.
    const isDue = ({ dueAtMs }: StoredItem) => dueAtMs <= nowMs || dueAtMs > nowMs + DELAY_MAX_MS
    const kept = await store.list()
    return kept.filter((item) => item.status === 'queued' && !this.#tried.has(item.id) && (!onlyDue || isDue(item)))
  }

  /** Undefined if the item was answered. */
  async #try(item: StoredItem): Promise<{ error: unknown } | undefined> {
    const { store, signal, silent, begin } = this.#options
    begin(item)
    let outcome: Outcome<Answer> = { item, dropped: false }
    try {
      const { verdict, answer, error } = await this.#deliver(item)
      // A try that `close` aborted does not count.
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
      // Only `put` writes bodies to the store.
      const delivery = { key, body: body as Body }
      // Also ends a `send` that ignores its signal: it would block all tabs.
      const answer = await within(world, TIMEOUT_MS, signal, (either) => unlessAborted(send(delivery, either), either))
      await refuseErrorAnswer(answer, world)
      return { verdict: 'sent', answer }
    } catch (error) {
      return { verdict: judge(error), error }
    }
  }

  /** Stores an attempt. */
  async #count(item: StoredItem, error: unknown, refused: boolean): Promise<Outcome<Answer>> {
    const { store, world, attemptsMax } = this.#options
    const attempts = item.attempts + 1
    const progress = {
      attempts,
      status: refused || attempts >= attemptsMax ? 'failed' : 'queued',
      dueAtMs: world.now() + dueInMs(attempts, error, world.random),
      error: messageOf(error),
    } as const
    return { item: { ...item, ...progress }, dropped: !(await store.update(item.id, progress)) }
  }

  #end(outcome: Outcome<Answer>): void {
    this.#tried.set(outcome.item.id, this.#options.end(outcome))
  }
}

function judge(error: unknown): Verdict {
  const cause = causeOf(error)
  if (isUnanswered(cause)) return 'unanswered'
  return mayRetry(cause) ? 'again' : 'refused'
}

/** The original error of a `Transient`. */
function causeOf(error: unknown): unknown {
  return error instanceof Transient ? error.cause : error
}

function isUnanswered(error: unknown): boolean {
  if (error instanceof NoAnswer) return true
  if (error instanceof TypeError) return NO_CONNECTION.test(error.message)
  if (error instanceof DOMException) return error.name === 'AbortError' || error.name === 'TimeoutError'
  // The login page of a network, instead of the application's answer.
  return error instanceof ForeignAnswer && error.status < 400
}

/** The message for the list of items. */
function messageOf(error: unknown): string {
  const cause = causeOf(error)
  return (cause instanceof Error ? cause.message : String(cause)).slice(0, MESSAGE_LENGTH_MAX)
}

function dueInMs(attempts: number, error: unknown, random: () => number): number {
  return Math.round(Math.min(DELAY_MAX_MS, retryDelayMs(attempts + SLOWER, error, random)))
}

/** An error answer that `send` returned. */
class ErrorAnswer extends Error {
  override readonly name = 'ErrorAnswer'
  readonly status: number
  readonly code: string | undefined
  readonly shouldRetry: boolean | undefined
  readonly retryAfterMs: number | undefined

  constructor(response: Response, message: string, code: string | undefined, nowMs: number) {
    super(message)
    this.status = response.status
    this.code = code
    const advice = response.headers.get('should-retry')
    this.shouldRetry = advice === null ? undefined : advice.trim().toLowerCase() === 'true'
    this.retryAfterMs = retryAfterMs(response.headers, nowMs)
  }
}

/** An error answer of `send: () => fetch(…)` does not count as a delivery. */
async function refuseErrorAnswer(answer: unknown, world: Pick<World, 'now'>): Promise<void> {
  if (!(answer instanceof Response) || answer.ok) return
  const { error } = await answer.json().catch(() => ({}))
  const { code, message = `The server answered ${answer.status} ${answer.statusText}` } = error ?? {}
  throw new ErrorAnswer(answer, String(message), typeof code === 'string' ? code : undefined, world.now())
}
