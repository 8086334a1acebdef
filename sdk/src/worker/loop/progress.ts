import { askedMsOf } from '../../client/retry.ts'
import { IchidoError, type LeaseShape, nextSeq, OPEN_STAGES, PROGRESS_STAGE, stageRange } from '../../protocol/index.ts'
import { sleep, unlessAborted, type World } from '../../world.ts'
import type { Hold } from './held-lease.ts'
import { isPassing, type RunInHand } from './loop.ts'
import type { WorkerEvent, WorkerTransport } from './transport.ts'

/**
 * Tells whoever watches the job. Settles when the event is stored; what it is refused with is thrown, and so is why the run is
 * to stop, if it is told so meanwhile. Nobody need wait for it: whatever was told is on its way before the outcome of the run is.
 */
export interface Progress {
  /** The next event of the stage `progress`, counted from 1. */
  (data: unknown): Promise<void>
  /** An event of a stage of the job's, by its number inside the stage, from 0: told again, it is still one event. */
  (stage: string, sub: number, data?: unknown): Promise<void>
}

export interface PublisherDeps {
  transport: WorkerTransport
  world: World
  onTrouble(error: unknown): void
}

interface Waiting {
  event: WorkerEvent
  length: number
  resolve(): void
  reject(error: unknown): void
}

/** The run whose events they are. */
type Told = Pick<RunInHand, 'lease' | 'signal'> & { hold: Pick<Hold, 'lost'> }

/** In one call. */
const EVENTS_MAX = 100
const LENGTH_MAX = 1024 * 1024
/** A handler that tells more than can be sent, and does not wait, hears of it. */
const WAITING_MAX = 10_000
const RETRY_FIRST_MS = 250
const RETRY_MAX_MS = 5_000
/** Of the time that a run may go on without a heartbeat; one that was told to stop may have little of it left. */
export const ABORTED_PART = 0.05

/** The events of one run, on their way: in order, together when many come up, and sent again until they were heard. */
export class Publisher {
  readonly #lease: LeaseShape
  readonly #deps: PublisherDeps
  readonly #waiting: Waiting[] = []
  readonly #hold: Pick<Hold, 'lost'>
  readonly #signal: AbortSignal
  #late: AbortController | null = null
  #lateOrLost: AbortSignal | null = null
  #sending: Promise<void> | null = null
  #told = 0

  constructor({ lease, hold, signal }: Told, deps: PublisherDeps) {
    this.#lease = lease
    this.#deps = deps
    this.#hold = hold
    this.#signal = signal
  }

  readonly progress: Progress = (...told: [unknown] | [string, number, unknown?]) => {
    const stored = this.#publish(told)
    // Who does not wait for it must not be ended by it.
    stored.catch(() => {})
    return stored
  }

  /**
   * Settles when all that was told is stored or was refused. In an outage that is as late as the outcome itself could be
   * heard; the report of a run that was told to stop cannot wait that long.
   */
  async flush({ signal, hold }: Pick<RunInHand, 'signal' | 'hold'>): Promise<void> {
    if (this.#sending === null) return
    let resolve = () => {}
    // Not by `Promise.withResolvers`, which Node 20 lacks.
    const late = new Promise<void>((settle) => {
      resolve = settle
    })
    const giveUp = () => {
      this.#lateness().abort()
      resolve()
    }
    const callOff = signal.aborted ? this.#deps.world.after(hold.aloneMs * ABORTED_PART, giveUp) : () => {}
    signal.addEventListener('abort', giveUp)
    await Promise.race([this.#sending, late])
    signal.removeEventListener('abort', giveUp)
    callOff()
  }

  #lateness(): AbortController {
    this.#late ??= new AbortController()
    return this.#late
  }

  /** Made when something has to be sent again: most runs tell nothing, and most of what they tell is heard at once. */
  #over(): AbortSignal {
    this.#lateOrLost ??= AbortSignal.any([this.#hold.lost, this.#lateness().signal])
    return this.#lateOrLost
  }

  async #publish(told: [unknown] | [string, number, unknown?]): Promise<void> {
    const [stage, sub, data] = told.length === 1 ? [PROGRESS_STAGE, ++this.#told, told[0]] : told
    const seq = this.#seqOf(stage, sub)
    // As it is now: what the handler does to it later is another event's.
    const text = JSON.stringify(data ?? null) ?? 'null'
    if (this.#waiting.length >= WAITING_MAX)
      throw new Error(`${WAITING_MAX} events wait to be sent: await progress() before you send more`)
    const event = { stage, seq, data: JSON.parse(text) as unknown }
    const stored = new Promise<void>((resolve, reject) => {
      this.#waiting.push({ event, length: text.length, resolve, reject })
      this.#sending ??= this.#drain()
    })
    // In an outage an event waits as long as the outcome may: a handler that is to stop must not wait along with it. What it
    // tells after that is its last word, and waited for.
    await (this.#signal.aborted ? stored : unlessAborted(stored, this.#signal))
  }

  #seqOf(stage: string, sub: number): number {
    const stages = this.#lease.stages ?? OPEN_STAGES
    const seq = nextSeq(stages, stage, sub)
    if (seq !== null) return seq
    const { from, to } = stageRange(stages, stage)
    throw new RangeError(`The stage ${stage} of this job has the numbers 0 to ${to - from}, not ${sub}`)
  }

  async #drain(): Promise<void> {
    // What is told in this very moment goes along.
    await null
    while (this.#waiting.length > 0) await this.#send(this.#take())
    this.#sending = null
  }

  #take(): Waiting[] {
    let [count, length] = [0, 0]
    for (const waiting of this.#waiting) {
      length += waiting.length
      if (count > 0 && (count === EVENTS_MAX || length > LENGTH_MAX)) break
      count++
    }
    return this.#waiting.splice(0, count)
  }

  async #send(batch: readonly Waiting[]): Promise<void> {
    const { transport, world, onTrouble } = this.#deps
    for (let retryMs = RETRY_FIRST_MS; ; retryMs = Math.min(RETRY_MAX_MS, retryMs * 2)) {
      try {
        const events = batch.map(({ event }) => event)
        await transport.publish(this.#lease.lease_id, events)
        for (const { resolve } of batch) resolve()
        return
      } catch (error) {
        if (isPassing(error) && !this.#over().aborted) {
          await sleep(world, askedMsOf(error) + retryMs * (0.5 + world.random() / 2), this.#over())
        } else if (!isPassing(error) && batch.length > 1) {
          // One of them is refused: each speaks for itself.
          for (const one of batch) await this.#send([one])
          return
        } else {
          const told = inHandlerWords(error)
          onTrouble(isPassing(error) ? unheard(this.#lease, batch.length, error) : told)
          for (const { reject } of batch) reject(told)
          return
        }
      }
    }
  }
}

function unheard({ job_id: jobId }: LeaseShape, count: number, error: unknown): IchidoError {
  const why = error instanceof Error ? error.message : String(error)
  return new IchidoError(
    'UNAVAILABLE',
    `Events of job ${jobId} could not be delivered and are dropped (${count}): ${why}`,
  )
}

/** A refusal of an event, as its handler told it: it knows of no list that the event was sent in. */
function inHandlerWords(error: unknown): unknown {
  if (!(error instanceof IchidoError) || error.code !== 'INVALID_PAYLOAD') return error
  const own = (text: string) => text.replace(/^events\.\d+\./, '')
  const { field } = error.details
  return new IchidoError(error.code, own(error.message), { ...error.details, field: own(String(field)) }, error)
}
