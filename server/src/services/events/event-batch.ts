import type { StoredEvent } from '../../core/events/event.ts'

/** What a reader that stands still holds at most, beside a single event: batches are written whole. */
const BATCH_BYTES_MAX = 64 * 1024

/** What its readers are told of an event. */
export type ToldEvent = Pick<StoredEvent, 'n' | 'stage' | 'seq' | 'data' | 'createdAtMs'>

/** Consecutive events of a job, framed, in one piece that all readers share. */
export class EventBatch {
  readonly bytes: Buffer
  /** The cursor of the last event. */
  readonly last: number
  readonly #ends: readonly number[]

  /** @param ends where in the bytes each of the events ends. */
  constructor(bytes: Buffer, last: number, ends: readonly number[]) {
    this.bytes = bytes
    this.last = last
    this.#ends = ends
  }

  /** What comes after a cursor. */
  after(cursor: number): Buffer {
    const left = this.last - cursor
    const end = left < this.#ends.length ? this.#ends[this.#ends.length - 1 - left] : 0
    return end === 0 ? this.bytes : this.bytes.subarray(end)
  }
}

export function batchesOf(events: readonly ToldEvent[], frame: (event: ToldEvent) => string): EventBatch[] {
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
