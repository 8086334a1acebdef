import { ForeignAnswer, NoAnswer, Transient } from '../client/errors.ts'
import { mayRetry, retryAfterMs, retryDelayMs } from '../client/retry.ts'
import type { World } from '../world.ts'

/** What a try that failed means: nobody answered; it may go through later; it was refused for good. */
export type Verdict = 'unanswered' | 'again' | 'refused'

export function judge(error: unknown): Verdict {
  const cause = said(error)
  if (isUnanswered(cause)) return 'unanswered'
  return mayRetry(cause) ? 'again' : 'refused'
}

/** The client says of what may pass what it was. */
function said(error: unknown): unknown {
  return error instanceof Transient ? error.cause : error
}

/**
 * How the TypeErrors begin that `fetch`, and reading what it got, throw without a connection: in Chromium, Firefox, Safari
 * and Node. Only the words tell them from a mistake in `send`, which would stay for ever unseen; Node gives a cause also
 * to that of an address that is none.
 */
const NO_CONNECTION =
  /^(failed to fetch|network ?error|error in input stream|load failed|the (network|internet) connection|fetch failed|terminated)/i

function isUnanswered(error: unknown): boolean {
  if (error instanceof NoAnswer) return true
  if (error instanceof TypeError) return NO_CONNECTION.test(error.message)
  if (error instanceof DOMException) return error.name === 'AbortError' || error.name === 'TimeoutError'
  // A page where the application's answer should be: of a network that wants its guests to log in.
  return error instanceof ForeignAnswer && error.status < 400
}

const WORDS_LENGTH_MAX = 1_000

/** What went wrong, for the person who looks at the list. */
export function wordsOf(error: unknown): string {
  const cause = said(error)
  return (cause instanceof Error ? cause.message : String(cause)).slice(0, WORDS_LENGTH_MAX)
}

/** Nobody waits for it, and a server that is being restarted is back by then: 16 s, 32 s, 60 s … */
const SLOWER = 4
export const DELAY_MAX_MS = 3_600_000

export function dueInMs(attempts: number, error: unknown, random: () => number): number {
  return Math.round(Math.min(DELAY_MAX_MS, retryDelayMs(attempts + SLOWER, error, random)))
}

/** An answer that `send` got and did not look at. */
class ErrorAnswer extends Error {
  override readonly name = 'ErrorAnswer'
  readonly status: number
  readonly code: string | undefined
  readonly shouldRetry: boolean | undefined
  readonly retryAfterMs: number | undefined

  constructor(response: Response, message: string, code: string | undefined, nowMs: number) {
    super(message)
    this.status = response.status
    this.code = code
    const advice = response.headers.get('should-retry')
    this.shouldRetry = advice === null ? undefined : advice.trim().toLowerCase() === 'true'
    this.retryAfterMs = retryAfterMs(response.headers, nowMs)
  }
}

/** `send: () => fetch(…)` must not count an error answer as a delivery. */
export async function refuseErrorAnswer(answer: unknown, world: Pick<World, 'now'>): Promise<void> {
  if (!(answer instanceof Response) || answer.ok) return
  const { error } = await answer.json().catch(() => ({}))
  const { code, message = `The server answered ${answer.status} ${answer.statusText}` } = error ?? {}
  throw new ErrorAnswer(answer, String(message), typeof code === 'string' ? code : undefined, world.now())
}
