import type { ServerResponse } from 'node:http'
import { Readable } from 'node:stream'
import { IchidoError } from '@ichido/sdk/protocol'
import type { World } from '@ichido/sdk/world'
import type { FastifyInstance, FastifyReply } from 'fastify'

/** What is held for a client that does not take it; beyond that nothing is asked for. */
const BUFFER_BYTES = 64 * 1024
/** A client that takes nothing for this long is gone, or might as well be. */
const STALL_MS = 60_000
/** For the end of an answer to go out when the server stops. */
const LAST_WORDS_MS = 200

const STREAMS_MAX = 500
const STREAMS_PER_USER_MAX = 50
const RETRY_AFTER_SECONDS = 5

export interface StreamContext {
  world: World
  draining: AbortSignal
  seats: Seats
}

/** Answers with parts as they come, and asks for the next one only when the client has taken those before it. */
export function sendParts(
  reply: FastifyReply,
  context: StreamContext,
  contentType: string,
  parts: AsyncIterable<string>,
): FastifyReply {
  prepareStream(reply, context, contentType)
  return reply.send(Readable.from(parts, { objectMode: false, highWaterMark: BUFFER_BYTES }))
}

/** An answer that goes on for long ends when the server stops, and when nobody takes it. */
export function prepareStream(
  reply: FastifyReply,
  { world, draining }: Pick<StreamContext, 'world' | 'draining'>,
  contentType: string,
): void {
  const { raw } = reply
  if (raw.destroyed) throw goneAway()
  dropWhenStalled(raw)
  let callOff = () => {}
  const cutOff = () => {
    callOff = world.after(LAST_WORDS_MS, () => raw.destroy())
  }
  draining.addEventListener('abort', cutOff, { once: true })
  raw.once('close', () => {
    draining.removeEventListener('abort', cutOff)
    callOff()
  })
  // nginx would collect what is meant to be seen at once.
  reply.headers({ 'content-type': contentType, 'cache-control': 'no-store', 'x-accel-buffering': 'no' })
}

/** Any other answer ends as well when nobody takes it. A small one fits what the system holds for a client. */
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

/** Each stream holds a connection and some memory for long: there is room for so many on a node, and for one user. */
export class Seats {
  readonly #taken = new Map<string, number>()
  #count = 0

  /** Held until the answer has ended. */
  take(userId: string, reply: FastifyReply): void {
    // Whoever went away while its token was looked up does not go away again: its seat would be taken for ever.
    if (reply.raw.destroyed) throw goneAway()
    const own = this.#taken.get(userId) ?? 0
    if (this.#count >= STREAMS_MAX || own >= STREAMS_PER_USER_MAX) {
      reply.header('retry-after', RETRY_AFTER_SECONDS)
      const whose = own >= STREAMS_PER_USER_MAX ? `${userId} has` : 'This node has'
      throw new IchidoError('RATE_LIMITED', `${whose} as many streams open as it may; close one, or try again later`)
    }
    this.#taken.set(userId, own + 1)
    this.#count++
    reply.raw.once('close', () => this.#leave(userId))
  }

  #leave(userId: string): void {
    this.#count--
    const left = (this.#taken.get(userId) ?? 0) - 1
    if (left > 0) this.#taken.set(userId, left)
    else this.#taken.delete(userId)
  }
}

function goneAway(): IchidoError {
  return new IchidoError('UNAVAILABLE', 'The client has gone away')
}
