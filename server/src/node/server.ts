import { sleep, type World } from '@ichido/sdk/world'
import type { FastifyBaseLogger, FastifyInstance } from 'fastify'
import type { NodeRole } from '../core/node/node-roles.ts'
import type { Metrics } from '../http/metrics/metrics.ts'
import { createApp, publicBase } from '../http/server/app.ts'
import { readOpenFilesMax } from '../library/open-files.ts'
import { openModeProblem, type ServerConfig } from './config.ts'
import type { ControlNode } from './main.ts'
import type { Redis } from './redis-port.ts'

export { createMetrics } from '../http/metrics/metrics.ts'
export { TroubleLog } from './trouble-log.ts'

/** A node that is reachable over HTTP. */
export interface RunningServer {
  url: string
  /** What others call it by, if it was told. */
  publicUrl: string | null
  /** No token was ever made: whoever reaches it may do everything. Only ever on a loopback address without a proxy. */
  open: boolean
  /** Where the data is, for people. */
  location: string
  /** A connection pooler sits in front of the database. */
  pooled: boolean
  /** Refuses new work, lets what runs come to its end, and ends in time whatever happens. */
  stop(beforeStoreCloses: () => Promise<void>): Promise<void>
}

export interface ServerOptions {
  /** Closed with the server, and also when the server cannot be started. */
  node: ControlNode
  metrics: Metrics
  roles?: ReadonlySet<NodeRole> | undefined
  config: ServerConfig
  world: World
  logger: FastifyBaseLogger
  version: string
}

/** Where others can reach it, nobody is served before there is a token. */
export class TokenNeeded extends Error {
  override readonly name = 'TokenNeeded'
}

/** Redis's client takes a quarter of a second to load: only a server that uses it waits for it. */
export function redisOf({ redisUrl: url, shards, redisPrefix: prefix }: ServerConfig): Redis | null {
  if (url === null) return null
  return {
    async prepare(world, store) {
      const { redisAt } = await import('./redis-adapters.ts')
      return redisAt({ url, shards, prefix }).prepare(world, store)
    },
  }
}

/** As long as /readyz says 503 while requests are still taken, so that a load balancer can turn away first. */
const NOTICE_MS = 300
/** For the requests that are running then; longer than nearly all take, short enough for "stopped within 2 s". */
const REQUESTS_MS = 1_000

export async function startServer(options: ServerOptions): Promise<RunningServer> {
  const { node, metrics, roles, config, world, logger, version } = options
  try {
    const { services } = node
    const authRequired = await services.access.isAuthRequired()
    const problem = openModeProblem(config)
    if (problem !== null && !authRequired) throw new TokenNeeded(problem)
    const { mismatchStatus, trustProxy, basePath, allowedOrigins, publicUrl, tls } = config
    const settings = { mismatchStatus, trustProxy, basePath, allowedOrigins, publicUrl, tls, logger, version }
    const openFilesMax = readOpenFilesMax()
    const openMode = problem === null
    const app = await createApp({ services, roles, openMode, metrics, openFilesMax, ...settings })
    try {
      await app.listen({ host: config.host, port: config.port })
    } catch (error) {
      await app.close()
      throw error
    }
    const { location, pooled } = await services.deps.store.health()
    return {
      url: urlOf(app, config),
      publicUrl: publicBase(config),
      open: !authRequired,
      location,
      pooled,
      async stop(beforeStoreCloses) {
        app.startDraining()
        await Promise.all([sleep(world, NOTICE_MS).then(() => closeInTime(app, world)), beforeStoreCloses()])
        await node.close()
      },
    }
  } catch (error) {
    await node.close()
    throw error
  }
}

async function closeInTime(app: FastifyInstance, world: World): Promise<void> {
  const hurry = new AbortController()
  const late = sleep(world, REQUESTS_MS, hurry.signal).then(() => {
    if (!hurry.signal.aborted) app.server.closeAllConnections()
  })
  await app.close()
  hurry.abort()
  await late
}

function urlOf(app: FastifyInstance, { host, tls, basePath }: ServerConfig): string {
  const address = app.server.address()
  const port = typeof address === 'object' && address !== null ? address.port : 0
  // Nobody can call an address that only means "all of them".
  const name = host === '0.0.0.0' || host === '::' ? 'localhost' : host.includes(':') ? `[${host}]` : host
  return `${tls === null ? 'http' : 'https'}://${name}:${port}${basePath}`
}
