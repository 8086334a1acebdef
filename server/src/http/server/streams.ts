import type { OutgoingHttpHeaders, ServerResponse } from 'node:http'
import { Readable } from 'node:stream'
import { IchidoError } from '@ichido/sdk/protocol'
import { sleep, type World } from '@ichido/sdk/world'
import type { FastifyInstance, FastifyReply } from 'fastify'
import { iso } from '../../services/answers.ts'
import type { Deps } from '../../services/deps.ts'
import { STREAM_HEARTBEAT_MS, STREAM_LIFETIME_MS } from '../../services/events/feeds.ts'
import type { Framing, Sink } from '../../services/events/subscriber.ts'
import { maximumReached } from '../../services/limits/maximum.ts'
import { errorBody, toIchidoError } from './errors.ts'

/** Long answers: streams of parts, server-sent events, and the limits of how many there may be. */

export const SSE_TYPE = 'text/event-stream'

/** This much is buffered for a slow client. Then the source is not read any further. */
const BUFFER_BYTES = 64 * 1024
/** The server closes the connection of a client that reads nothing for this long. */
const STALL_MS = 60_000
/** When the server stops, a stream has this long to send its end. */
const DRAIN_MS = 200
/** Clients wait this long before they connect again. */
const RETRY_MS = 1_000
const HEARTBEAT = ':\n\n'
const SEAT_RETRY_AFTER_MS = 5_000

export interface StreamContext {
  world: World
  draining: AbortSignal
}

export interface SseEvent {
  /** An event without a name is a `message`, which an EventSource passes to `onmessage`. */
  event?: string | undefined
  /** The client sends it back as Last-Event-ID. */
  id?: string | undefined
  /** An event with an id but without data tells the client only where to continue. */
  data?: unknown
  /** One line of text in place of `data`, sent unchanged. */
  line?: string | undefined
}

/** Ends a wait when the client has disconnected or the server stops. */
export function waitSignal(reply: FastifyReply, draining: AbortSignal): AbortSignal {
  const gone = new AbortController()
  // If the client disconnected during authentication, `close` was emitted before this listener exists.
  if (reply.raw.destroyed) gone.abort()
  else reply.raw.once('close', () => gone.abort())
  return AbortSignal.any([gone.signal, draining])
}

/** Sends parts as they come. It reads the next part only when the client has taken the ones before. */
export function sendParts(
  reply: FastifyReply,
  context: StreamContext,
  contentType: string,
  parts: AsyncIterable<string>,
): FastifyReply {
  prepareStream(reply, context, contentType)
  return reply.send(Readable.from(parts, { objectMode: false, highWaterMark: BUFFER_BYTES }))
}

/**
 * Sends events as they come, with heartbeats in between, until the source ends. The source must end when its signal aborts:
 * the client has disconnected, the server stops, or the stream has reached its maximum age. If the source throws, the
 * client gets the event `problem`.
 */
export async function sendEvents(
  reply: FastifyReply,
  context: StreamContext,
  open: (signal: AbortSignal) => Promise<AsyncGenerator<SseEvent>>,
): Promise<FastifyReply> {
  const old = new AbortController()
  reply.raw.once(
    'close',
    context.world.after(STREAM_LIFETIME_MS.max, () => old.abort()),
  )
  const source = await open(AbortSignal.any([waitSignal(reply, context.draining), old.signal]))
  return sendParts(reply, context, SSE_TYPE, frames(reply, context.world, source))
}

async function* frames(reply: FastifyReply, world: World, source: AsyncGenerator<SseEvent>): AsyncGenerator<string> {
  yield `retry: ${RETRY_MS}\n\n`
  try {
    let next = source.next()
    for (;;) {
      const came = new AbortController()
      const event = await Promise.race([next, sleep(world, STREAM_HEARTBEAT_MS, came.signal)]).finally(() =>
        came.abort(),
      )
      if (event?.done) return
      if (event === undefined) yield HEARTBEAT
      else {
        yield frame(event.value)
        next = source.next()
      }
    }
  } catch (thrown) {
    yield problem(reply, thrown)
  } finally {
    await source.return(undefined)
  }
}

/**
 * Opens a stream of server-sent events for a subscriber of a feed. The subscriber writes bytes that all readers of the job
 * share, and the caller listens to `close` and `drain` of the answer.
 */
export function openSink(reply: FastifyReply, context: StreamContext): Sink {
  const { raw } = reply
  prepareStream(reply, context, SSE_TYPE)
  reply.hijack()
  // A write to a connection that has just broken emits an error. Its `close` follows.
  raw.on('error', () => {})
  // A chunk would be four writes. Without chunks, the stream ends with the connection.
  raw.removeHeader('transfer-encoding')
  raw.writeHead(200, { ...(reply.getHeaders() as OutgoingHttpHeaders), connection: 'close' })
  // When a node stops, its readers connect to other nodes, but not all at the same moment.
  raw.write(`retry: ${RETRY_MS + Math.round(context.world.random() * RETRY_MS)}\n\n`)
  return {
    write: (bytes) => raw.write(bytes),
    end: () => void raw.end(),
    fail: (thrown) => void raw.end(problem(reply, thrown)),
  }
}

