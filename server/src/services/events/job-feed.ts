import type { News } from '../../bus/port.ts'
import { isOutage } from '../../core/node/store-errors.ts'
import { isFinal, type RunState } from '../../core/run/run-state.ts'
import { type EventRow, type EventRows, findEvents } from '../../store/events/events.ts'
import type { Store } from '../../store/port.ts'
import { notFound } from '../not-found.ts'
import { batchesOf, type EventBatch, type ToldEvent } from './event-batch.ts'
import { KeptBatches } from './kept-batches.ts'

/** Events of one read; each has up to 64 KiB. */
export const PAGE_MAX = 64
/** What a feed keeps for readers that are a little behind: the more of them, the more; the last batch always. */
const TAIL_BYTES = { perFollower: 16 * 1024, max: 1024 * 1024 }
/** What it keeps of what was read for those who are further behind. */
const BEHIND_BYTES = { perFollower: 16 * 1024, max: 4 * 1024 * 1024 }

/** No event comes right after it: everything before was lost. */
export const UNKNOWN_CURSOR = -1

export interface FeedPage extends Omit<EventRows, 'events'> {
  /** Without a gap from the cursor on. */
  events: ToldEvent[]
  /** What comes after the cursor is not kept any more, or the cursor is none that was given out. */
  lost: boolean
}

/** A page whose events are framed, for all who want it. */
export interface FramedPage extends Omit<FeedPage, 'events'> {
  batches: readonly EventBatch[]
}

/** Null when there is no such job (any more). */
export async function readPage(store: Store, jobId: string, after: number, max: number): Promise<FeedPage | null> {
  const found = await store.read(findEvents(jobId, after, max))
  if (found === null) return null
  const rows = found.events.map(toTold)
  const gap = rows.findIndex(({ n }, i) => n !== after + 1 + i)
  const events = gap < 0 ? rows : rows.slice(0, gap)
  return { ...found, events, lost: events.length === 0 && after !== found.lastN }
}

function toTold({ n, stage, seq, data, created_at }: EventRow): ToldEvent {
  return { n, stage, seq, data, createdAtMs: created_at }
}

/** Who is told of what a feed has. */
export interface Follower {
  /** There may be something new. */
  pump(): void
  /** There is nothing any more, and why. */
  fail(error: unknown): void
}

/**
 * The events of one job as they come, read once for all who follow it. The store is the truth: a wake-up only says that it
 * is worth a look.
 */
export class JobFeed {
  readonly jobId: string
  readonly followers = new Set<Follower>()
  /** The cursor up to which it has read. */
  seen: number
  /** The last events, without a gap up to `seen`. */
  tail: EventBatch[] = []
  /** The cursor after which the tail begins. */
  tailAfter: number
  /** How the job has ended, once everything up to its end was read. */
  ended: RunState | null = null
  readonly #behind = new KeptBatches()
  readonly #reading = new Map<number, Promise<FramedPage | null>>()
  readonly #store: Store
  readonly #frame: (event: ToldEvent) => string
  #tailBytes = 0
  #looking = false
  /** There may be events up to here. */
  #heardOf = 0

  constructor(store: Store, frame: (event: ToldEvent) => string, jobId: string, seen: number) {
    this.jobId = jobId
    this.seen = seen
    this.tailAfter = seen
    this.#store = store
    this.#frame = frame
  }

  /** What was stored right after what it has read is as good as read. */
  hear({ cursor, events = [] }: News = { cursor: Number.POSITIVE_INFINITY }): void {
    if (!this.#looking && events.length > 0 && events.every(({ n }, i) => n === this.seen + 1 + i)) {
      this.#append(events)
      this.pump()
    }
    void this.look(cursor)
  }

  /** @param cursor of the event that was heard of, if that is known: it may have been read by now. */
  async look(cursor = Number.POSITIVE_INFINITY): Promise<void> {
    this.#heardOf = Math.max(this.#heardOf, cursor)
    if (this.#looking) return
    this.#looking = true
    try {
      while (this.#heardOf > this.seen && this.followers.size > 0) {
        // Whatever was said of it: one look is enough.
        this.#heardOf = 0
        this.#take(await readPage(this.#store, this.jobId, this.seen, PAGE_MAX))
      }
    } catch (error) {
      // A store that does not answer is asked again by the next poll.
      if (!isOutage(error)) this.#fail(error)
    } finally {
      this.#looking = false
    }
  }

  /** The batch after a cursor that the tail does not reach back to, if it was read lately. */
  keptAfter(cursor: number): EventBatch | undefined {
    return this.#behind.after(cursor)
  }

  /** Reads on from there. Whoever wants the same meanwhile is answered along. */
  readAfter(cursor: number, max: number): Promise<FramedPage | null> {
    const reading = this.#reading.get(cursor) ?? this.#readAfter(cursor, max)
    this.#reading.set(cursor, reading)
    return reading
  }

  framed({ events, ...page }: FeedPage): FramedPage {
    return { ...page, batches: batchesOf(events, this.#frame) }
  }

  pump(): void {
    for (const follower of this.followers) follower.pump()
  }

  #fail(error: unknown): void {
    for (const follower of this.followers) follower.fail(error)
  }

  async #readAfter(cursor: number, max: number): Promise<FramedPage | null> {
    try {
      const page = await readPage(this.#store, this.jobId, cursor, max)
      const framed = page && this.framed(page)
      this.#behind.keep(cursor, framed?.batches ?? [], this.#share(BEHIND_BYTES))
      return framed
    } finally {
      this.#reading.delete(cursor)
    }
  }

  #share({ perFollower, max }: { perFollower: number; max: number }): number {
    return Math.min(this.followers.size * perFollower, max)
  }

  #take(page: FeedPage | null): void {
    if (page === null) {
      this.#fail(notFound('job', this.jobId))
      return
    }
    if (page.lost) this.#skipTo(page.lastN)
    else this.#append(page.events)
    // A page that was full, or the end was not that of these events: there is more to know.
    if (this.seen !== page.lastN || page.events.length === PAGE_MAX) this.#heardOf = Number.POSITIVE_INFINITY
    this.ended = isFinal(page.state) && this.seen >= page.lastN ? page.state : null
    this.pump()
  }

  #append(events: readonly ToldEvent[]): void {
    for (const batch of batchesOf(events, this.#frame)) {
      this.tail.push(batch)
      this.#tailBytes += batch.bytes.length
      this.seen = batch.last
    }
    const bytesMax = this.#share(TAIL_BYTES)
    while (this.#tailBytes > bytesMax && this.tail.length > 1) {
      const dropped = this.tail.shift()
      this.#tailBytes -= dropped?.bytes.length ?? 0
      this.tailAfter = dropped?.last ?? this.tailAfter
    }
  }

  /** Each reader finds out by itself what it has missed. */
  #skipTo(cursor: number): void {
    this.tail = []
    this.#tailBytes = 0
    this.seen = cursor
    this.tailAfter = cursor
  }
}
