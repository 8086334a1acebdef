import type { JobEvent } from '@ichido/sdk/client'
import { IchidoError, type JobDetail, type WaitingForShape } from '@ichido/sdk/protocol'
import { type Connection, Unreachable } from '../connection/connect.ts'
import { commandLine } from '../self.ts'
import { progressOf, stateOf } from './event-text.ts'
import { EXIT, Failure } from './exit.ts'
import { FailedAttempts } from './failed-attempts.ts'
import { LiveLine, paint, say } from './terminal.ts'
import { waitingText } from './waiting-text.ts'

export interface FollowOptions {
  timeoutSeconds?: number | undefined
  onEvent?: (event: JobEvent) => void
}

/** A server that restarts is back before this; then following a job was not worth an error. */
export const UNREACHABLE_MAX_MS = 30_000
export const RETRY_MS = 300
/** Beyond this, 24.8 days, a timer fires at once. */
const TIMER_MAX_MS = 2 ** 31 - 1
/** Work that nobody takes for so long deserves a word. */
const UNTAKEN_MS = 5_000

/** Shows how a job goes until it has ended, through restarts of the server. */
export async function follow(
  connection: Connection,
  jobId: string,
  { timeoutSeconds, onEvent }: FollowOptions = {},
): Promise<JobDetail> {
  const view = new View(async () => (await connection.transport.get(jobId)).waiting_for)
  const interrupt = new AbortController()
  const onInterrupt = () => interrupt.abort()
  process.once('SIGINT', onInterrupt)
  const timeout =
    timeoutSeconds === undefined ? [] : [AbortSignal.timeout(Math.min(TIMER_MAX_MS, Math.ceil(timeoutSeconds * 1000)))]
  const signal = AbortSignal.any([interrupt.signal, ...timeout])
  // It is told without why rather than not at all.
  const failed = new FailedAttempts(() => connection.transport.get(jobId, signal).catch(() => null))
  try {
    for await (const event of eventsOf(connection, jobId, signal, view)) {
      view.show(event, await failed.whyOf(event))
      onEvent?.(event)
    }
    return await connection.transport.get(jobId)
  } catch (error) {
    if (!signal.aborted) throw error
    throw interrupt.signal.aborted
      ? new Failure(`Job ${jobId} continues without this command.`, howToLook(jobId), EXIT.interrupted)
      : new Failure(
          `Job ${jobId} has not ended within ${timeoutSeconds} s; it continues.`,
          howToLook(jobId),
          EXIT.timeout,
        )
  } finally {
    view.end()
    process.removeListener('SIGINT', onInterrupt)
  }
}

function howToLook(jobId: string): string {
  const lines = [`  ${commandLine(`watch ${jobId}`)}`, `  ${commandLine(`jobs show ${jobId}`)}`]
  return ['See it with', ...lines, 'or end it with', `  ${commandLine(`jobs cancel ${jobId}`)}`].join('\n')
}

function eventsOf(
  { transport, url }: Connection,
  jobId: string,
  signal: AbortSignal,
  view: View,
): AsyncGenerator<JobEvent> {
  let troubledMs: number | null = null
  return transport.watch(jobId, {
    signal,
    onReset: ({ event }) => {
      if (event !== null) view.show(event)
    },
    onTrouble(error) {
      troubledMs = error === null ? null : (troubledMs ?? performance.now())
      if (troubledMs !== null && performance.now() - troubledMs > UNREACHABLE_MAX_MS) throw error
      view.trouble = error === null ? null : `the server does not answer, retrying: ${url}`
    },
  })
}

/** Nobody answers at the moment. */
export function mayPass(error: unknown): boolean {
  return error instanceof Unreachable || (error instanceof IchidoError && error.code === 'UNAVAILABLE')
}

/** On a terminal one line that changes; elsewhere a line for each event. */
class View {
  readonly #startedMs = performance.now()
  readonly #live: LiveLine
  #state = ''
  #progress = ''
  #trouble: string | null = null
  readonly #look: () => Promise<WaitingForShape | null>
  #untaken: NodeJS.Timeout | undefined
  #reason = ''
  #ended = false

  constructor(look: () => Promise<WaitingForShape | null>) {
    this.#look = look
    this.#live = new LiveLine(() => {
      const seconds = `${((performance.now() - this.#startedMs) / 1000).toFixed(1)} s`
      return [this.#state, seconds, this.#progress, this.#trouble].filter(Boolean).join('  ')
    })
  }

  set trouble(text: string | null) {
    if (text !== null && this.#trouble === null && !process.stderr.isTTY) say(text)
    this.#trouble = text
  }

  /** `why`: what stays to be read, also when the line changes. */
  show(event: JobEvent, why: string | null = null): void {
    const state = stateOf(event)
    if (state === null) this.#progress = progressOf(event)
    else {
      this.#state = state
      this.#progress = ''
      this.#watchUntaken(state)
    }
    if (why !== null) this.#live.say(`${state}: ${why}`)
    else if (!process.stderr.isTTY) say(state ?? this.#progress)
  }

  #watchUntaken(state: string): void {
    clearTimeout(this.#untaken)
    if (!state.startsWith('PENDING') && !state.startsWith('ORPHANED')) return
    this.#untaken = setTimeout(() => void this.#tellWhy(state), UNTAKEN_MS)
    this.#untaken.unref()
  }

  /** Says it once, and again when it is another reason. */
  async #tellWhy(state: string): Promise<void> {
    const waiting = await this.#look().catch(() => null)
    if (this.#state !== state || this.#ended) return
    if (waiting !== null && waiting.reason !== this.#reason) {
      this.#reason = waiting.reason
      this.#live.say(paint('yellow', waitingText(waiting)))
    }
    this.#watchUntaken(state)
  }

  end(): void {
    this.#ended = true
    clearTimeout(this.#untaken)
    this.#live.end()
  }
}