export const EVENT_FRAMING: Framing = {
  // `data` is JSON text already.
  event({ n, stage, seq, data, createdAtMs }) {
    const about = `"cursor":${n},"stage":${JSON.stringify(stage)},"seq":${seq}`
    return `id: ${n}\ndata: {${about},"data":${data},"timestamp":"${iso(createdAtMs)}"}\n\n`
  },
  reset: (state, cursor) => frame({ event: 'reset', id: String(cursor), data: { cursor, ...state } }),
  end: (state) => frame({ event: 'end', data: { state } }),
  heartbeat: HEARTBEAT,
}

/** JSON has no line feeds, so one line of data is enough. */
function frame({ event, id, data, line = JSON.stringify(data) }: SseEvent): string {
  const head = `${id === undefined ? '' : `id: ${id}\n`}${event === undefined ? '' : `event: ${event}\n`}`
  return line === undefined ? `${head}\n` : `${head}data: ${line}\n\n`
}

function problem(reply: FastifyReply, thrown: unknown): string {
  const error = toIchidoError(thrown)
  const requestId = reply.request.id
  if (error.code === 'INTERNAL') reply.log.error({ err: thrown, requestId }, 'a stream failed')
  return frame({ event: 'problem', data: errorBody(error, requestId) })
}

/** Ends a long answer when the server stops, and when the client stops reading. */
function prepareStream(reply: FastifyReply, { world, draining }: StreamContext, contentType: string): void {
  const { raw } = reply
  if (raw.destroyed) throw disconnected()
  dropWhenStalled(raw)
  let callOff = () => {}
  const cutOff = () => {
    callOff = world.after(DRAIN_MS, () => raw.destroy())
  }
  draining.addEventListener('abort', cutOff, { once: true })
  raw.once('close', () => {
    draining.removeEventListener('abort', cutOff)
    callOff()
  })
  // `x-accel-buffering` keeps nginx from buffering the stream.
  reply.headers({ 'content-type': contentType, 'cache-control': 'no-store', 'x-accel-buffering': 'no' })
}

/** Ends every other answer when the client stops reading, except small ones, which fit into the buffer of the socket. */
export function limitStalls(app: FastifyInstance): void {
  app.addHook('onSend', (_request, { raw }, payload, done) => {
    const isSmall = payload == null || (typeof payload === 'string' && payload.length <= BUFFER_BYTES)
    if (!isSmall) dropWhenStalled(raw)
    done()
  })
}

function dropWhenStalled(raw: ServerResponse): void {
  raw.setTimeout(STALL_MS, () => raw.destroy())
}

interface SeatOptions {
  /** The setting with the maximum for one user, worker or address. */
  setting:
    | 'event_streams_per_user_max'
    | 'log_streams_per_user_max'
    | 'polls_per_worker_max'
    | 'connections_per_address_max'
  what: 'streams' | 'waiting calls' | 'requests'
  /** The maximum of this node. */
  nodeMax?: number
}

/** A long answer holds a connection and some memory, so a node limits how many there are, in all and for each holder. */
export class Seats {
  readonly #deps: Pick<Deps, 'settings' | 'meter'>
  readonly #options: SeatOptions
  readonly #taken = new Map<string, number>()
  #count = 0

  constructor(deps: Pick<Deps, 'settings' | 'meter'>, options: SeatOptions) {
    this.#deps = deps
    this.#options = options
  }

  /** The seat is taken until the answer has ended. */
  take(holder: string, reply: FastifyReply): void {
    // If the client disconnected during authentication, no `close` would free the seat.
    if (reply.raw.destroyed) throw disconnected()
    const { setting, what, nodeMax = Number.POSITIVE_INFINITY } = this.#options
    const own = this.#taken.get(holder) ?? 0
    if (own >= this.#deps.settings.get(setting)) {
      throw maximumReached(this.#deps, {
        setting,
        says: (max) => `${holder} has ${max} ${what} open on this node, which is the maximum`,
        advice: 'close one, try again later',
        retryAfterMs: SEAT_RETRY_AFTER_MS,
      })
    }
    if (this.#count >= nodeMax) {
      const message = `This node has ${nodeMax} ${what} open, which is the maximum; try again later, or use another node`
      throw new IchidoError('RATE_LIMITED', message, {}, { retryAfterMs: SEAT_RETRY_AFTER_MS })
    }
    this.#taken.set(holder, own + 1)
    this.#count++
    reply.raw.once('close', () => this.#leave(holder))
  }

  #leave(holder: string): void {
    this.#count--
    const left = (this.#taken.get(holder) ?? 0) - 1
    if (left > 0) this.#taken.set(holder, left)
    else this.#taken.delete(holder)
  }
}

export function disconnected(): IchidoError {
  return new IchidoError('UNAVAILABLE', 'The client has disconnected')
}
