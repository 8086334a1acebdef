import { setTimeout as pause } from 'node:timers/promises'
import type { JobEvent } from '@ichido/sdk/client'
import { endText, errorText, IchidoError, type JobDetail, type WaitingForShape } from '@ichido/sdk/protocol'
import { lineForTerminal } from '@ichido/sdk/terminal'
import { clip } from '../../core/json/text.ts'
import { type Connection, Unreachable } from '../connection/connect.ts'
import { commandLine } from '../self.ts'
import { EXIT, Failure } from './exit.ts'
import { oneLine } from './print.ts'
import { LiveLine, outJson, paint, say } from './terminal.ts'

interface FollowOptions {
  timeoutSeconds?: number | undefined
  onEvent?: (event: JobEvent) => void
}

/** A restarting server is back within this time. */
export const UNREACHABLE_MAX_MS = 30_000
export const RETRY_MS = 300
/** Beyond this, 24.8 days, a timer fires at once. */
const TIMER_MAX_MS = 2 ** 31 - 1
/** After this time without a worker, the reason is shown. */
const UNTAKEN_MS = 5_000
const LOOK_MS = 300
const PROGRESS_MAX = 80

const timeoutOf = (seconds: number) => AbortSignal.timeout(Math.min(TIMER_MAX_MS, Math.ceil(seconds * 1000)))

/** Shows the progress of a job until it has ended; survives restarts of the server. */
export async function follow(
  connection: Connection,
  jobId: string,
  { timeoutSeconds, onEvent }: FollowOptions = {},
): Promise<JobDetail> {
  const view = new View(async () => (await connection.transport.get(jobId)).waiting_for)
  const interrupt = new AbortController()
  const onInterrupt = () => interrupt.abort()
  process.once('SIGINT', onInterrupt)
  const timeout = timeoutSeconds === undefined ? [] : [timeoutOf(timeoutSeconds)]
  const signal = AbortSignal.any([interrupt.signal, ...timeout])
  // A failure is shown without its reason if the job cannot be read.
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

/** Whether the server is only temporarily unreachable. */
export function mayPass(error: unknown): boolean {
  return error instanceof Unreachable || (error instanceof IchidoError && error.code === 'UNAVAILABLE')
}

/** On a terminal one line that changes; otherwise one line for each event. */
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

  /** `why` stays on the screen when the live line changes. */
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
    this.#untaken = setTimeout(() => void this.#showReason(state), UNTAKEN_MS)
    this.#untaken.unref()
  }

  /** Shows each reason once. */
  async #showReason(state: string): Promise<void> {
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

/** The state and attempt of a lifecycle event; null for an event of a worker. */
function moveOf({ stage, data }: JobEvent): { state: string; attempt: number } | null {
  if (stage !== 'run' || typeof data !== 'object' || data === null || !('state' in data)) return null
  return { state: String(data.state), attempt: 'attempt' in data ? Number(data.attempt) : 0 }
}

function stateOf(event: JobEvent): string | null {
  const move = moveOf(event)
  return move && `${move.state}${move.attempt > 0 ? ` attempt ${move.attempt}` : ''}`
}

/** An event in one line. */
export function eventText(event: JobEvent): string {
  return stateOf(event) ?? progressOf(event)
}

/** A worker's event in one line; `{percent, message}` is shown as words. */
function progressOf({ stage, data }: JobEvent): string {
  const parts = stage === 'progress' ? [] : [stage]
  if (typeof data === 'object' && data !== null && ('percent' in data || 'message' in data)) {
    if ('percent' in data) parts.push(`${data.percent} %`)
    if ('message' in data) parts.push(String(data.message))
  } else parts.push(JSON.stringify(data))
  return clip(lineForTerminal(parts.join(' ')), PROGRESS_MAX)
}

/** The reasons of failed attempts. Events do not contain them, so the job is read, at most once for each attempt. */
export class FailedAttempts {
  readonly #read: () => Promise<JobDetail | null>
  #job: JobDetail | null = null

  /** `read` returns null if the job cannot be read at the moment. */
  constructor(read: () => Promise<JobDetail | null>) {
    this.#read = read
  }

