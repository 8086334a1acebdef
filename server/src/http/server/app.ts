import type { RequestListener, Server } from 'node:http'
import Fastify, { type FastifyBaseLogger, type FastifyInstance, LogController } from 'fastify'
import type { ZodTypeProvider } from 'fastify-type-provider-zod'
import type { AllowedOrigins } from '../../core/node/addresses.ts'
import { ALL_NODE_ROLES, type NodeRole } from '../../core/node/node.ts'
import type { Deps } from '../../services/deps.ts'
import { Feeds } from '../../services/events/feeds.ts'
import type { Services } from '../../services/index.ts'
import { installAuth } from '../auth/auth.ts'
import { createClientAddresses, type TrustProxy } from '../auth/client-address.ts'
import { createOwnPages } from '../auth/own-page.ts'
import { RequestRates } from '../auth/rates.ts'
import { createSessionCookie } from '../auth/session-cookie.ts'
import { sessionRoutes } from '../auth/session-routes.ts'
import { CLOUD_PATH, cloudRoutes } from '../compat/cloud/cloud.ts'
import { cloudErrorBody } from '../compat/cloud/shapes.ts'
import { zpeRoutes } from '../compat/zpe/zpe.ts'
import { htmlRoutes } from '../dashboard/dashboard-routes.ts'
import { type Docs, lazyDocs } from '../docs/docs.ts'
import type { Metrics } from '../metrics/metrics.ts'
import { createStoreCheck } from '../metrics/store-check.ts'
import { auditRoutes, tokenRoutes, userRoutes } from '../routes/access.ts'
import { artifactRoutes } from '../routes/artifacts.ts'
import type { RouteContext } from '../routes/context.ts'
import { deadLetterRoutes, redriveRoutes } from '../routes/dead-letters.ts'
import { definitionRoutes } from '../routes/definitions.ts'
import { allEventRoutes, eventRoutes, stateRoutes, streamTokenRoutes } from '../routes/events.ts'
import { finishRoutes } from '../routes/finish.ts'
import { healthRoutes } from '../routes/health.ts'
import { jobRoutes, outcomeRoutes } from '../routes/jobs.ts'
import { leaseRoutes } from '../routes/leases.ts'
import { quotaRoutes, reservationRoutes } from '../routes/limits.ts'
import { logRoutes } from '../routes/logs.ts'
import { occurrenceRoutes } from '../routes/occurrences.ts'
import { operationRoutes } from '../routes/operations.ts'
import { queueRoutes } from '../routes/queues.ts'
import { keyRoutes, submitRoutes } from '../routes/submit.ts'
import { alertRoutes, backupRoutes, settingRoutes, systemRoutes } from '../routes/system.ts'
import { deliveryRoutes, hookRoutes, triggerRoutes } from '../routes/triggers.ts'
import { callbackRoutes, webhookRoutes } from '../routes/webhooks.ts'
import { agentRoutes, workerRoutes } from '../routes/workers.ts'
import { EVENT_FRAMING, limitStalls, Seats } from '../server/streams.ts'
import { installBodies } from './bodies.ts'
import { BODY_BYTES_MAX } from './body-limits.ts'
import { createClientErrorHandler, limitBodyTime, limitConnections } from './connections.ts'
import { cors } from './cors.ts'
import {
  collectPaths,
  errorAnswer,
  errorBody,
  installErrors,
  installValidation,
  logError,
  type MismatchStatus,
  refuseOtherMethods,
  schemaController,
  toIchidoError,
} from './errors.ts'
import { type FastRouteOptions, fastRoute } from './fast-route.ts'
import { answerHeaders, requestId } from './headers.ts'
import { collectDescribed } from './openapi.ts'
import { shareAnswers } from './shared-answers.ts'

declare module 'fastify' {
  interface FastifyInstance {
    /**
     * Begins to stop: /readyz answers 503, waiting calls are answered at once, and each answer closes its connection.
     * Requests are still served; `close()` then waits for the running ones.
     */
    startDraining(): void
  }
}

export interface HttpOptions {
  services: Services
  /** The routes of the node; default: all. */
  roles?: ReadonlySet<NodeRole> | undefined
  /** True only if `openModeProblem` finds no problem. Then no token is needed until the first one is made. */
  openMode: boolean
  mismatchStatus: MismatchStatus
  /** The proxies whose X-Forwarded-* headers count: none, all, or a list of addresses. */
  trustProxy: TrustProxy
  /** A prefix of every path: '', or for example '/ichido'. */
  basePath: string
  /** The sites whose pages may call the server from a browser, beside its own. */
  allowedOrigins?: AllowedOrigins | null | undefined
  publicUrl: string | null
  /** PEM texts. */
  tls: { cert: string; key: string } | null
  /** The maximum of open files of this process, if it is known. */
  openFilesMax?: number | null | undefined
  logger: FastifyBaseLogger | false
  metrics: Metrics
  version: string
}

