import type { JobStateShape } from '@ichido/sdk/protocol'
import { isOutage } from '../../core/node/store-errors.ts'
import type { RunState } from '../../core/run/run-state.ts'
import { LOCAL_ADMIN } from '../access/access.ts'
import { notFound } from '../answers.ts'
import type { Meter } from '../system/meter.ts'
import type { EventService } from './events.ts'
import {
  type EventBatch,
  type FeedPage,
  type Follower,
  type FramedPage,
  type JobFeed,
  PAGE_MAX,
  type ToldEvent,
  UNKNOWN_CURSOR,
} from './job-feed.ts'

/** The receiver of a subscriber's events. */
export interface Sink {
  /** False: write nothing more until it has drained. */
  write(bytes: Buffer | string): boolean
  end(): void
  /** Sends the error, and ends. */
  fail(error: unknown): void
}

/** The format of a stream. */
export interface Framing {
  event(event: ToldEvent): string
  /** Some events were lost. The stream continues after `cursor`. */
  reset(state: JobStateShape, cursor: number): string
  /** The job has ended, and everything was sent. */
  end(state: RunState): string
  heartbeat: string
}

export interface SubscriberDeps {
  events: EventService
  framing: Framing
  meter: Pick<Meter, 'streamBroken'>
}

/** Most readers have few events to catch up on, and some events are large. */
export const FIRST_PAGE_MAX = 16

/**
 * A reader of a feed at its own pace. Events that it has not taken stay in the store: it holds at most the last batch
 * that it gave to its sink.
 */
export class Subscriber implements Follower {
  readonly #deps: SubscriberDeps
  readonly #feed: JobFeed
  readonly #sink: Sink
  #cursor: number
  readonly #leave: () => void
  #stalled = false
  #pageMax = FIRST_PAGE_MAX
  #pulling = false
  #closed = false

  /** @param leave is called when it is closed. */
  constructor(deps: SubscriberDeps, feed: JobFeed, sink: Sink, cursor: number, leave: (self: Subscriber) => void) {
    this.#deps = deps
    this.#feed = feed
    this.#sink = sink
    this.#cursor = cursor
    this.#leave = () => leave(this)
  }

  get isBehind(): boolean {
    return this.#stalled || this.#cursor < this.#feed.seen
  }

  /** Begins with the page that was read when it opened. */
  begin(page: FeedPage): void {
    this.#feed.followers.add(this)
    void this.#pull(async () => this.#feed.framed(page))
  }

  drained(): void {
    this.#stalled = false
    this.pump()
  }

  pump(): void {
    if (this.#stalled || this.#pulling || this.#closed) return
    this.#takeKept()
    const { seen, tail, tailAfter, ended } = this.#feed
    if (this.#cursor < seen && !this.#stalled) {
      if (this.#cursor < tailAfter) return void this.#pull(() => this.#feed.readAfter(this.#cursor, this.#pageMax))
      this.#take(tail)
    }
    if (ended !== null && this.#cursor >= seen && !this.#stalled) this.#finish(ended)
  }

  fail(error: unknown): void {
    if (this.#closed) return
    this.close()
    this.#sink.fail(error)
  }

  beat(): void {
    if (!this.#stalled) this.#write(this.#deps.framing.heartbeat)
  }

  /** Ends the stream. The client connects again, here or to another node. */
  stop(): void {
    if (this.#closed) return
    this.close()
    this.#sink.end()
  }

  /** The sink is closed. */
  close(): void {
    if (this.#closed) return
    this.#closed = true
    this.#feed.followers.delete(this)
    this.#leave()
  }

  #finish(state: RunState): void {
    this.#sink.write(this.#deps.framing.end(state))
    this.stop()
  }

  #write(bytes: Buffer | string): void {
    this.#stalled = !this.#sink.write(bytes)
  }

  #take(batches: readonly EventBatch[]): void {
    for (const batch of batches) {
      if (this.#stalled) return
      if (batch.last <= this.#cursor) continue
      this.#write(batch.after(this.#cursor))
      this.#cursor = batch.last
    }
  }

  /** Another reader that is behind may have read the same batches. */
  #takeKept(): void {
    while (this.#cursor < this.#feed.tailAfter && !this.#stalled) {
      const batch = this.#feed.keptAfter(this.#cursor)
      if (batch === undefined) return
      this.#take([batch])
    }
  }

  #takePage(batches: readonly EventBatch[]): void {
    const before = this.#cursor
    this.#take(batches)
    // The next page is smaller if the reader could not take this one.
    this.#pageMax = Math.min(PAGE_MAX, Math.max(1, (this.#cursor - before) * 2))
  }

  async #pull(read: () => Promise<FramedPage | null>): Promise<void> {
    this.#pulling = true
    try {
      const page = await read()
      if (this.#closed) return
      if (page === null) return this.fail(notFound('job', this.#feed.jobId))
      if (page.lost) await this.#reset(page.lastN)
      else this.#takePage(page.batches)
    } catch (error) {
      // After an outage the next poll of the feed continues here.
      if (!isOutage(error)) this.fail(error)
      return
    } finally {
      this.#pulling = false
    }
    this.pump()
  }

  async #reset(lastN: number): Promise<void> {
    const { events, framing, meter } = this.#deps
    // If the store does not answer now, the next page counts as lost, too.
    this.#cursor = UNKNOWN_CURSOR
    const state = await events.state(LOCAL_ADMIN, this.#feed.jobId)
    if (this.#closed) return
    this.#cursor = Math.max(lastN, state.event?.cursor ?? 0)
    meter.streamBroken('reset')
    this.#write(framing.reset(state, this.#cursor))
  }
}
