import { askedMsOf } from '../../client/retry.ts'
import { sleep, type World } from '../../world.ts'
import { isPassing } from './loop.ts'

export interface PumpOptions<Batch> {
  world: World
  /** What is there to send now; null when nothing. `last`: the program has ended, nothing will be added. */
  read(last: boolean): Batch | null
  send(batch: Batch): Promise<void>
  onTrouble(error: unknown): void
}

const LOOK_MS = 300
const RETRY_MS = 2_000

/** Carries what a program writes to the control plane: in order, a batch at a time, tried again until it was heard. */
export class Pump<Batch> {
  readonly #options: PumpOptions<Batch>
  readonly #ending = new AbortController()
  readonly #late = new AbortController()
  readonly #done: Promise<boolean>

  constructor(options: PumpOptions<Batch>) {
    this.#options = options
    this.#done = this.#run()
  }

  /** Sends what is left, through any outage, until it is late. False: not all of it was heard. */
  async end(late: AbortSignal): Promise<boolean> {
    this.#ending.abort()
    // A call may be on its way that nobody answers.
    const tooLate = new Promise<false>((resolve) => {
      const giveUp = () => {
        this.#late.abort()
        resolve(false)
      }
      if (late.aborted) giveUp()
      else late.addEventListener('abort', giveUp, { once: true })
    })
    return Promise.race([this.#done, tooLate])
  }

  /** Never rejects: what a program does to its files must not end the agent. */
  async #run(): Promise<boolean> {
    const { world, onTrouble } = this.#options
    for (;;) {
      const ending = this.#ending.signal.aborted
      try {
        await this.#carry(ending)
      } catch (error) {
        onTrouble(error)
      }
      if (this.#late.signal.aborted) return false
      if (ending) return true
      await sleep(world, LOOK_MS, this.#ending.signal)
    }
  }

  async #carry(last: boolean): Promise<void> {
    const { read, world } = this.#options
    for (let batch = read(last); batch !== null; batch = read(last)) {
      await this.#deliver(batch)
      if (this.#late.signal.aborted) return
      // A batch that needed no sending would let nothing else have its turn.
      await new Promise<void>((resolve) => world.soon(resolve))
    }
  }

  async #deliver(batch: Batch): Promise<void> {
    const { send, onTrouble, world } = this.#options
    while (!this.#late.signal.aborted) {
      try {
        return await send(batch)
      } catch (error) {
        onTrouble(error)
        if (!isPassing(error)) return
        await sleep(world, askedMsOf(error) + RETRY_MS, this.#late.signal)
      }
    }
  }
}