const HEADER_BYTES_MAX = 16 * 1024
/** A key has up to 256 characters, each of which may be percent-encoded. */
const PARAM_LENGTH_MAX = 256 * 3
/** Longer than the idle timeout of common load balancers, so that the server never closes first. */
const KEEP_ALIVE_MS = 72_000
/** The timeout of the TLS handshake and of the request headers. */
const HEADERS_WITHIN_MS = 15_000
const LOOK_FOR_LATE_MS = 5_000
/** Each stream of a log reads the store by itself. */
const LOG_STREAMS_MAX = 500

export async function createApp(options: HttpOptions): Promise<FastifyInstance> {
  const { services, mismatchStatus, metrics, roles = ALL_NODE_ROLES } = options
  const { world } = services.deps
  const stopping = new AbortController()
  const rates = new RequestRates(services.deps)
  const addresses = createClientAddresses(options.trustProxy)
  const cookie = createSessionCookie(options)
  const ownPages = createOwnPages(options.publicUrl)
  const fast: FastRouteOptions = {
    services,
    metrics,
    rates,
    openMode: options.openMode,
    cookieName: cookie.name,
    protocol: options.tls === null ? 'http' : 'https',
    path: `${options.basePath}/v1/jobs`,
    draining: stopping.signal,
    errorAnswer(thrown, asked) {
      logError(app.log, thrown, asked)
      return errorAnswer(toIchidoError(thrown), asked.requestId, mismatchStatus)
    },
  }
  const app: FastifyInstance = Fastify({
    ...(options.logger === false ? { logger: false } : { loggerInstance: options.logger }),
    // Few requests are logged, so a logger for each request would cost too much.
    childLoggerFactory: (logger) => logger,
    logController: new LogController({ disableRequestLogging: true }),
    genReqId: (request) => requestId(request, world),
    bodyLimit: BODY_BYTES_MAX,
    trustProxy: addresses.trust,
    routerOptions: { maxParamLength: PARAM_LENGTH_MAX },
    schemaController,
    // A request that arrives during close() is served. Its answer closes the connection.
    return503OnClosing: false,
    serverFactory: (framework) =>
      createHttpServer(options.tls, withOrigins(options, roles.has('api') ? fastRoute(fast, framework) : framework)),
    clientErrorHandler: createClientErrorHandler(world),
    frameworkErrors: (error, _request, reply) => void answerError(reply, error),
  })
  const cloudPath = `${options.basePath}${CLOUD_PATH}`
  const answerError = installErrors(app, mismatchStatus, (path) =>
    path === cloudPath || path.startsWith(`${cloudPath}/`) ? cloudErrorBody : errorBody,
  )
  const feeds = new Feeds(services.deps, services.events, EVENT_FRAMING)
  app.decorate('startDraining', () => {
    stopping.abort()
    feeds.stop()
  })

  const { openFilesMax = null } = options
  limitConnections(app, { deps: services.deps, settings: services.settings, metrics, addresses, openFilesMax })
  limitBodyTime(app, world)
  installBodies(app, world, addresses)
  limitStalls(app)
  installValidation(app)
  app.addHook('onRequest', (request, reply, done) => {
    reply.headers(answerHeaders(request.id))
    done()
  })
  app.addHook('onSend', (_request, reply, _payload, done) => {
    if (stopping.signal.aborted) reply.header('connection', 'close')
    done()
  })
  const checkStore = createStoreCheck(world, services.deps.store)
  installAuth(app, { ...options, checkStore, rates, addresses, cookie, ownPages })
  shareAnswers(app, world)
  metrics.built(options.version)
  app.addHook('onResponse', (request, reply, done) => {
    const route = request.routeOptions.url ?? 'none'
    metrics.answered({
      method: request.method,
      route,
      status: reply.statusCode,
      elapsedMs: reply.elapsedTime,
      attempt: request.headers['ichido-attempt'],
    })
    done()
  })

  const paths = collectPaths(app)
  const docs = lazyDocs(collectDescribed(app), { ...options, cookieName: cookie.name })
  await app.register(
    async (scope) => {
      const context: RouteContext = {
        services,
        mismatchStatus,
        publicUrl: publicBase(options),
        world,
        draining: stopping.signal,
        seats: createSeats(services.deps),
        feeds,
      }
      healthRoutes(scope.withTypeProvider<ZodTypeProvider>(), context, { metrics, checkStore })
      systemRoutes(scope.withTypeProvider<ZodTypeProvider>(), context, options.version)
      if (roles.has('gateway')) gatewayRoutes(scope, context)
      if (!roles.has('api')) return
      apiRoutes(scope, context, docs)
      sessionRoutes(scope.withTypeProvider<ZodTypeProvider>(), context, { cookie, ownPages, rates })
      await scope.register(artifactRoutes, context)
      await scope.register(deliveryRoutes, context)
      await scope.register(cloudRoutes, { ...context, version: options.version, checkStore })
      await scope.register(zpeRoutes, { services, mismatchStatus })
      await scope.register(htmlRoutes, { secure: options.tls !== null, basePath: options.basePath, docs })
    },
    { prefix: options.basePath },
  )
  refuseOtherMethods(app, [...paths])
  return app
}

