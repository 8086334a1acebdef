import { createParser } from 'eventsource-parser'
import { type ErrorBody, IchidoError, type JobStateShape } from '../protocol/index.ts'
import { sleep, type Timers } from '../world.ts'
import type { Open } from './call.ts'
import { ForeignAnswer } from './errors.ts'
import { mayRetry } from './retry.ts'
import type { JobEvent, WatchOptions } from './transport.ts'

/** Three heartbeats of the server; a silent connection is broken. */
const SILENCE_MS = 45_000
/** The pause between failed tries, doubled each time. */
const BACKOFF_MS = { first: 300, max: 10_000 }
const RETRY_MS = 1_000

/** Yields the events of a job. After a broken connection it continues after the last cursor. */
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
      // Errors of the caller's own code are not retried.
      if (!(error instanceof Broken)) throw error
      if (signal?.aborted || !mayPass(error.cause)) throw error.cause
      failures++
      onTrouble?.(error.cause)
    }
    const backoffMs = failures === 0 ? retryMs : Math.min(BACKOFF_MS.max, BACKOFF_MS.first * 2 ** (failures - 1))
    await sleep(timers, backoffMs * (0.5 + timers.random() / 2), signal)
  }
}

/** The connection broke, or the server reported a problem on it. */
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

/** Reads one connection. The server's answers are trusted to match the OpenAPI description. */
async function* messagesOf(
  open: Open,
  timers: Timers,
  path: string,
  signal: AbortSignal | undefined,
): AsyncGenerator<Message> {
  const silent = new AbortController()
  const either = signal === undefined ? silent.signal : AbortSignal.any([signal, silent.signal])
  const unlessSilent = async <T>(reading: Promise<T>): Promise<T> => {
    const callOff = timers.after(SILENCE_MS, () =>
      silent.abort(new Error(`The stream was silent for ${SILENCE_MS} ms`)),
    )
    try {
      return await reading
    } catch (error) {
      throw new Broken(error)
    } finally {
      callOff()
    }
  }
  const response = await unlessSilent(open(path, { headers: { accept: 'text/event-stream' }, signal: either }))
  if (response.body === null) return yield { event: 'end', data: null }
  // For example the page of a proxy, which never has events.
  if (!response.headers.get('content-type')?.startsWith('text/event-stream')) {
    throw new Broken(new ForeignAnswer(response.status, await unlessSilent(response.text())))
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
      const { done, value } = await unlessSilent(reader.read())
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

/** Whether the error is temporary. */
function mayPass(error: unknown): boolean {
  return !(error instanceof IchidoError || error instanceof ForeignAnswer) || mayRetry(error)
}
