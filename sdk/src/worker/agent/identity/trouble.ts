import { IchidoError } from '../../../protocol/index.ts'
import type { World } from '../../../world.ts'

const SAY_AGAIN_MS = 60_000
const SAID_MAX = 1_000

export interface TroubleOptions {
  say(line: string): void
  /** Called of what will not pass by itself. */
  fail(why: string): void
  world: Pick<World, 'monotonic'>
}

/** Says each trouble once a minute at most, and when the control plane can be reached again. */
export class Trouble {
  readonly #options: TroubleOptions
  readonly #saidAtMs = new Map<string, number>()
  #away = false

  constructor(options: TroubleOptions) {
    this.#options = options
  }

  readonly on = (error: unknown): void => {
    const { say, fail, world } = this.#options
    const words = error instanceof Error ? error.message : String(error)
    if (error instanceof IchidoError && error.code === 'FORBIDDEN') fail(words)
    if (error instanceof IchidoError && error.code === 'UNAVAILABLE') this.#away = true
    const nowMs = world.monotonic()
    if (nowMs - (this.#saidAtMs.get(words) ?? Number.NEGATIVE_INFINITY) < SAY_AGAIN_MS) return
    if (this.#saidAtMs.size >= SAID_MAX) this.#saidAtMs.clear()
    this.#saidAtMs.set(words, nowMs)
    say(`trouble: ${words}`)
  }

  /** The control plane has answered a call, and not that it is unavailable. */
  readonly over = (): void => {
    if (!this.#away) return
    this.#away = false
    // The next outage is a new one.
    this.#saidAtMs.clear()
    this.#options.say('the control plane answers again')
  }
}