function gatewayRoutes(app: FastifyInstance, context: RouteContext): void {
  const api = app.withTypeProvider<ZodTypeProvider>()
  eventRoutes(api, context)
  allEventRoutes(api, context)
}

function apiRoutes(app: FastifyInstance, context: RouteContext, docs: Docs): void {
  const api = app.withTypeProvider<ZodTypeProvider>()
  submitRoutes(api, context)
  jobRoutes(api, context)
  outcomeRoutes(api, context)
  stateRoutes(api, context)
  streamTokenRoutes(api, context)
  keyRoutes(api, context)
  reservationRoutes(api, context)
  quotaRoutes(api, context)
  userRoutes(api, context)
  tokenRoutes(api, context)
  workerRoutes(api, context)
  leaseRoutes(api, context)
  finishRoutes(api, context)
  logRoutes(api, context)
  occurrenceRoutes(api, context)
  queueRoutes(api, context)
  deadLetterRoutes(api, context)
  redriveRoutes(api, context)
  operationRoutes(api, context)
  definitionRoutes(api, context)
  triggerRoutes(api, context)
  hookRoutes(api, context)
  webhookRoutes(api, context)
  callbackRoutes(api, context)
  settingRoutes(api, context)
  backupRoutes(api, context)
  auditRoutes(api, context)
  alertRoutes(api, context)
  agentRoutes(app)
  api.get('/openapi.json', { config: { ability: 'public' }, schema: { hide: true } }, () => docs.document())
}

function createSeats(deps: Deps): RouteContext['seats'] {
  return {
    logs: new Seats(deps, { setting: 'log_streams_per_user_max', what: 'streams', nodeMax: LOG_STREAMS_MAX }),
    // `Limits.subscribersMax` limits the event streams of the node.
    events: new Seats(deps, { setting: 'event_streams_per_user_max', what: 'streams' }),
    polls: new Seats(deps, { setting: 'polls_per_worker_max', what: 'waiting calls' }),
  }
}

/** PUBLIC_URL may lack the base path. */
export function publicBase({ publicUrl, basePath }: Pick<HttpOptions, 'publicUrl' | 'basePath'>): string | null {
  return publicUrl !== null && new URL(publicUrl).pathname === '/' ? publicUrl + basePath : publicUrl
}

function withOrigins({ allowedOrigins, openMode, services }: HttpOptions, listener: RequestListener): RequestListener {
  if (allowedOrigins == null) return listener
  const { access } = services
  // While the store is down, the last known answer counts, so that the page can read the 503.
  const isOpen = async () => openMode && !(await access.isAuthRequired().catch(() => !access.wasOpen()))
  return cors(allowedOrigins, isOpen, listener)
}

function createHttpServer(tls: HttpOptions['tls'], listener: RequestListener): Server {
  const limits = {
    maxHeaderSize: HEADER_BYTES_MAX,
    // `limitBodyTime` limits it. The default of Node would turn the timeout of the headers off, too.
    requestTimeout: 0,
    headersTimeout: HEADERS_WITHIN_MS,
    connectionsCheckingInterval: LOOK_FOR_LATE_MS,
    keepAliveTimeout: KEEP_ALIVE_MS,
  }
  // An `import` of node:http would also load Node's client for fetch, which takes 10 MB.
  if (tls === null) return process.getBuiltinModule('node:http').createServer(limits, listener)
  const { createServer: createSecureServer } = process.getBuiltinModule('node:https')
  return createSecureServer({ ...limits, ...tls, handshakeTimeout: HEADERS_WITHIN_MS }, listener)
}
