import type { World } from '@ichido/sdk/world'
import type { Sign } from '../../store/workers/workers.ts'

/** Between two notes of the same worker. */
const REST_MS = 10_000
/** Notes wait this long for others to share their transaction. */
const GATHER_MS = 1_000

/** Collects who was heard of, so that no request of a worker waits for a write that only says that it was made. */
export class LastSeenWriter {
  readonly #world: Pick<World, 'monotonic' | 'after'>
  readonly #write: (signs: Sign[]) => Promise<void>
  readonly #notedMs = new Map<string, number>()
  readonly #waiting = new Set<string>()

  constructor(world: Pick<World, 'monotonic' | 'after'>, write: (signs: Sign[]) => Promise<void>) {
    this.#world = world
    this.#write = write
  }

  add(workerId: string): void {
    const nowMs = this.#world.monotonic()
    const notedMs = this.#notedMs.get(workerId)
    if (notedMs !== undefined && nowMs - notedMs < REST_MS) return
    this.#notedMs.set(workerId, nowMs)
    if (this.#waiting.size === 0) this.#world.after(GATHER_MS, () => this.#flush())
    this.#waiting.add(workerId)
  }

  /** It has said goodbye: what was heard of it before is no sign of life, and the next thing is one at once. */
  forget(workerId: string): void {
    this.#waiting.delete(workerId)
    this.#notedMs.delete(workerId)
  }

  #flush(): void {
    const ids = [...this.#waiting].sort()
    this.#waiting.clear()
    const nowMs = this.#world.monotonic()
    const signs = ids.map((workerId) => ({
      workerId,
      agoMs: Math.ceil(nowMs - (this.#notedMs.get(workerId) ?? nowMs)),
    }))
    for (const [id, notedMs] of this.#notedMs) if (nowMs - notedMs >= REST_MS) this.#notedMs.delete(id)
    // A note that is lost, with the store out of reach or closed, is made up for by the worker's next request.
    this.#write(signs).catch(() => {
      for (const id of ids) this.#notedMs.delete(id)
    })
  }
}
