import type { ServerResponse } from 'node:http'
import { Readable } from 'node:stream'
import { IchidoError } from '@ichido/sdk/protocol'
import type { World } from '@ichido/sdk/world'
import type { FastifyInstance, FastifyReply } from 'fastify'
import type { Deps } from '../../services/deps.ts'
import { maximumReached } from '../../services/limits/maximum.ts'

/** What is held for a client that does not take it; beyond that nothing is asked for. */
const BUFFER_BYTES = 64 * 1024
/** A client that takes nothing for this long is gone, or might as well be. */
const STALL_MS = 60_000
/** For the end of an answer to go out when the server stops. */
const LAST_WORDS_MS = 200

const RETRY_AFTER_MS = 5_000

export interface StreamContext {
  world: World
  draining: AbortSignal
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

export interface SeatOptions {
  /** How many one user, worker or address may have. */
  setting:
    | 'event_streams_per_user_max'
    | 'log_streams_per_user_max'
    | 'polls_per_worker_max'
    | 'connections_per_address_max'
  what: 'streams' | 'waiting calls' | 'requests'
  /** On this node, whoever has them. */
  nodeMax?: number
}

/** An answer that goes on for long holds a connection and some memory: there is room for so many, and for so many of one. */
export class Seats {
  readonly #deps: Pick<Deps, 'settings' | 'meter'>
  readonly #options: SeatOptions
  readonly #taken = new Map<string, number>()
  #count = 0

  constructor(deps: Pick<Deps, 'settings' | 'meter'>, options: SeatOptions) {
    this.#deps = deps
    this.#options = options
  }

  /** Held until the answer has ended. */
  take(holder: string, reply: FastifyReply): void {
    // Whoever went away while its token was looked up does not go away again: its seat would be taken for ever.
    if (reply.raw.destroyed) throw goneAway()
    const { setting, what, nodeMax = Number.POSITIVE_INFINITY } = this.#options
    const own = this.#taken.get(holder) ?? 0
    if (own >= this.#deps.settings.get(setting)) {
      throw maximumReached(this.#deps, {
        setting,
        says: (max) => `${holder} has ${max} ${what} open on this node, which is the maximum`,
        advice: 'close one, try again later',
        retryAfterMs: RETRY_AFTER_MS,
      })
    }
    if (this.#count >= nodeMax) {
      const message = `This node has ${nodeMax} ${what} open, which is the maximum; try again later, or use another node`
      throw new IchidoError('RATE_LIMITED', message, {}, { retryAfterMs: RETRY_AFTER_MS })
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

export function goneAway(): IchidoError {
  return new IchidoError('UNAVAILABLE', 'The client has disconnected')
}
