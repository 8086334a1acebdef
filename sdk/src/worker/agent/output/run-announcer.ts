import { errorText } from '../../../protocol/index.ts'
import { lineForTerminal } from '../../../terminal.ts'
import type { World } from '../../../world.ts'
import type { Outcome, RunInHand } from '../../loop/loop.ts'
import type { RunReport } from '../../loop/transport.ts'

type Work = (run: RunInHand) => Promise<Outcome>

/** Of what a failure says: what it is about stands at its beginning, and what is wrong with that at its end. */
const BEGINNING_MAX = 80
const END_MAX = 120

/** Says of each run when it begins and how it ended, and knows how many there are. */
export class RunAnnouncer {
  readonly #say: (line: string) => void
  readonly #world: Pick<World, 'monotonic'>
  running = 0

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
}

export function outcomeText(outcome: Outcome | RunReport): string {
  if (outcome === 'released') return 'released'
  if ('result' in outcome) return 'succeeded'
  const { code, message } = outcome.failure
  if (code === 'CANCELED') return 'canceled'
  // What a program wrote goes to a terminal here.
  const [line = ''] = message.trim().split('\n')
  const words = lineForTerminal(line)
  return `failed with ${shortened(errorText({ code, message: words }))}`
}

function shortened(words: string): string {
  if (words.length <= BEGINNING_MAX + END_MAX) return words
  return `${words.slice(0, BEGINNING_MAX)} … ${words.slice(-END_MAX)}`
}
