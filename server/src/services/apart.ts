import type { World } from '@ichido/sdk/world'
import type { HeldUp } from '../store/port.ts'

export interface ApartOptions<Waiting> {
  world: World
  /** How many of the first of a line fit into one batch. */
  fit(line: readonly Waiting[]): number
  /** Settles all but those that were held up, which it answers with. */
  carryOut(batch: Waiting[]): Promise<HeldBatch<Waiting> | null>
  reject(waiting: Waiting, error: HeldUp): void
  /** The user was carried out: with what it has sent since, it is one of many again. */
  rejoin(user: string, line: Waiting[]): void
}

export interface HeldBatch<Waiting> {
  waiting: Waiting[]
  error: HeldUp
}

interface Line<Waiting> {
  entries: Entry<Waiting>[]
  /** Somebody keeps what this very user needs. Unless it is known, the user may only have stood beside such a one. */
  isHeld: boolean
  underWay: boolean
}

interface Entry<Waiting> {
  waiting: Waiting
  /** Counted from when it was held up for the first time. */
  untilMs: number | null
}

/** Under way at a time, and how many of them may be of users who are held: the others never wait for these. */
const LANES_MAX = 2
const HELD_LANES_MAX = 1
/** As long as the store tries a command again that comes alone. */
const HELD_FOR_MS = 15_000

/**
 * Users who are carried out by themselves, because somebody keeps what one of them needs. Each try ends when the store has no
 * more patience for a row; those who are held take turns until their time is up.
 */
export class Apart<Waiting> {
  readonly #options: ApartOptions<Waiting>
  readonly #lines = new Map<string, Line<Waiting>>()

  constructor(options: ApartOptions<Waiting>) {
    this.#options = options
  }

  has(user: string): boolean {
    return this.#lines.has(user)
  }

  /** What a user sends meanwhile. */
  push(user: string, waiting: Waiting): void {
    this.#line(user).entries.push({ waiting, untilMs: null })
  }

  /** Sets apart those who were held up together, each with what else it has sent. */
  hold(lines: ReadonlyMap<string, readonly Waiting[]>): void {
    const untilMs = this.#options.world.monotonic() + HELD_FOR_MS
    for (const [user, held] of lines) {
      const line = this.#line(user)
      line.entries.unshift(...held.map((waiting) => ({ waiting, untilMs })))
      line.isHeld ||= lines.size === 1
    }
    this.#serve()
  }

  #line(user: string): Line<Waiting> {
    let line = this.#lines.get(user)
    if (line === undefined) {
      line = { entries: [], isHeld: false, underWay: false }
      this.#lines.set(user, line)
    }
    return line
  }

  #serve(): void {
    for (let next = this.#next(); next !== null; next = this.#next()) void this.#carryOut(...next)
  }

  /** Of those who are held the one whose turn it is; before them all others. */
  #next(): [string, Line<Waiting>] | null {
    const underWay = [...this.#lines.values()].filter((line) => line.underWay)
    const mayBeHeld = underWay.filter(({ isHeld }) => isHeld).length < HELD_LANES_MAX
    const idle = [...this.#lines].filter(([, line]) => !line.underWay && (mayBeHeld || !line.isHeld))
    if (underWay.length >= LANES_MAX) return null
    return idle.find(([, { isHeld }]) => !isHeld) ?? idle[0] ?? null
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
    } else this.#again(user, line, batch, held)
    this.#serve()
  }

  #again(user: string, line: Line<Waiting>, batch: readonly Entry<Waiting>[], held: HeldBatch<Waiting>): void {
    const nowMs = this.#options.world.monotonic()
    const heldUp = new Set(held.waiting)
    const left: Entry<Waiting>[] = []
    for (const { waiting, untilMs } of batch) {
      if (!heldUp.has(waiting)) continue
      if (untilMs !== null && nowMs >= untilMs) this.#options.reject(waiting, held.error)
      else left.push({ waiting, untilMs: untilMs ?? nowMs + HELD_FOR_MS })
    }
    line.entries.unshift(...left)
    line.isHeld = true
    if (line.entries.length > 0) this.#lines.set(user, line)
  }
}