  /** Null if the event is not the end of a failed attempt. */
  async whyOf(event: JobEvent): Promise<string | null> {
    const move = moveOf(event)
    if (move === null || !['FAILED', 'TIMED_OUT'].includes(move.state)) return null
    const known = this.#reasonOf(move.attempt)
    if (known !== null) return known
    this.#job = await this.#read()
    return this.#reasonOf(move.attempt)
  }

  #reasonOf(attempt: number): string | null {
    const runs = this.#job?.runs ?? []
    const at = runs.findLastIndex((run) => run.attempt === attempt && run.error !== null)
    const [failed, next] = [runs[at], runs[at + 1]]
    if (at < 0 || failed?.error == null) return null
    const why = oneLine(errorText(failed.error))
    if (next === undefined || failed.finished_at === null) return why
    const waitSeconds = (Date.parse(next.run_at) - Date.parse(failed.finished_at)) / 1000
    return `${why} (the next attempt is due ${Math.max(0, Math.round(waitSeconds))} s later)`
  }
}

/** Why no worker has the job, and which command helps. */
export function waitingText({ message, command }: WaitingForShape): string {
  if (command === undefined) return `${message}.`
  const [reason, remedy] = [message, command].map((text) => text.replace(/\bichido (?=worker)/, () => commandLine('')))
  return `${reason}. To start one on another machine: ${remedy}`
}

/** Prints the result of a job, or fails the command with the reason why there is none. */
export async function showOutcome({ transport }: Connection, job: JobDetail, json: boolean): Promise<void> {
  if (job.state !== 'SUCCEEDED') {
    if (json) outJson({ ...job, result: null })
    throw withoutSuccess(job)
  }
  const { result } = await transport.result(job.job_id, 0)
  if (json) return outJson({ ...job, result })
  say(`${paint('green', 'Done')} ${secondsOf(job)} s after it was submitted`)
  outJson(result, 2)
}

export function withoutSuccess({ job_id: jobId, state, error }: JobDetail): Failure {
  return new Failure(`Job ${jobId} ${oneLine(endText(state, error))}`)
}

function secondsOf({ created_at, finished_at }: JobDetail): string {
  return ((Date.parse(finished_at ?? created_at) - Date.parse(created_at)) / 1000).toFixed(1)
}

interface Progress<T> {
  look(): Promise<T>
  hasEnded(now: T): boolean
  text(now: T): string
  /** Shown after Ctrl-C: what continues, and how to see it again. */
  continues: { message: string; advice: string }
  /** When to stop looking, and what is then said besides the advice. */
  timeout?: { seconds: number; message(): string } | undefined
}

/** Shows the progress of work that the server does until it has ended; survives restarts of the server. */
export async function followProgress<T>({ look, hasEnded, text, continues, timeout }: Progress<T>): Promise<T> {
  const interrupt = new AbortController()
  const onInterrupt = () => interrupt.abort()
  process.once('SIGINT', onInterrupt)
  const signal = AbortSignal.any([interrupt.signal, ...(timeout === undefined ? [] : [timeoutOf(timeout.seconds)])])
  let line = ''
  const live = new LiveLine(() => line)
  try {
    for (let lastAnswerMs = performance.now(); ; ) {
      try {
        const now = await look()
        lastAnswerMs = performance.now()
        if (hasEnded(now)) return now
        const next = text(now)
        if (next !== line && !process.stderr.isTTY) say(next)
        line = next
      } catch (error) {
        if (!mayPass(error) || performance.now() - lastAnswerMs > UNREACHABLE_MAX_MS) throw error
      }
      await pause(LOOK_MS, undefined, { signal })
    }
  } catch (error) {
    if (!signal.aborted) throw error
    if (interrupt.signal.aborted) throw new Failure(continues.message, continues.advice, EXIT.interrupted)
    throw new Failure(timeout?.message() ?? continues.message, continues.advice, EXIT.timeout)
  } finally {
    live.end()
    process.removeListener('SIGINT', onInterrupt)
  }
}
