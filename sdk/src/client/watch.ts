import { createParser } from 'eventsource-parser'
import { type ErrorBody, IchidoError, type JobStateShape } from '../protocol/index.ts'
import { sleep, type Timers } from '../world.ts'
import type { Open } from './call.ts'
import { ForeignAnswer } from './errors.ts'
import { mayRetry } from './retry.ts'
import type { JobEvent, WatchOptions } from './transport.ts'

/** Three heartbeats of the server: a connection that says nothing for so long is broken. */
const SILENCE_MS = 45_000
/** Between tries that fail, doubled each time. */
const BACKOFF_MS = { first: 300, max: 10_000 }
const RETRY_MS = 1_000

/**
 * The events of a job from their stream, through restarts of the server and broken connections: it goes on after the last
 * cursor that it saw.
 */
export async function* watchEvents(
  open: Open,
  timers: Timers,
  path: string,
  { after, lastSeq, signal, onReset, onTrouble }: WatchOptions,
): AsyncGenerator<JobEvent> {
  let query = lastSeq !== undefined ? `last_seq=${lastSeq}` : `after=${after ?? 0}`
  let cursor = after ?? 0
  let retryMs = RETRY_MS
  for (let failures = 0; ; ) {
    signal?.throwIfAborted()
    try {
      for await (const message of messagesOf(open, timers, `${path}?${query}`, signal)) {
        if (failures > 0) onTrouble?.(null)
        failures = 0
        if (message.event === 'end') return
        if (message.event === 'problem') throw new Broken(problemOf(message.data))
        if (message.event === 'retry') retryMs = message.data
        else if (message.event === 'reset') {
          cursor = message.data.cursor
          query = `after=${cursor}`
          onReset?.(message.data)
        } else if (message.event === 'message' && message.data.cursor > cursor) {
          cursor = message.data.cursor
          query = `after=${cursor}`
          yield message.data
        }
      }
    } catch (error) {
      // What the caller's own code threw is not for us to try again.
      if (!(error instanceof Broken)) throw error
      if (signal?.aborted || !mayPass(error.cause)) throw error.cause
      failures++
      onTrouble?.(error.cause)
    }
    const backoffMs = failures === 0 ? retryMs : Math.min(BACKOFF_MS.max, BACKOFF_MS.first * 2 ** (failures - 1))
    await sleep(timers, backoffMs * (0.5 + timers.random() / 2), signal)
  }
}

/** The connection, or what was said on it. */
class Broken extends Error {
  constructor(cause: unknown) {
    super('The stream broke', { cause })
  }
}

type Message =
  | { event: 'message'; data: JobEvent }
  | { event: 'reset'; data: JobStateShape & { cursor: number } }
  | { event: 'end'; data: unknown }
  | { event: 'problem'; data: ErrorBody }
  | { event: 'retry'; data: number }

/** What comes by one connection. The answer is trusted to have the shape that the API's description gives it. */
async function* messagesOf(
  open: Open,
  timers: Timers,
  path: string,
  signal: AbortSignal | undefined,
): AsyncGenerator<Message> {
  const silent = new AbortController()
  const either = signal === undefined ? silent.signal : AbortSignal.any([signal, silent.signal])
  const heard = async <T>(word: Promise<T>): Promise<T> => {
    const callOff = timers.after(SILENCE_MS, () =>
      silent.abort(new Error(`The stream was silent for ${SILENCE_MS} ms`)),
    )
    try {
      return await word
    } catch (error) {
      throw new Broken(error)
    } finally {
      callOff()
    }
  }
  const response = await heard(open(path, { headers: { accept: 'text/event-stream' }, signal: either }))
  if (response.body === null) return yield { event: 'end', data: null }
  // A page of a proxy, say, has no events, and never will.
  if (!response.headers.get('content-type')?.startsWith('text/event-stream')) {
    throw new Broken(new ForeignAnswer(response.status, await heard(response.text())))
  }
  const found: Message[] = []
  const parser = createParser({
    onRetry: (ms) => void found.push({ event: 'retry', data: ms }),
    onEvent: ({ event = 'message', data }) => void found.push({ event, data: JSON.parse(data) } as Message),
  })
  const reader = response.body.getReader()
  const decoder = new TextDecoder()
  try {
    for (;;) {
      const { done, value } = await heard(reader.read())
      if (done) return
      parser.feed(decoder.decode(value, { stream: true }))
      yield* found.splice(0)
    }
  } finally {
    await reader.cancel().catch(() => {})
  }
}

function problemOf({ error: { code, message, details } }: ErrorBody): IchidoError {
  return new IchidoError(code, message, details)
}

/** Nobody answers, or not now. */
function mayPass(error: unknown): boolean {
  return !(error instanceof IchidoError || error instanceof ForeignAnswer) || mayRetry(error)
}
