import { isUtf8 } from 'node:buffer'
import { IchidoError } from '@ichido/sdk/protocol'
import type { World } from '@ichido/sdk/world'
import type { FastifyInstance, FastifyRequest, RequestPayload } from 'fastify'
import { parseStrictJson } from '../../core/json/strict-json.ts'
import type { ClientAddresses } from '../auth/client-address.ts'
import { goneAway } from '../streaming/stream.ts'
import { BodyBudget } from './body-budget.ts'
import { JsonGauge, type JsonLimits } from './json-gauge.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The route reports what went wrong: its text is taken as it is, and the service mends what cannot be stored. */
    takesAnyText?: true
  }
}

/** Of the routes that take many jobs, reports, events, triggers or lines of a log at once: 1,000 of 16 KiB each. */
export const BATCH_BODY_BYTES_MAX = 16 * 1024 * 1024

/** For all that a body says beside a payload or a result, and for bodies that have neither. */
const ENVELOPE_BYTES_MAX = 128 * 1024

/** The limit of a route whose bodies hold one payload, or one result, of this many bytes at most. */
export const bodyBytesFor = (bytesMax: number) => bytesMax + ENVELOPE_BYTES_MAX

export const BODY_BYTES_MAX = bodyBytesFor(0)

/** Of the routes that anybody may call. */
const PUBLIC_BODY_BYTES_MAX = 64 * 1024

/** A smaller body cannot hold much of anything. It is read and parsed as it comes. */
const SMALL_BODY_BYTES = 64 * 1024

const JSON_LIMITS: JsonLimits = { membersMax: 50_000, elementsMax: 1_000_000 }
const BATCH_JSON_LIMITS: JsonLimits = { ...JSON_LIMITS, membersMax: 100_000 }

type BodyWorld = Pick<World, 'soon' | 'monotonic' | 'after'>

/** Bodies are JSON, and strictly so: what would be stored as something else than was sent is refused. */
export function installBodies(app: FastifyInstance, world: BodyWorld, addresses: ClientAddresses): void {
  const turns = new PerUserQueue(world)
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
      if (body.length > SMALL_BODY_BYTES) turns.take(parse)
      else parse()
    },
  )
  // An empty body is none, whatever it is called: `curl -d ''` says that it is a form.
  app.addContentTypeParser('*', ({ headers }, _payload, done) => {
    const isEmpty = (headers['content-length'] ?? '0') === '0' && headers['transfer-encoding'] === undefined
    done(isEmpty ? null : new IchidoError('UNSUPPORTED_MEDIA_TYPE'), undefined)
  })
}

/** Large bodies are read when there is room for them in memory, and only as long as there is not too much in them. */
function holdLargeBodies(app: FastifyInstance, world: BodyWorld, addresses: ClientAddresses): void {
  const budget = new BodyBudget(world)
  const given = new WeakMap<FastifyRequest, () => void>()

  app.addHook('preParsing', (request, reply, payload, done) => {
    const bytes = largeBodyBytes(request)
    if (bytes === null) return done(null, payload)
    // Whoever went away while its token was looked up does not go away again: its room would be taken for ever.
    if (reply.raw.destroyed) return done(goneAway())
    const { caller, worker } = request
    const sender = caller?.userId ?? worker?.workerId ?? addresses.of(request)
    const giveBack = budget.take(sender, bytes, () => {
      const isBatch = request.routeOptions.bodyLimit === BATCH_BODY_BYTES_MAX
      done(null, gauged(payload, isBatch ? BATCH_JSON_LIMITS : JSON_LIMITS))
    })
    given.set(request, giveBack)
    reply.raw.once('close', giveBack)
  })
  // It is parsed: from now on it is the handler's.
  app.addHook('preHandler', (request, _reply, done) => {
    given.get(request)?.()
    done()
  })
}

/** Null for a small one, for one that is refused for its length anyway, and for those that are never held whole. */
function largeBodyBytes({ headers, routeOptions: { bodyLimit, config } }: FastifyRequest): number | null {
  if (config.streams === true) return null
  const length = headers['content-length']
  const bytes = length !== undefined ? Number(length) : headers['transfer-encoding'] === undefined ? 0 : bodyLimit
  return bytes > SMALL_BODY_BYTES && bytes <= bodyLimit ? bytes : null
}

function gauged(payload: RequestPayload, limits: JsonLimits): JsonGauge {
  const gauge = new JsonGauge(limits)
  payload.once('error', (error) => gauge.destroy(error))
  // The rest is read and dropped: a client that is still sending would not see the answer.
  gauge.once('error', () => payload.resume())
  return payload.pipe(gauge)
}

/** Each in a turn of its own, so that what has arrived meanwhile is served between two of them. */
class PerUserQueue {
  readonly #world: Pick<World, 'soon'>
  readonly #tasks: (() => void)[] = []
  #isDue = false

  constructor(world: Pick<World, 'soon'>) {
    this.#world = world
  }

  take(task: () => void): void {
    this.#tasks.push(task)
    if (!this.#isDue) this.#arrange()
  }

  #arrange(): void {
    this.#isDue = this.#tasks.length > 0
    if (!this.#isDue) return
    this.#world.soon(() => {
      const task = this.#tasks.shift()
      this.#arrange()
      task?.()
    })
  }
}

export function parseBody(body: Buffer, takesAnyText = false): unknown {
  if (!takesAnyText && !isUtf8(body)) throw new IchidoError('INVALID_PAYLOAD', 'The body is not valid UTF-8')
  const parsed = parseStrictJson(body.toString('utf8'), takesAnyText ? 'kept' : 'refused')
  if (!parsed.ok) throw new IchidoError('INVALID_PAYLOAD', parsed.problem.message, { field: parsed.problem.field })
  if (parsed.value === null) throw new IchidoError('INVALID_PAYLOAD', 'The body must be a JSON object')
  return parsed.value
}
