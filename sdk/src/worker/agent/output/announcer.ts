import { errorText, IchidoError } from '../../../protocol/index.ts'
import { lineForTerminal } from '../../../terminal.ts'
import type { World } from '../../../world.ts'
import type { Outcome, RunInHand } from '../../loop/loop.ts'
import type { RunReport } from '../../loop/ports.ts'

type Work = (run: RunInHand) => Promise<Outcome>

const REPEAT_MS = 60_000
const MESSAGES_MAX = 1_000
/** A failure's beginning names its subject, and its end the reason; the middle is left out. */
const BEGINNING_MAX = 80
const END_MAX = 120

/** Announces the start and the end of each run, and a drain, and counts the running ones. */
export class RunAnnouncer {
  readonly #say: (line: string) => void
  readonly #world: Pick<World, 'monotonic'>
  running = 0
  #drains = false

  constructor(say: (line: string) => void, world: Pick<World, 'monotonic'>) {
    this.#say = say
    this.#world = world
  }

  of(work: Work): Work {
    return async (run) => {
      const { job_id: jobId, kind, attempt } = run.lease
      const which = `job ${jobId} (${kind}, attempt ${attempt})`
      const beganMs = this.#world.monotonic()
      this.#say(`${which} began`)
      this.#drains = false
      this.running++
      try {
        const outcome = await work(run)
        const seconds = (this.#world.monotonic() - beganMs) / 1000
        this.#say(`${which} ${outcomeText(outcome)}, after ${seconds.toFixed(1)} s`)
        return outcome
      } finally {
        this.running--
      }
    }
  }

  /** Called for each poll that is told so; it is announced once, until a run begins. */
  readonly draining = (): void => {
    if (this.#drains) return
    this.#drains = true
    this.#say('the control plane drains this worker: it gets no new jobs until it is resumed')
  }
}

export function outcomeText(outcome: Outcome | RunReport): string {
  if (outcome === 'released') return 'released'
  if ('result' in outcome) return 'succeeded'
  const { code, message } = outcome.failure
  if (code === 'CANCELED') return 'canceled'
  const [line = ''] = message.trim().split('\n')
  const words = lineForTerminal(line)
  return `failed with ${shortened(errorText({ code, message: words }))}`
}

function shortened(words: string): string {
  if (words.length <= BEGINNING_MAX + END_MAX) return words
  return `${words.slice(0, BEGINNING_MAX)} … ${words.slice(-END_MAX)}`
}

interface TroubleOptions {
  say(line: string): void
  /** Called for an error that no retry can fix. */
  fail(why: string): void
  world: Pick<World, 'monotonic'>
}

/** Announces each error at most once a minute, and the end of an outage. */
export class Trouble {
  readonly #options: TroubleOptions
  readonly #shownAtMs = new Map<string, number>()
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
    if (nowMs - (this.#shownAtMs.get(words) ?? Number.NEGATIVE_INFINITY) < REPEAT_MS) return
    if (this.#shownAtMs.size >= MESSAGES_MAX) this.#shownAtMs.clear()
    this.#shownAtMs.set(words, nowMs)
    say(`trouble: ${words}`)
  }

  /** Called when the control plane has answered a call. */
  readonly over = (): void => {
    if (!this.#away) return
    this.#away = false
    // The next outage is announced at once.
    this.#shownAtMs.clear()
    this.#options.say('the control plane answers again')
  }
}
