import type { World } from '@ichido/sdk/world'
import { BadValue, LockTimeout } from '../../core/node/store-errors.ts'
import { BlockedUsers, type HeldBatch } from './blocked-users.ts'

export interface BatcherOptions<Item, Outcome> {
  name: string
  world: World
  itemsMax: number
  bytesMax: number
  /** How many batches may run at the same time. More batches are smaller, and each has a fixed cost. */
  inFlightMax: number
  /** Fewer items than this wait for the running batch instead of starting beside it; default 1. */
  besideMin?: number
  /**
   * Up to this many items are divided among the batches that may begin. More items are one large call, which leaves the
   * second place to the next call. Divided, both calls would wait for each other.
   */
  sharedOutMax?: number
  /** Runs the items in one transaction. It returns one outcome for each, in their order. */
  run(items: Item[]): Promise<Outcome[]>
  /** How much of `bytesMax` an item takes. */
  bytesOf(item: Item): number
  /** The user of an item. Users take turns, so that a busy one does not keep others out. */
  userOf(item: Item): string
  onBatch?(batch: { name: string; items: number; elapsedMs: number }): void
}

interface Waiting<Item, Outcome> {
  item: Item
  bytes: number
  call: Call<Outcome>
  /** The index of the item in its call. */
  place: number
}

/**
 * The items of one call share one promise: a promise for each took a seventh of the time of a call with 1,000 items.
 */
interface Call<Outcome> {
  settled: PromiseSettledResult<Outcome>[]
  open: number
  resolve(settled: PromiseSettledResult<Outcome>[]): void
}

/**
 * Group commit: the items that arrive during one commit are the next batch. It never waits for a timer, so a single
 * item does not wait. Few batches run at the same time, because large statements beat many connections.
 */
export class Batcher<Item, Outcome> {
  readonly #options: BatcherOptions<Item, Outcome>
  readonly #waiting = new Map<string, Waiting<Item, Outcome>[]>()
  readonly #apart: BlockedUsers<Waiting<Item, Outcome>>
  #size = 0
  #inFlight = 0
  #scheduled = false

