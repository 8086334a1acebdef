import { ALERT_RULES, type AlertShape, type Page } from '@ichido/sdk/protocol'
import type { World } from '@ichido/sdk/world'
import type { Blobs, Receiving } from '../../blobs/port.ts'
import { FULL_PLACES, type FullPlace, StoreFull } from '../../core/node/store-errors.ts'
import type { LogArchive } from '../../log-archive/port.ts'
import type { Store } from '../../store/port.ts'
import { type Alert, type AlertFilter, countOpenAlerts, listAlerts } from '../../store/system/alerts.ts'
import { iso, isoOrNull } from '../answers.ts'

/** The maximum of ended periods that are not recorded yet. */
const ENDED_MAX = 100

/**
 * Reads the alerts, which the leader opens and closes. A full store cannot store an alert, so the alert of a full disk comes
 * from the memory of this node. The leader stores it when there is room.
 */
export interface AlertService {
  list(filter: AlertFilter, limit: number, cursor: string | null): Promise<Page<AlertShape>>
  /** How many alerts are open, by rule. */
  counts(): Promise<Record<string, number>>
}

const NONE = Object.fromEntries(ALERT_RULES.map((rule) => [rule, 0]))

export function createAlertService({ store, fullDisks }: { store: Store; fullDisks: FullDisks }): AlertService {
  return {
    async list(filter, limit, cursor) {
      const { rows, next } = await store.read(listAlerts(filter, limit, cursor))
      const { rule } = filter
      const tellsFull = cursor === null && (rule === null || rule === 'store_full')
      const full = tellsFull ? fullDisks.current.map(renderFull) : []
      return { data: [...full, ...rows.map(render)], next_cursor: next }
    },
    counts: async () => ({
      ...NONE,
      ...(await store.read(countOpenAlerts())),
      store_full: fullDisks.current.length,
    }),
  }
}

function renderFull({ alertId, place, message, beganAtMs }: FullTime): AlertShape {
  return render({ alertId, rule: 'store_full', subject: place, message, openedAtMs: beganAtMs, closedAtMs: null })
}

function render({ alertId, openedAtMs, closedAtMs, ...alert }: Alert): AlertShape {
  return { alert_id: alertId, ...alert, opened_at: iso(openedAtMs), closed_at: isoOrNull(closedAtMs) }
}

/** A period in which this node found a disk full. */
export interface FullTime {
  alertId: string
  place: FullPlace
  message: string
  beganAtMs: number
  /** Null while the disk is full. */
  endedAtMs: number | null
}

interface FullDisksOptions {
  world: Pick<World, 'now' | 'uuid'>
  store: Store
  blobs?: Blobs | undefined
  logArchive?: LogArchive | undefined
}

/**
 * Knows which disks are full. A write that fails for lack of room begins such a period. A later successful write does not
 * end it, because a small write may fit into a page that has room. `look` ends the period by a larger write.
 */
export class FullDisks {
  readonly #options: FullDisksOptions
  readonly #full = new Map<FullPlace, FullTime>()
  readonly #listeners = new Set<(time: FullTime) => void>()
  #ended: FullTime[] = []

  constructor(options: FullDisksOptions) {
    this.#options = options
  }

  /** The disks that are full now. */
  get current(): readonly FullTime[] {
    return [...this.#full.values()]
  }

  /** 1 for each full disk, else 0. */
  get counts(): Record<FullPlace, number> {
    const entries = FULL_PLACES.map((place) => [place, this.#full.has(place) ? 1 : 0] as const)
    return Object.fromEntries(entries) as Record<FullPlace, number>
  }

  /** The ended periods that are not recorded yet, oldest first. */
  get ended(): readonly FullTime[] {
    return this.#ended
  }

  recorded(times: readonly FullTime[]): void {
    this.#ended = this.#ended.filter((time) => !times.includes(time))
  }

  /** The callback runs when a disk is found full, and when it has room again. */
  onChange(callback: (time: FullTime) => void): void {
    this.#listeners.add(callback)
  }

  /** Checks whether the full disks have room again. */
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

  /** The same store, with its failures for lack of room noticed here. */
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
