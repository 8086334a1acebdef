import { FakeWorld } from '../../../../scripts/testing/fake-world.ts'
import { turns } from '../browser.ts'
import type { OutboxItem } from '../item.ts'
import { Outbox, type OutboxOptions } from '../outbox.ts'
import type { Network, Send } from '../ports.ts'
import { MemoryDisk } from './memory-store.ts'

/** A network that a test takes away and gives back. */
export class FakeNetwork implements Network {
  isOnline = true
  asks = false
  readonly #callbacks = new Set<() => void>()

  readonly online = (): boolean => this.isOnline
  readonly onOnline = (callback: () => void): (() => void) => {
    this.#callbacks.add(callback)
    return () => void this.#callbacks.delete(callback)
  }

  set(isOnline: boolean): void {
    this.isOnline = isOnline
    if (isOnline) for (const callback of this.#callbacks) callback()
  }
}

/** An answer with this status, as an error. */
export function answered(status: number, more: object = {}): Error {
  return Object.assign(new Error(`answered ${status}`), { status, ...more })
}

interface Taken {
  taken: string
}

/** An outbox of texts, with all that it needs in a test's hands. */
export class Scene {
  readonly disk = new MemoryDisk()
  readonly network = new FakeNetwork()
  readonly world = new FakeWorld()
  /** Key and body of what arrived, in order. */
  arrived: string[] = []
  /** The error answer for a body. */
  troubles = new Map<string, unknown>()

  readonly send: Send<string, Taken> = async ({ key, body }) => {
    this.arrived.push(`${key} ${body}`)
    if (this.troubles.has(body)) throw this.troubles.get(body)
    return { taken: body }
  }

  open(given: Partial<OutboxOptions<string, Taken>> = {}): Outbox<string, Taken> {
    return this.openAny({ send: this.send, ...given })
  }

  /** Matches any body. */
  openAny<Body, Answer>(
    given: Pick<OutboxOptions<Body, Answer>, 'send'> & Partial<OutboxOptions<Body, Answer>>,
  ): Outbox<Body, Answer> {
    const { disk, network, world } = this
    return new Outbox({ store: disk.store(), lock: turns(), network, world, ...given })
  }

  /** Puts each under its own text as the key. */
  async withItems(...bodies: string[]): Promise<Outbox<string, Taken>> {
    const outbox = this.open()
    for (const body of bodies) await outbox.put(body, { key: body })
    return outbox
  }
}

export const brief = (items: readonly OutboxItem<string>[]): string[] =>
  items.map((item) => `${item.body} ${item.status} ${item.attempts}`)
