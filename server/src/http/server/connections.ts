import type { IncomingMessage, Server } from 'node:http'
import type { Socket } from 'node:net'
import { ERRORS, IchidoError } from '@ichido/sdk/protocol'
import type { World } from '@ichido/sdk/world'
import type { ConnectionError, FastifyBaseLogger, FastifyInstance } from 'fastify'
import type { Deps } from '../../services/deps.ts'
import type { SettingsService } from '../../services/system/settings.ts'
import { type ClientAddresses, peerGroup } from '../auth/client-address.ts'
import type { Metrics } from '../metrics/metrics.ts'
import { Seats } from '../server/streams.ts'
import { errorBody, JSON_TYPE } from './errors.ts'

const BODY_WITHIN_MS = 120_000
/** How long a client may read the answer. */
const LINGER_MS = 2_000
const REASONS: Readonly<Record<number, string>> = {
  400: 'Bad Request',
  408: 'Request Timeout',
  431: 'Request Header Fields Too Large',
}

interface ConnectionLimits {
  deps: Pick<Deps, 'world' | 'meter'>
  settings: Pick<SettingsService, 'get' | 'onChange'>
  metrics: Pick<Metrics, 'connections'>
  addresses: ClientAddresses
  /** The maximum of open files of this process; null if unknown. */
  openFilesMax: number | null
}

/** The other files are for the store, artifacts and logs, without which a node can do nothing. */
const SHARE_OF_FILES = 0.8
const SAY_AGAIN_MS = 60_000
const MAKE_ROOM_AGAIN_MS = 1_000

/**
 * Limits the connections of the node and of each address. More connections are closed at once without an answer,
 * because an answer would hold a file. Behind proxies it counts the open requests of each address instead.
 */
export function limitConnections(app: FastifyInstance, limits: ConnectionLimits): void {
  const { deps, settings, metrics, addresses } = limits
  const { server, log } = app
  const nodeMax = () => {
    const { openFilesMax } = limits
    const forFiles = openFilesMax === null ? Number.POSITIVE_INFINITY : Math.floor(openFilesMax * SHARE_OF_FILES)
    return Math.min(settings.get('connections_max'), forFiles)
  }
  const setMax = () => {
    server.maxConnections = nodeMax()
  }
  setMax()
  settings.onChange(setMax)

  const say = sayRarely(log, deps.world)
  const makeRoom = atMostEvery(MAKE_ROOM_AGAIN_MS, deps.world, () => server.closeIdleConnections())
  server.on('drop', () => {
    metrics.connections.refused('node')
    say('node', { max: server.maxConnections }, 'this node has reached its maximum of connections and closes new ones')
    makeRoom()
  })
  limitPeers(server, limits, (address) => {
    metrics.connections.refused('address')
    const words = 'an address has reached its maximum of connections, and new ones are closed'
    say('address', { address, max: settings.get('connections_per_address_max') }, words)
  })

  // If every header is trusted, clients behind a proxy cannot be told apart.
  if (typeof addresses.trust === 'boolean') return
  const seats = new Seats({ settings, meter: deps.meter }, { setting: 'connections_per_address_max', what: 'requests' })
  app.addHook('onRequest', async (request, reply) => {
    if (addresses.isProxy(request.raw.socket.remoteAddress)) seats.take(addresses.of(request), reply)
  })
}

function limitPeers(
  server: Server,
  { settings, metrics, addresses }: ConnectionLimits,
  onRefused: (address: string) => void,
): void {
  const open = new Map<string, number>()
  server.on('connection', (socket) => {
    if (socket.destroyed) return
    const address = peerGroup({ socket })
    const own = open.get(address) ?? 0
    if (own >= settings.get('connections_per_address_max') && !addresses.isProxy(socket.remoteAddress)) {
      onRefused(address)
      return void socket.destroy()
    }
    metrics.connections.opened()
    open.set(address, own + 1)
    socket.once('close', () => {
      metrics.connections.closed()
      const left = (open.get(address) ?? 0) - 1
      if (left > 0) open.set(address, left)
      else open.delete(address)
    })
  })
}

/** A rate limit for log lines, because an attack would fill the log. */
function sayRarely(log: FastifyBaseLogger, world: Pick<World, 'monotonic'>) {
  const saidAtMs = new Map<string, number>()
  return (why: string, fields: object, words: string): void => {
    const nowMs = world.monotonic()
    if (nowMs - (saidAtMs.get(why) ?? Number.NEGATIVE_INFINITY) < SAY_AGAIN_MS) return
    saidAtMs.set(why, nowMs)
    log.warn(fields, words)
  }
}

function atMostEvery(ms: number, world: Pick<World, 'monotonic'>, act: () => void): () => void {
  let lastMs = Number.NEGATIVE_INFINITY
  return () => {
    const nowMs = world.monotonic()
    if (nowMs - lastMs < ms) return
    lastMs = nowMs
    act()
  }
}

/** Answers requests that Node's parser refuses, in the form of every other error. */
export function createClientErrorHandler(world: Pick<World, 'after' | 'uuid'>) {
  return (trouble: Pick<ConnectionError, 'code'>, socket: Socket): void => {
    // During the TLS handshake an answer would not arrive, and the socket would wait for it.
    const isUnheard = trouble.code === 'ECONNRESET' || /^ERR_(SSL|TLS)/.test(trouble.code)
    if (isUnheard || !socket.writable) return void socket.destroy()
    const error = toError(trouble.code)
    const { status, retryable } = ERRORS[error.code]
    const requestId = world.uuid()
    const body = JSON.stringify(errorBody(error, requestId))
    const head = [
      `HTTP/1.1 ${status} ${REASONS[status]}`,
      `Content-Type: ${JSON_TYPE}`,
      `Content-Length: ${Buffer.byteLength(body)}`,
      `Should-Retry: ${retryable}`,
      `X-Request-Id: ${requestId}`,
      'Connection: close',
    ]
    socket.end(`${head.join('\r\n')}\r\n\r\n${body}`)
    // A client that does not close its end would keep the connection open.
    socket.once(
      'close',
      world.after(LINGER_MS, () => void socket.destroy()),
    )
  }
}

function toError(code: string): IchidoError {
  if (code === 'HPE_HEADER_OVERFLOW') return new IchidoError('HEADERS_TOO_LARGE')
  if (code === 'ERR_HTTP_REQUEST_TIMEOUT') return new IchidoError('REQUEST_TIMEOUT')
  return new IchidoError('INVALID_PAYLOAD', 'The request is not valid HTTP')
}

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The route reads its body as a stream, without a time limit. */
    streams?: true
  }
}

/**
 * Limits how long a body may take, also after the answer. Node has one limit for all requests, and an upload may take
 * hours.
 */
export function limitBodyTime(app: FastifyInstance, world: Pick<World, 'after' | 'uuid'>): void {
  const refuse = createClientErrorHandler(world)

  function limit(raw: IncomingMessage, whenLate: () => void): void {
    const callOff = world.after(BODY_WITHIN_MS, whenLate)
    raw.once('end', callOff).once('close', callOff)
  }

  // Nearly every body has arrived by now.
  app.addHook('preParsing', ({ raw, routeOptions }, _reply, payload, done) => {
    if (raw.complete === false && routeOptions.config.streams !== true) {
      limit(raw, () => refuse({ code: 'ERR_HTTP_REQUEST_TIMEOUT' }, raw.socket))
    }
    done(null, payload)
  })
  app.addHook('onResponse', ({ raw }, _reply, done) => {
    if (raw.complete === false) limit(raw, () => void raw.socket.destroy())
    done()
  })
}
