import { askedMsOf } from '../../client/retry.ts'
import { sleep, type World } from '../../world.ts'
import { isPassing } from './failure.ts'

interface PumpOptions<Batch> {
  world: World
  /** The next batch; null if there is none. `last`: the program has ended, so nothing will be added. */
  read(last: boolean): Batch | null
  send(batch: Batch): Promise<void>
  onTrouble(error: unknown): void
}

const LOOK_MS = 300
const RETRY_MS = 2_000

/** Sends the output of a program to the control plane: in order, one batch at a time, with retries. */
export class Pump<Batch> {
  readonly #options: PumpOptions<Batch>
  readonly #ending = new AbortController()
  readonly #late = new AbortController()
  readonly #done: Promise<boolean>

  constructor(options: PumpOptions<Batch>) {
    this.#options = options
    this.#done = this.#run()
  }

  /** Sends the rest, through any outage, until `late` aborts. False: not all of it was delivered. */
  async end(late: AbortSignal): Promise<boolean> {
    this.#ending.abort()
    // A call under way may never be answered.
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

  /** Never rejects: a program that damages its files must not end the agent. */
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
      // Batches that need no call would otherwise block the event loop.
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
