import type { OutgoingHttpHeaders } from 'node:http'
import { sleep, type World } from '@ichido/sdk/world'
import type { FastifyReply } from 'fastify'
import { HEARTBEAT_MS, LIFETIME_MS } from '../../services/events/feeds.ts'
import type { Framing, Sink } from '../../services/events/subscriber.ts'
import { iso } from '../../services/iso.ts'
import { waitSignal } from '../routes/context.ts'
import { errorBody, toIchidoError } from '../server/errors.ts'
import { prepareStream, type StreamContext, sendParts } from './stream.ts'

/** Server-sent events, as the HTML standard has them: each with the place to go on from as its id. */

export const SSE_TYPE = 'text/event-stream'

export interface SseEvent {
  /** Without a name it is a `message`, which an EventSource hands to `onmessage`. */
  event?: string | undefined
  /** What the client sends back as Last-Event-ID. */
  id?: string | undefined
  /** Without any, a client learns where to go on from, and hears of nothing. */
  data?: unknown
  /** In the place of `data`: one line of text, sent as it is. */
  line?: string | undefined
}

const HEARTBEAT = ':\n\n'
/** What clients are told to wait before they come again. */
const RETRY_MS = 1_000

/** Ends what a stream waits for: the client has gone away, the server stops, or the stream's time is up. */
export function streamSignal(reply: FastifyReply, { world, draining }: StreamContext): AbortSignal {
  const late = new AbortController()
  reply.raw.once(
    'close',
    world.after(LIFETIME_MS.max, () => late.abort()),
  )
  return AbortSignal.any([waitSignal(reply, draining), late.signal])
}

/**
 * Answers with events as they come and with heartbeats in between, until there are no more. The source must end when
 * `streamSignal` says so. What it throws is told as the event `problem`.
 */
export function sendEvents(
  reply: FastifyReply,
  context: StreamContext,
  source: AsyncGenerator<SseEvent>,
): FastifyReply {
  return sendParts(reply, context, SSE_TYPE, frames(reply, context.world, source))
}

async function* frames(reply: FastifyReply, world: World, source: AsyncGenerator<SseEvent>): AsyncGenerator<string> {
  yield `retry: ${RETRY_MS}\n\n`
  try {
    yield* beating(world, source)
  } catch (thrown) {
    yield problem(reply, thrown)
  }
}

async function* beating(world: World, source: AsyncGenerator<SseEvent>): AsyncGenerator<string> {
  try {
    let next = source.next()
    for (;;) {
      const came = new AbortController()
      const event = await Promise.race([next, sleep(world, HEARTBEAT_MS, came.signal)]).finally(() => came.abort())
      if (event?.done) return
      if (event === undefined) yield HEARTBEAT
      else {
        yield frame(event.value)
        next = source.next()
      }
    }
  } finally {
    await source.return(undefined)
  }
}

/** JSON has no line feeds: one line of data is enough. */
function frame({ event, id, data, line = JSON.stringify(data) }: SseEvent): string {
  const head = `${id === undefined ? '' : `id: ${id}\n`}${event === undefined ? '' : `event: ${event}\n`}`
  return line === undefined ? `${head}\n` : `${head}data: ${line}\n\n`
}

export const EVENT_FRAMING: Framing = {
  // The data is JSON already.
  event({ n, stage, seq, data, createdAtMs }) {
    const about = `"cursor":${n},"stage":${JSON.stringify(stage)},"seq":${seq}`
    return `id: ${n}\ndata: {${about},"data":${data},"timestamp":"${iso(createdAtMs)}"}\n\n`
  },
  reset: (state, cursor) => frame({ event: 'reset', id: String(cursor), data: { cursor, ...state } }),
  end: (state) => frame({ event: 'end', data: { state } }),
  heartbeat: HEARTBEAT,
}

/**
 * Answers with what is written to the sink. Bytes go to the connection as they are, so that many streams can share them. The
 * answer's `close` and `drain` are the caller's to listen to.
 */
export function openSink(reply: FastifyReply, context: Pick<StreamContext, 'world' | 'draining'>): Sink {
  const { raw } = reply
  prepareStream(reply, context, SSE_TYPE)
  reply.hijack()
  // What is written to a connection that has just broken: its `close` is on the way.
  raw.on('error', () => {})
  // Without chunks, each of which would be four writes: the end of the stream is that of the connection.
  raw.removeHeader('transfer-encoding')
  raw.writeHead(200, { ...(reply.getHeaders() as OutgoingHttpHeaders), connection: 'close' })
  // When a node stops, those who followed on it come to the others, but not all in the same moment.
  raw.write(`retry: ${RETRY_MS + Math.round(context.world.random() * RETRY_MS)}\n\n`)
  return {
    write: (bytes) => raw.write(bytes),
    end: () => void raw.end(),
    fail: (thrown) => void raw.end(problem(reply, thrown)),
  }
}

function problem(reply: FastifyReply, thrown: unknown): string {
  const error = toIchidoError(thrown)
  const requestId = reply.request.id
  if (error.code === 'INTERNAL') reply.log.error({ err: thrown, requestId }, 'a stream failed')
  return frame({ event: 'problem', data: errorBody(error, requestId) })
}
