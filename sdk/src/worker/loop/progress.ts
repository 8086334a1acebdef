import { askedMsOf } from '../../client/retry.ts'
import { IchidoError, type LeaseShape, nextSeq, OPEN_STAGES, PROGRESS_STAGE, stageRange } from '../../protocol/index.ts'
import { sleep, unlessAborted, type World } from '../../world.ts'
import { isPassing, messageOf } from './failure.ts'
import { nothing } from './heart.ts'
import type { RunInHand } from './loop.ts'
import type { Hold, WorkerEvent, WorkerTransport } from './ports.ts'

/**
 * Publishes an event of the job. Resolves when the event is stored; rejects with the refusal, or with the `Stopped` of the
 * signal. You need not await it: all events are sent before the outcome of the run.
 *
 * @example
 * await progress({ percent: 50 })
 */
export interface Progress {
  /** Publishes the next event of the stage `progress`, numbered from 1. */
  (data: unknown): Promise<void>
  /** Publishes the event number `sub` of a declared stage, from 0; a repeated event is stored once. */
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

/** The run that publishes. */
type PublishingRun = Pick<RunInHand, 'lease' | 'signal'> & { hold: Pick<Hold, 'lost'> }

/** The limits of one call. */
const EVENTS_MAX = 100
const LENGTH_MAX = 1024 * 1024
/** `progress()` rejects if a handler does not await it and more events wait. */
const WAITING_MAX = 10_000
const RETRY_FIRST_MS = 250
const RETRY_MAX_MS = 5_000
/** The part of the time without a heartbeat that a stopped run may use for its last output. */
export const ABORTED_PART = 0.05

/** Waits for the last output of a run, and gives up when the run is told to stop. */
export async function unlessStopped<T>(output: Promise<T>, signal: AbortSignal, giveUp: () => void): Promise<T> {
  signal.addEventListener('abort', giveUp)
  const sent = await output
  signal.removeEventListener('abort', giveUp)
  return sent
}

/** Sends the events of one run: in order, several in one call, with retries. */
export class Publisher {
  readonly #deps: PublisherDeps
  readonly #waiting: Waiting[] = []
  readonly #run: PublishingRun
  #late: AbortController | null = null
  #lateOrLost: AbortSignal | null = null
  #sending: Promise<void> | null = null
  #published = 0

  constructor(run: PublishingRun, deps: PublisherDeps) {
    this.#deps = deps
    this.#run = run
  }

  readonly progress: Progress = (...event: [unknown] | [string, number, unknown?]) => {
    const stored = this.#publish(event)
    // Without a listener, a rejection would end the process.
    stored.catch(nothing)
    return stored
  }

  /**
   * Resolves when all events are stored or refused. In an outage this takes as long as the report itself may; a stopped run does
   * not wait that long. Null: no event is on its way.
   */
  flush(run: Pick<RunInHand, 'signal' | 'hold'>): Promise<void> | null {
    return this.#sending && this.#end(this.#sending, run)
  }

  async #end(sending: Promise<void>, { signal, hold }: Pick<RunInHand, 'signal' | 'hold'>): Promise<void> {
    const late = this.#lateness()
    const giveUp = () => late.abort()
    const callOff = signal.aborted ? this.#deps.world.after(hold.aloneMs * ABORTED_PART, giveUp) : nothing
    await unlessStopped(unlessAborted(sending, late.signal).catch(nothing), signal, giveUp)
    callOff()
  }

  #lateness(): AbortController {
    this.#late ??= new AbortController()
    return this.#late
  }

  /** Created when a call must be retried, which is rare. */
  #over(): AbortSignal {
    this.#lateOrLost ??= AbortSignal.any([this.#run.hold.lost, this.#lateness().signal])
    return this.#lateOrLost
  }

  async #publish(given: [unknown] | [string, number, unknown?]): Promise<void> {
    const [stage, sub, data] = given.length === 1 ? [PROGRESS_STAGE, ++this.#published, given[0]] : given
    const seq = this.#seqOf(stage, sub)
    // A copy, because the handler may change the object later.
    const text = JSON.stringify(data ?? null) ?? 'null'
    if (this.#waiting.length >= WAITING_MAX)
      throw new Error(`${WAITING_MAX} events wait to be sent: await progress() before you send more`)
    const event = { stage, seq, data: JSON.parse(text) as unknown }
    const stored = new Promise<void>((resolve, reject) => {
      this.#waiting.push({ event, length: text.length, resolve, reject })
      this.#sending ??= this.#drain()
    })
    // In an outage an event waits as long as the outcome may, and a stopped handler must not wait for it. Events that it
    // publishes after the stop are awaited.
    await (this.#run.signal.aborted ? stored : unlessAborted(stored, this.#run.signal))
  }

  #seqOf(stage: string, sub: number): number {
    const stages = this.#run.lease.stages ?? OPEN_STAGES
    const seq = nextSeq(stages, stage, sub)
    if (seq !== null) return seq
    const { from, to } = stageRange(stages, stage)
    throw new RangeError(`The stage ${stage} of this job has the numbers 0 to ${to - from}, not ${sub}`)
  }

  async #drain(): Promise<void> {
    // Includes the events of the same turn.
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
        await transport.publish(this.#run.lease.lease_id, events)
        for (const { resolve } of batch) resolve()
        return
      } catch (error) {
        if (isPassing(error) && !this.#over().aborted) {
          await sleep(world, askedMsOf(error) + retryMs * (0.5 + world.random() / 2), this.#over())
        } else if (!isPassing(error) && batch.length > 1) {
          // One event was refused, so each event is sent separately.
          for (const waiting of batch) await this.#send([waiting])
          return
        } else {
          const refusal = inHandlerWords(error)
          onTrouble(isPassing(error) ? undelivered(this.#run.lease, batch.length, error) : refusal)
          for (const { reject } of batch) reject(refusal)
          return
        }
      }
    }
  }
}

function undelivered({ job_id: jobId }: LeaseShape, count: number, error: unknown): IchidoError {
  const why = messageOf(error)
  return new IchidoError('UNAVAILABLE', `Events of job ${jobId} were not delivered (${count}): ${why}`)
}

/** Names the fields of the event alone, because the handler does not know the list in which it was sent. */
function inHandlerWords(error: unknown): unknown {
  if (!(error instanceof IchidoError) || error.code !== 'INVALID_PAYLOAD') return error
  const own = (text: string) => text.replace(/^events\.\d+\./, '')
  const { field } = error.details
  return new IchidoError(error.code, own(error.message), { ...error.details, field: own(String(field)) }, error)
}
