import type { World } from '@ichido/sdk/world'
import type { LockTimeout } from '../../core/node/store-errors.ts'

interface BlockedUsersOptions<Waiting> {
  world: World
  /** How many items at the head of a line fit into one batch. */
  fit(line: readonly Waiting[]): number
  /** Settles the items, except those that ran into a lock, which it returns. */
  carryOut(batch: Waiting[]): Promise<HeldBatch<Waiting> | null>
  reject(waiting: Waiting, error: LockTimeout): void
  /** The user is no longer blocked. Its later items go back to the normal batches. */
  rejoin(user: string, line: Waiting[]): void
}

export interface HeldBatch<Waiting> {
  waiting: Waiting[]
  error: LockTimeout
}

interface Line<Waiting> {
  entries: Entry<Waiting>[]
  /** This user is known to be blocked by a lock. Otherwise it may only have shared a batch with a blocked user. */
  isHeld: boolean
  underWay: boolean
  /** The last time that it ran into the lock, and the error. */
  heldAtMs: number
  error: LockTimeout
}

interface Entry<Waiting> {
  waiting: Waiting
  untilMs: number
}

/**
 * How many users run at the same time, and how many of them may be blocked ones. Others never wait for blocked users.
 */
const LANES_MAX = 2
const HELD_LANES_MAX = 1
/** As long as the store retries a single command. */
const HELD_FOR_MS = 15_000
/**
 * A blocked user keeps its own line for this long, even an empty one, so that its next items do not block other users
 * again.
 */
const REMEMBERED_MS = 60_000

/**
 * Users who run alone, because a lock blocks one of them. Each try ends with the lock timeout of the store. The blocked
 * users take turns until the deadline of their items.
 */
export class BlockedUsers<Waiting> {
  readonly #options: BlockedUsersOptions<Waiting>
  readonly #lines = new Map<string, Line<Waiting>>()

  constructor(options: BlockedUsersOptions<Waiting>) {
    this.#options = options
  }

  has(user: string): boolean {
    return this.#lines.has(user)
  }

  /** Adds an item of a user who runs alone. */
  push(user: string, waiting: Waiting): void {
    this.#lines.get(user)?.entries.push({ waiting, untilMs: this.#options.world.monotonic() + HELD_FOR_MS })
    this.#serve()
  }

  /** Separates the users of a batch that ran into a lock, each with its other items. */
  hold(lines: ReadonlyMap<string, readonly Waiting[]>, error: LockTimeout): void {
    const heldAtMs = this.#options.world.monotonic()
    for (const [user, held] of lines) {
      const line = this.#lines.get(user) ?? { entries: [], isHeld: false, underWay: false, heldAtMs, error }
      line.entries.unshift(...held.map((waiting) => ({ waiting, untilMs: heldAtMs + HELD_FOR_MS })))
      line.isHeld ||= lines.size === 1
      this.#lines.set(user, line)
    }
    this.#serve()
  }

  #serve(): void {
    this.#giveUpOverdue()
    for (let next = this.#next(); next !== null; next = this.#next()) void this.#carryOut(...next)
  }

  /** Rejects the items whose deadline has passed. */
  #giveUpOverdue(): void {
    const nowMs = this.#options.world.monotonic()
    for (const [user, line] of this.#lines) {
      if (line.underWay) continue
      for (const { waiting, untilMs } of line.entries) if (nowMs >= untilMs) this.#options.reject(waiting, line.error)
      line.entries = line.entries.filter(({ untilMs }) => nowMs < untilMs)
      const isOver = !line.isHeld || nowMs >= line.heldAtMs + REMEMBERED_MS
      if (line.entries.length === 0 && isOver) this.#lines.delete(user)
    }
  }

  /** The next user: first those who are not known to be blocked, then the blocked ones in turn. */
  #next(): [string, Line<Waiting>] | null {
    const underWay = [...this.#lines.values()].filter((line) => line.underWay)
    if (underWay.length >= LANES_MAX) return null
    const mayBeHeld = underWay.filter(({ isHeld }) => isHeld).length < HELD_LANES_MAX
    const ready = [...this.#lines].filter(([, line]) => !line.underWay && line.entries.length > 0)
    return ready.find(([, { isHeld }]) => !isHeld) ?? (mayBeHeld ? ready[0] : undefined) ?? null
  }

  async #carryOut(user: string, line: Line<Waiting>): Promise<void> {
    const count = this.#options.fit(line.entries.map(({ waiting }) => waiting))
    const batch = line.entries.splice(0, count)
    line.underWay = true
    const held = await this.#options.carryOut(batch.map(({ waiting }) => waiting))
    line.underWay = false
    // The user goes to the end of the order.
    this.#lines.delete(user)
    if (held === null) {
      this.#options.rejoin(
        user,
        line.entries.map(({ waiting }) => waiting),
      )
    } else {
      const heldUp = new Set(held.waiting)
      line.entries.unshift(...batch.filter(({ waiting }) => heldUp.has(waiting)))
      this.#lines.set(user, { ...line, isHeld: true, heldAtMs: this.#options.world.monotonic(), error: held.error })
    }
    this.#serve()
  }
}
