import { IchidoError } from '@ichido/sdk/protocol'
import { type Caller, mayRead } from '../../core/limits/roles.ts'
import { isFinal } from '../../core/run/run-state.ts'
import { findFeedEnds } from '../../store/events/events.ts'
import { notFound, requireId } from '../answers.ts'
import type { Deps } from '../deps.ts'
import type { EventService } from './events.ts'
import { JobFeed, readPage } from './job-feed.ts'
import { FIRST_PAGE_MAX, type Framing, type Sink, Subscriber, type SubscriberDeps } from './subscriber.ts'

/** Where to begin: after a cursor, or after the cursor of the event with this seq. */
export type FeedBeginning = { after: number } | { lastSeq: number }

export interface FeedOpening {
  /** The job has ended, and there is no event after the requested cursor. */
  over: boolean
  /** Begins to send events to the sink. */
  subscribe(sink: Sink): Subscriber
}

/** Wake-ups may get lost, so one query looks at all followed jobs this often. */
const POLL_MS = 1_000
const POLL_JOBS_MAX = 1_000
/** Proxies close a connection that is silent for a minute, and some close it earlier. */
export const STREAM_HEARTBEAT_MS = 15_000
/**
 * A stream ends after this long, so that the client connects again with its token, which may be revoked. The times
 * differ, so that not all clients connect at once.
 */
export const STREAM_LIFETIME_MS = { min: 12 * 60_000, max: 15 * 60_000 }

/** All readers of events on this node, with one feed for each job. */
export class Feeds {
  readonly #deps: Pick<Deps, 'world' | 'bus' | 'limits' | 'store'> & SubscriberDeps
  readonly #feeds = new Map<string, { feed: JobFeed; unsubscribe: () => void }>()
  /** The end of the lifetime of each subscriber. */
  readonly #subscribers = new Map<Subscriber, number>()
  #opening = 0
  #callOffPoll: (() => void) | null = null
  #polling = false
  #beatMs = Number.NEGATIVE_INFINITY
  #stopped = false

  constructor({ world, bus, limits, store, meter }: Deps, events: EventService, framing: Framing) {
    this.#deps = { world, bus, limits, store, meter, events, framing }
  }

  /** How many readers have all events, and how many do not. */
  get counts(): { current: number; behind: number } {
    const behind = [...this.#subscribers.keys()].filter(({ isBehind }) => isBehind).length
    return { current: this.#subscribers.size - behind, behind }
  }

  async open(caller: Caller, jobId: string, beginning: FeedBeginning): Promise<FeedOpening> {
    requireId('job', jobId)
    const { limits, store, events } = this.#deps
    if (this.#stopped || this.#subscribers.size + this.#opening >= limits.subscribersMax) {
      throw new IchidoError('UNAVAILABLE', 'This node takes no more subscribers; use another node, or try again later')
    }
    this.#opening++
    try {
      const after = 'after' in beginning ? beginning.after : await events.cursorOfSeq(jobId, beginning.lastSeq)
      const page = await readPage(store, jobId, after, FIRST_PAGE_MAX)
      if (page === null || !mayRead(caller, page.userId)) throw notFound('job', jobId)
      return {
        over: isFinal(page.state) && after === page.lastN,
        subscribe: (sink) => {
          const leave = (gone: Subscriber) => this.#leave(gone, jobId)
          const subscriber = new Subscriber(this.#deps, this.#feedOf(jobId, page.lastN), sink, after, leave)
          this.#keep(subscriber)
          subscriber.begin(page)
          if (this.#stopped) subscriber.stop()
          return subscriber
        },
      }
    } finally {
      this.#opening--
    }
  }

  /** Ends all streams, so that clients connect to another node. */
  stop(): void {
    this.#stopped = true
    for (const subscriber of this.#subscribers.keys()) subscriber.stop()
  }

  #feedOf(jobId: string, lastN: number): JobFeed {
    const { world, store, framing, bus } = this.#deps
    const known = this.#feeds.get(jobId)
    if (known !== undefined) return known.feed
    const feed = new JobFeed(store, framing.event, jobId, lastN)
    this.#feeds.set(jobId, { feed, unsubscribe: bus.subscribe(`job:${jobId}`, (news) => feed.hear(news)) })
    // Events may have been stored before the subscription began.
    world.soon(() => void feed.look())
    return feed
  }

  #keep(subscriber: Subscriber): void {
    const { world } = this.#deps
    const { min, max } = STREAM_LIFETIME_MS
    this.#subscribers.set(subscriber, world.monotonic() + min + world.random() * (max - min))
    if (this.#callOffPoll === null && !this.#polling) this.#pollLater()
  }

  #leave(subscriber: Subscriber, jobId: string): void {
    this.#subscribers.delete(subscriber)
    const followed = this.#feeds.get(jobId)
    if (followed?.feed.followers.size === 0) {
      followed.unsubscribe()
      this.#feeds.delete(jobId)
    }
    if (this.#subscribers.size > 0) return
    this.#callOffPoll?.()
    this.#callOffPoll = null
  }

  #pollLater(): void {
    this.#callOffPoll = this.#deps.world.after(POLL_MS, () => void this.#poll())
  }

  async #poll(): Promise<void> {
    this.#callOffPoll = null
    this.#polling = true
    this.#tend()
    // After an outage the next poll reads again.
    await this.#lookAtAll().catch(() => {})
    this.#polling = false
    if (this.#subscribers.size > 0) this.#pollLater()
  }

  #tend(): void {
    const nowMs = this.#deps.world.monotonic()
    const beat = nowMs - this.#beatMs >= STREAM_HEARTBEAT_MS
    if (beat) this.#beatMs = nowMs
    for (const [subscriber, untilMs] of this.#subscribers) {
      if (nowMs >= untilMs) subscriber.stop()
      else if (beat) subscriber.beat()
    }
  }

  async #lookAtAll(): Promise<void> {
    const jobIds = [...this.#feeds.keys()]
    for (let i = 0; i < jobIds.length; i += POLL_JOBS_MAX) {
      const some = jobIds.slice(i, i + POLL_JOBS_MAX)
      const ends = await this.#deps.store.read(findFeedEnds(some))
      for (const jobId of some) {
        const feed = this.#feeds.get(jobId)?.feed
        const end = ends.get(jobId)
        const isKnown = end?.lastN === feed?.seen && end !== undefined && isFinal(end.state) === (feed?.ended !== null)
        if (isKnown) feed?.pump()
        else void feed?.look()
      }
    }
  }
}