  constructor(options: BatcherOptions<Item, Outcome>) {
    this.#options = options
    this.#apart = new BlockedUsers({
      world: options.world,
      fit: (line) => take(new Map([['', line]]), options.itemsMax, options.bytesMax).batch.length,
      carryOut: (batch) => this.#carryOut(batch),
      reject: ({ call, place }, error) => settle(call, place, rejected(error)),
      rejoin: (user, line) => this.#rejoin(user, line),
    })
  }

  async add(item: Item): Promise<Outcome> {
    const [settled] = await this.addAll([item], (item) => item)
    if (settled?.status === 'fulfilled') return settled.value
    throw settled?.reason
  }

  /**
   * Each item has its own outcome, at its index, also one that `toItem` refuses. The items may run in different
   * batches, as if they had come one by one.
   */
  addAll<Given>(given: readonly Given[], toItem: (one: Given) => Item): Promise<PromiseSettledResult<Outcome>[]> {
    if (given.length === 0) return Promise.resolve([])
    return new Promise((resolve) => {
      const call: Call<Outcome> = { settled: Array(given.length), open: given.length, resolve }
      given.forEach((one, place) => {
        try {
          this.#queue(toItem(one), call, place)
        } catch (error) {
          settle(call, place, rejected(error))
        }
      })
      this.#schedule()
    })
  }

  #queue(item: Item, call: Call<Outcome>, place: number): void {
    // These calls may throw, and then only this item fails.
    const user = this.#options.userOf(item)
    const waiting = { item, bytes: this.#options.bytesOf(item), call, place }
    if (this.#apart.has(user)) return void this.#apart.push(user, waiting)
    const line = this.#waiting.get(user)
    if (line === undefined) this.#waiting.set(user, [waiting])
    else line.push(waiting)
    this.#size++
  }

  #schedule(): void {
    if (this.#scheduled || this.#size === 0 || !this.#mayBegin()) return
    this.#scheduled = true
    const size = this.#size
    // Calls of the same turn of the event loop belong together, and a store that answers synchronously must not keep
    // new requests from being read.
    this.#options.world.soon(() => {
      this.#scheduled = false
      // While more items arrive, it is better to wait for the running batch: one batch of 24 jobs costs the database
      // less than two of 12. The next batch starts beside it only when no more items come.
      const growing = this.#inFlight > 0 && this.#size > size && this.#size < this.#options.itemsMax
      if (!growing) void this.#next()
      this.#schedule()
    })
  }

  #mayBegin(): boolean {
    const { inFlightMax, besideMin = 1 } = this.#options
    return this.#inFlight === 0 || (this.#inFlight < inFlightMax && this.#size >= besideMin)
  }

  async #next(): Promise<void> {
    const { name, world, inFlightMax, besideMin = 1, sharedOutMax = Number.POSITIVE_INFINITY, onBatch } = this.#options
    const beginning = Math.min(inFlightMax - this.#inFlight, Math.floor(this.#size / besideMin))
    const batches = this.#size > sharedOutMax ? 1 : beginning
    const batch = this.#take(Math.ceil(this.#size / Math.max(1, batches)))
    this.#inFlight++
    const began = world.monotonic()
    const held = await this.#carryOut(batch)
    if (held !== null) this.#setApart(held)
    this.#inFlight--
    this.#schedule()
    onBatch?.({ name, items: batch.length, elapsedMs: world.monotonic() - began })
  }

  #take(share: number): Waiting<Item, Outcome>[] {
    const { itemsMax, bytesMax } = this.#options
    const { batch, taken } = take(this.#waiting, Math.min(share, itemsMax), bytesMax)
    this.#size -= batch.length
    for (const [user, count] of taken) {
      const line = this.#waiting.get(user)
      if (line === undefined) continue
      this.#waiting.delete(user)
      // The user goes to the end, because it was served last.
      if (line.length > count) this.#waiting.set(user, line.slice(count))
    }
    return batch
  }

  /**
   * A bad item must not fail its neighbours: the batch is halved until the bad item is alone. Items that ran into a
   * lock are returned, and not settled.
   */
  async #carryOut(batch: Waiting<Item, Outcome>[]): Promise<HeldBatch<Waiting<Item, Outcome>> | null> {
    try {
      const outcomes = await this.#options.run(batch.map(({ item }) => item))
      batch.forEach(({ call, place }, i) => {
        const value = outcomes[i]
        if (value !== undefined) settle(call, place, { status: 'fulfilled', value })
        else settle(call, place, rejected(new Error(`${this.#options.name}: no outcome for item ${i}`)))
      })
      return null
    } catch (error) {
      if (error instanceof LockTimeout) return { waiting: batch, error }
      if (!(error instanceof BadValue) || batch.length === 1) {
        for (const { call, place } of batch) settle(call, place, rejected(error))
        return null
      }
      const half = Math.ceil(batch.length / 2)
      const first = await this.#carryOut(batch.slice(0, half))
      const second = await this.#carryOut(batch.slice(half))
      if (first === null || second === null) return first ?? second
      return { ...second, waiting: [...first.waiting, ...second.waiting] }
    }
  }

  /** From now on each of these users runs alone, so that only the blocked one waits. */
  #setApart({ waiting, error }: HeldBatch<Waiting<Item, Outcome>>): void {
    const lines = Map.groupBy(waiting, ({ item }) => this.#options.userOf(item))
    for (const [user, line] of lines) {
      const more = this.#waiting.get(user) ?? []
      this.#waiting.delete(user)
      this.#size -= more.length
      line.push(...more)
    }
    this.#apart.hold(lines, error)
  }

  #rejoin(user: string, line: readonly Waiting<Item, Outcome>[]): void {
    if (line.length === 0) return
    this.#waiting.set(user, [...(this.#waiting.get(user) ?? []), ...line])
    this.#size += line.length
    this.#schedule()
  }
}

/** Takes one item of each user in turn, until the batch is full. An item that is larger than a batch goes alone. */
function take<One extends { bytes: number }>(
  lines: ReadonlyMap<string, readonly One[]>,
  itemsMax: number,
  bytesMax: number,
): { batch: One[]; taken: Map<string, number> } {
  const batch: One[] = []
  let bytes = 0
  const taken = new Map<string, number>()
  for (let round = 0; ; round++) {
    let found = false
    for (const [user, line] of lines) {
      const next = line[round]
      if (next === undefined) continue
      if (batch.length > 0 && (batch.length >= itemsMax || bytes + next.bytes > bytesMax)) return { batch, taken }
      found = true
      batch.push(next)
      bytes += next.bytes
      taken.set(user, round + 1)
    }
    if (!found) return { batch, taken }
  }
}

function settle<Outcome>(call: Call<Outcome>, place: number, settled: PromiseSettledResult<Outcome>): void {
  call.settled[place] = settled
  if (--call.open === 0) call.resolve(call.settled)
}

const rejected = (reason: unknown): PromiseRejectedResult => ({ status: 'rejected', reason })
