import type { World } from '@ichido/sdk/world'
import type { LockTimeout } from '../../core/node/store-errors.ts'

interface BlockedUsersOptions<Waiting> {
  world: World
  /** How many of the first of a line fit into one batch. */
  fit(line: readonly Waiting[]): number
  /** Settles all but those that were held up, which it answers with. */
  carryOut(batch: Waiting[]): Promise<HeldBatch<Waiting> | null>
  reject(waiting: Waiting, error: LockTimeout): void
  /** The user was carried out: with what it has sent since, it is one of many again. */
  rejoin(user: string, line: Waiting[]): void
}

export interface HeldBatch<Waiting> {
  waiting: Waiting[]
  error: LockTimeout
}

interface Line<Waiting> {
  entries: Entry<Waiting>[]
  /** Somebody keeps what this very user needs. Unless it is known, the user may only have stood beside such a one. */
  isHeld: boolean
  underWay: boolean
  /** The last time that it was held up, and why. */
  heldAtMs: number
  error: LockTimeout
}

interface Entry<Waiting> {
  waiting: Waiting
  untilMs: number
}

/** Under way at a time, and how many of them may be of users who are held: the others never wait for these. */
const LANES_MAX = 2
const HELD_LANES_MAX = 1
/** As long as the store tries a command again that comes alone. */
const HELD_FOR_MS = 15_000
/** So long a user that was held has a line of its own, also when nothing is left in it: others do not find out anew that it is. */
const REMEMBERED_MS = 60_000

/**
 * Users who are carried out by themselves, because somebody keeps what one of them needs. Each try ends when the store has no
 * more patience for a row; those who are held take turns until their time is up.
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

  /** What a user sends meanwhile. */
  push(user: string, waiting: Waiting): void {
    this.#lines.get(user)?.entries.push({ waiting, untilMs: this.#options.world.monotonic() + HELD_FOR_MS })
    this.#serve()
  }

  /** Sets apart those who were held up together, each with what else it has sent. */
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

  /** Whose time is up hears so, whether or not it is its turn. */
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

  /** Of those who are held the one whose turn it is; before them all others. */
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
    // Whose turn it was stands last.
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
