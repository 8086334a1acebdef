import type { News } from '../../bus/port.ts'
import type { StoredEvent } from '../../core/events/event.ts'
import { isOutage } from '../../core/node/store-errors.ts'
import { isFinal, type RunState } from '../../core/run/run-state.ts'
import { type EventRow, type EventRows, findEvents } from '../../store/events/events.ts'
import type { Store } from '../../store/port.ts'
import { notFound } from '../answers.ts'

/** Batches are written whole, so a stalled reader holds at most this much, or one larger event. */
const BATCH_BYTES_MAX = 64 * 1024
/** Events of one read; each has up to 64 KiB. */
export const PAGE_MAX = 64
/** A feed keeps this much for readers that are a little behind, and always the last batch. */
const TAIL_BYTES = { perFollower: 16 * 1024, max: 1024 * 1024 }
/** It keeps this much of the pages that were read for readers far behind. */
const BEHIND_BYTES = { perFollower: 16 * 1024, max: 4 * 1024 * 1024 }

/** The cursor of a reader that has lost all events before. No event follows it directly. */
export const UNKNOWN_CURSOR = -1

/** The part of an event that readers get. */
export type ToldEvent = Pick<StoredEvent, 'n' | 'stage' | 'seq' | 'data' | 'createdAtMs'>

export interface FeedPage extends Omit<EventRows, 'events'> {
  /** The events after the cursor, without a gap. */
  events: ToldEvent[]
  /** The events after the cursor are no longer stored, or the cursor was never given out. */
  lost: boolean
}

/** A page of framed events, which several readers can share. */
export interface FramedPage extends Omit<FeedPage, 'events'> {
  batches: readonly EventBatch[]
}

/** Null if there is no such job, or no longer. */
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

export interface Follower {
  /** There may be new events. */
  pump(): void
  /** The feed has ended with an error. */
  fail(error: unknown): void
}

/**
 * The events of one job as they come, read once for all its readers. The store is the truth: a wake-up only says that a
 * look is worthwhile.
 */
export class JobFeed {
  readonly jobId: string
  readonly followers = new Set<Follower>()
  /** The cursor of the last event that the feed has read. */
  seen: number
  /** The last events, without a gap up to `seen`. */
  tail: EventBatch[] = []
  /** The cursor after which the tail begins. */
  tailAfter: number
  /** The final state of the job, after all its events were read. */
  ended: RunState | null = null
  readonly #behind = new KeptBatches()
  readonly #reading = new Map<number, Promise<FramedPage | null>>()
  readonly #store: Store
  readonly #frame: (event: ToldEvent) => string
  #tailBytes = 0
  #looking = false
  /** The highest cursor that a wake-up has named. */
  #heardOf = 0

  constructor(store: Store, frame: (event: ToldEvent) => string, jobId: string, seen: number) {
    this.jobId = jobId
    this.seen = seen
    this.tailAfter = seen
    this.#store = store
    this.#frame = frame
  }

  /** Events that directly follow the last read event need no read. */
  hear({ cursor, events = [] }: News = { cursor: Number.POSITIVE_INFINITY }): void {
    if (!this.#looking && events.length > 0 && events.every(({ n }, i) => n === this.seen + 1 + i)) {
      this.#append(events)
      this.pump()
    }
    void this.look(cursor)
  }

  /** @param cursor of the new event, if known: the feed may have read it already. */
  async look(cursor = Number.POSITIVE_INFINITY): Promise<void> {
    this.#heardOf = Math.max(this.#heardOf, cursor)
    if (this.#looking) return
    this.#looking = true
    try {
      while (this.#heardOf > this.seen && this.followers.size > 0) {
        // One read covers all wake-ups before it.
        this.#heardOf = 0
        this.#take(await readPage(this.#store, this.jobId, this.seen, PAGE_MAX))
      }
    } catch (error) {
      // After an outage the next poll reads again.
      if (!isOutage(error)) this.#fail(error)
    } finally {
      this.#looking = false
    }
  }

  /** The batch after a cursor before the tail, if it was read lately. */
  keptAfter(cursor: number): EventBatch | undefined {
    return this.#behind.after(cursor)
  }

  /** Reads the next page. Calls for the same cursor share one read. */
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
    // The page was full, or there are later events: read again.
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

  /** Each reader finds out by itself which events it has missed. */
  #skipTo(cursor: number): void {
    this.tail = []
    this.#tailBytes = 0
    this.seen = cursor
    this.tailAfter = cursor
  }
}

/** Consecutive framed events of a job, in one buffer that all readers share. */
export class EventBatch {
  readonly bytes: Buffer
  /** The cursor of the last event. */
  readonly last: number
  readonly #ends: readonly number[]

  /** @param ends the offset in the bytes at which each event ends. */
  constructor(bytes: Buffer, last: number, ends: readonly number[]) {
    this.bytes = bytes
    this.last = last
    this.#ends = ends
  }

  /** The bytes of the events after a cursor. */
  after(cursor: number): Buffer {
    const left = this.last - cursor
    const end = left < this.#ends.length ? this.#ends[this.#ends.length - 1 - left] : 0
    return end === 0 ? this.bytes : this.bytes.subarray(end)
  }
}

function batchesOf(events: readonly ToldEvent[], frame: (event: ToldEvent) => string): EventBatch[] {
  const batches: EventBatch[] = []
  let frames: Buffer[] = []
  let ends: number[] = []
  let length = 0
  const close = (last: number) => {
    if (frames.length > 0) batches.push(new EventBatch(Buffer.concat(frames), last, ends))
    frames = []
    ends = []
    length = 0
  }
  for (const event of events) {
    const bytes = Buffer.from(frame(event))
    if (length + bytes.length > BATCH_BYTES_MAX) close(event.n - 1)
    frames.push(bytes)
    length += bytes.length
    ends.push(length)
  }
  close(events.at(-1)?.n ?? 0)
  return batches
}

/** Batches that were read for readers far behind, by the cursor before them. Many readers have the same cursor. */
class KeptBatches {
  readonly #batches = new Map<number, EventBatch>()
  #bytes = 0

  after(cursor: number): EventBatch | undefined {
    return this.#batches.get(cursor)
  }

  /** The first batch follows the cursor, and each other batch follows the one before. The oldest batches are dropped. */
  keep(cursor: number, batches: readonly EventBatch[], bytesMax: number): void {
    let after = cursor
    for (const batch of batches) {
      this.#drop(after)
      this.#batches.set(after, batch)
      this.#bytes += batch.bytes.length
      after = batch.last
    }
    for (const oldest of this.#batches.keys()) {
      if (this.#bytes <= bytesMax) return
      this.#drop(oldest)
    }
  }

  #drop(cursor: number): void {
    this.#bytes -= this.#batches.get(cursor)?.bytes.length ?? 0
    this.#batches.delete(cursor)
  }
}
