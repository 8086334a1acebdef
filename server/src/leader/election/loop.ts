import type { World } from '@ichido/sdk/world'
import type { Meter } from '../../services/system/meter.ts'
import type { LoopStatus } from '../../services/system/system.ts'

export interface LoopOptions {
  name: string
  world: World
  meter: Pick<Meter, 'looped'>
  /** Read before every wait, because it is a setting. */
  intervalMs: () => number
  /** Returns the longest wait before the next tick; null: the interval. */
  tick(): Promise<number | null>
  /** Ticks are skipped while it returns false. */
  when?: () => boolean
  onTrouble(name: string, error: unknown): void
}

/** A loop that has not finished a tick for this many intervals is late, but not before LATE_MIN_MS. */
const LATE_INTERVALS = 5
const LATE_MIN_MS = 10_000

/** Every background task has this shape: a name, a tick, and start and stop that can be called twice. */
export class Loop {
  readonly name: string
  readonly #options: LoopOptions
  #callOff: (() => void) | null = null
  #running: Promise<void> | null = null
  #stopped = true
  #hurried = false
  #lateAtMs = 0
  #last: { endedAtMs: number; tookMs: number } | null = null

  constructor(options: LoopOptions) {
    this.name = options.name
    this.#options = options
  }

  start(): void {
    if (!this.#stopped) return
    this.#stopped = false
    this.#inTime()
    // A tick that still runs from before the stop schedules the next one itself.
    if (this.#running === null) this.#schedule(0)
  }

  async stop(): Promise<void> {
    this.#stopped = true
    this.#callOff?.()
    this.#callOff = null
    await this.#running
  }

  /** Runs the next tick at once, or right after the current one. */
  hurry(): void {
    if (this.#running !== null) this.#hurried = true
    else if (this.#callOff !== null) {
      this.#callOff()
      this.#schedule(0)
    }
  }

  /** True if the loop runs, but its ticks fail, hang, or do not come. */
  get late(): boolean {
    return !this.#stopped && this.#options.world.monotonic() > this.#lateAtMs
  }

  /** For people: how often it runs, and how its last successful tick went. */
  get status(): LoopStatus {
    return {
      name: this.name,
      intervalMs: this.#options.intervalMs(),
      late: this.late,
      lastEndedAtMs: this.#last?.endedAtMs ?? null,
      lastTookMs: this.#last?.tookMs ?? null,
    }
  }

  #inTime(): void {
    const { world, intervalMs } = this.#options
    this.#lateAtMs = world.monotonic() + Math.max(LATE_MIN_MS, LATE_INTERVALS * intervalMs())
  }

  #schedule(ms: number): void {
    if (!this.#stopped) this.#callOff = this.#options.world.after(ms, () => void this.#turn())
  }

  async #turn(): Promise<void> {
    const { name, world, meter, tick, when, onTrouble } = this.#options
    const intervalMs = this.#options.intervalMs()
    let waitMs = intervalMs
    this.#hurried = false
    this.#running = (async () => {
      if (when?.() === false) return this.#inTime()
      const beganMs = world.monotonic()
      try {
        waitMs = Math.min(intervalMs, Math.max(0, (await tick()) ?? intervalMs))
        this.#inTime()
        this.#last = { endedAtMs: world.now(), tookMs: world.monotonic() - beganMs }
        meter.looped(name, this.#last.endedAtMs)
      } catch (error) {
        onTrouble(name, error)
      }
    })()
    await this.#running
    this.#running = null
    this.#schedule(this.#hurried ? 0 : waitMs)
  }
}
