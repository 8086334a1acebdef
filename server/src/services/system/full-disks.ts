import type { World } from '@ichido/sdk/world'
import type { Blobs, Receiving } from '../../blobs/port.ts'
import { FULL_PLACES, type FullPlace, StoreFull } from '../../core/node/store-full.ts'
import type { LogArchive } from '../../log-archive/port.ts'
import type { Store } from '../../store/port.ts'

/** A time during which a disk was full, as this node saw it. */
export interface FullTime {
  alertId: string
  place: FullPlace
  message: string
  beganAtMs: number
  /** Null while it is full. */
  endedAtMs: number | null
}

export interface FullDisksOptions {
  world: Pick<World, 'now' | 'uuid'>
  store: Store
  blobs?: Blobs | undefined
  logArchive?: LogArchive | undefined
}

/** Times that wait to be recorded. A disk that fills up more often than this is known to be too small. */
const ENDED_MAX = 100

/**
 * Knows which disks are full. A write that fails for lack of room begins such a time. A later write that succeeds does not end
 * it, for a small one may fit into a page that has room: `look` ends it, by writing something larger.
 */
export class FullDisks {
  readonly #options: FullDisksOptions
  readonly #full = new Map<FullPlace, FullTime>()
  readonly #listeners = new Set<(time: FullTime) => void>()
  #ended: FullTime[] = []

  constructor(options: FullDisksOptions) {
    this.#options = options
  }

  /** Those that are full now. */
  get current(): readonly FullTime[] {
    return [...this.#full.values()]
  }

  /** 1 for each that is full, else 0. */
  get counts(): Record<FullPlace, number> {
    const entries = FULL_PLACES.map((place) => [place, this.#full.has(place) ? 1 : 0] as const)
    return Object.fromEntries(entries) as Record<FullPlace, number>
  }

  /** Those that are over and not recorded yet, oldest first. */
  get ended(): readonly FullTime[] {
    return this.#ended
  }

  recorded(times: readonly FullTime[]): void {
    this.#ended = this.#ended.filter((time) => !times.includes(time))
  }

  /** Told when a disk is found full, and when it has room again. */
  onChange(callback: (time: FullTime) => void): void {
    this.#listeners.add(callback)
  }

  /** Tries whether the full disks have room again. */
  async look(): Promise<null> {
    const { store, blobs } = this.#options
    for (const time of this.current) {
      try {
        await (time.place === 'store' ? store.requireRoom() : blobs?.requireRoom())
      } catch (error) {
        if (error instanceof StoreFull) continue
        throw error
      }
      this.#end(time)
    }
    return null
  }

  /** The same store, whose failures for lack of room are heard here. */
  watchStore(): Store {
    const { store } = this.#options
    return {
      ...store,
      write: (command) => this.#hear(store.write(command)),
      read: (command) => this.#hear(store.read(command)),
    }
  }

  watchBlobs(blobs: Blobs): Blobs {
    const watchReceiving = (receiving: Receiving): Receiving => ({
      take: (...args) => this.#hear(receiving.take(...args)),
      seal: () => this.#hear(receiving.seal()),
    })
    return {
      ...blobs,
      receive: async (...args) => watchReceiving(await this.#hear(blobs.receive(...args))),
      place: (...args) => this.#hear(blobs.place(...args)),
    }
  }

  watchLogArchive(logArchive: LogArchive): LogArchive {
    return { ...logArchive, write: (...args) => this.#hear(logArchive.write(...args)) }
  }

  async #hear<T>(work: Promise<T>): Promise<T> {
    try {
      return await work
    } catch (error) {
      if (error instanceof StoreFull) this.#begin(error)
      throw error
    }
  }

  #begin({ place, message }: StoreFull): void {
    if (this.#full.has(place)) return
    const { world } = this.#options
    const time: FullTime = { alertId: world.uuid(), place, message, beganAtMs: world.now(), endedAtMs: null }
    this.#full.set(place, time)
    for (const listener of this.#listeners) listener(time)
  }

  #end(time: FullTime): void {
    const over = { ...time, endedAtMs: this.#options.world.now() }
    this.#full.delete(time.place)
    this.#ended = [...this.#ended, over].slice(-ENDED_MAX)
    for (const listener of this.#listeners) listener(over)
  }
}
