import { isUtf8 } from 'node:buffer'
import { IchidoError } from '@ichido/sdk/protocol'
import type { World } from '@ichido/sdk/world'
import type { FastifyInstance, FastifyRequest, RequestPayload } from 'fastify'
import { errorOf } from '../../core/json/problem.ts'
import { parseRequestJson } from '../../core/json/request-json.ts'
import type { ClientAddresses } from '../auth/client-address.ts'
import { disconnected } from '../server/streams.ts'
import { BATCH_BODY_BYTES_MAX, BodyBudget, JsonGauge, type JsonLimits } from './body-limits.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The route takes reports of failures: it accepts any text, and the service replaces what cannot be stored. */
    takesAnyText?: true
  }
}

/** The limit of public routes. */
const PUBLIC_BODY_BYTES_MAX = 64 * 1024

/** A body up to this size is parsed at once, without a budget and a queue. */
const SMALL_BODY_BYTES = 64 * 1024

const JSON_LIMITS: JsonLimits = { membersMax: 50_000, elementsMax: 1_000_000 }
const BATCH_JSON_LIMITS: JsonLimits = { ...JSON_LIMITS, membersMax: 100_000 }

type BodyWorld = Pick<World, 'soon' | 'monotonic' | 'after'>

/** Bodies are strict JSON: a value that would be stored differently from what was sent is refused. */
export function installBodies(app: FastifyInstance, world: BodyWorld, addresses: ClientAddresses): void {
  const queue = new ParseQueue(world)
  app.removeAllContentTypeParsers()
  app.addHook('onRoute', (route) => {
    if (route.config?.ability === 'public') route.bodyLimit ??= PUBLIC_BODY_BYTES_MAX
  })
  holdLargeBodies(app, world, addresses)
  app.addContentTypeParser(
    'application/json',
    { parseAs: 'buffer' },
    ({ headers, routeOptions }, body: Buffer, done) => {
      if (headers['content-encoding'] !== undefined) {
        return done(new IchidoError('UNSUPPORTED_MEDIA_TYPE', 'Send the body as it is, without Content-Encoding'))
      }
      const parse = () => {
        let parsed: unknown
        try {
          parsed = body.length === 0 ? undefined : parseBody(body, routeOptions.config.takesAnyText)
        } catch (error) {
          return done(error instanceof Error ? error : new Error(String(error)))
        }
        done(null, parsed)
      }
      if (body.length > SMALL_BODY_BYTES) queue.add(parse)
      else parse()
    },
  )
  // An empty body counts as no body, whatever its type: `curl -d ''` sends a form.
  app.addContentTypeParser('*', ({ headers }, _payload, done) => {
    const isEmpty = (headers['content-length'] ?? '0') === '0' && headers['transfer-encoding'] === undefined
    done(isEmpty ? null : new IchidoError('UNSUPPORTED_MEDIA_TYPE'), undefined)
  })
}

/** Reads a large body when there is room for it in memory, and stops when it has too many parts. */
function holdLargeBodies(app: FastifyInstance, world: BodyWorld, addresses: ClientAddresses): void {
  const budget = new BodyBudget(world)
  const given = new WeakMap<FastifyRequest, () => void>()

  app.addHook('preParsing', (request, reply, payload, done) => {
    const bytes = largeBodyBytes(request)
    if (bytes === null) return done(null, payload)
    // If the client disconnected during authentication, no `close` would give the room back.
    if (reply.raw.destroyed) return done(disconnected())
    const { caller, worker } = request
    const sender = caller?.userId ?? worker?.workerId ?? addresses.of(request)
    const giveBack = budget.take(sender, bytes, () => {
      const isBatch = request.routeOptions.bodyLimit === BATCH_BODY_BYTES_MAX
      done(null, gauged(payload, isBatch ? BATCH_JSON_LIMITS : JSON_LIMITS))
    })
    given.set(request, giveBack)
    reply.raw.once('close', giveBack)
  })
  // The body is parsed, and the handler owns it.
  app.addHook('preHandler', (request, _reply, done) => {
    given.get(request)?.()
    done()
  })
}

/** Null for a small body, for one that is refused for its length, and for a stream. */
function largeBodyBytes({ headers, routeOptions: { bodyLimit, config } }: FastifyRequest): number | null {
  if (config.streams === true) return null
  const length = headers['content-length']
  const bytes = length !== undefined ? Number(length) : headers['transfer-encoding'] === undefined ? 0 : bodyLimit
  return bytes > SMALL_BODY_BYTES && bytes <= bodyLimit ? bytes : null
}

function gauged(payload: RequestPayload, limits: JsonLimits): JsonGauge {
  const gauge = new JsonGauge(limits)
  payload.once('error', (error) => gauge.destroy(error))
  // The rest is read and dropped, because a client that is still sending would not see the answer.
  gauge.once('error', () => payload.resume())
  return payload.pipe(gauge)
}

/** Parses large bodies one at a time, each in its own turn of the event loop, so that other requests run in between. */
class ParseQueue {
  readonly #world: Pick<World, 'soon'>
  readonly #tasks: (() => void)[] = []
  #scheduled = false

  constructor(world: Pick<World, 'soon'>) {
    this.#world = world
  }

  add(task: () => void): void {
    this.#tasks.push(task)
    if (!this.#scheduled) this.#schedule()
  }

  #schedule(): void {
    this.#scheduled = this.#tasks.length > 0
    if (!this.#scheduled) return
    this.#world.soon(() => {
      const task = this.#tasks.shift()
      this.#schedule()
      task?.()
    })
  }
}

export function parseBody(body: Buffer, takesAnyText = false): unknown {
  if (!takesAnyText && !isUtf8(body)) throw new IchidoError('INVALID_PAYLOAD', 'The body is not valid UTF-8')
  const parsed = parseRequestJson(body.toString('utf8'), takesAnyText ? 'kept' : 'refused')
  if (!parsed.ok) throw errorOf(parsed.problem)
  if (parsed.value === null) throw new IchidoError('INVALID_PAYLOAD', 'The body must be a JSON object')
  return parsed.value
}
