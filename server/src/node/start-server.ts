import { readFileSync } from 'node:fs'
import { sleep, type World } from '@ichido/sdk/world'
import type { FastifyBaseLogger, FastifyInstance } from 'fastify'
import type { NodeRole } from '../core/node/node.ts'
import type { Metrics } from '../http/metrics/metrics.ts'
import { createApp, publicBase } from '../http/server/app.ts'
import { openModeProblem, type ServerConfig } from './config.ts'
import type { Redis } from './redis-port.ts'
import type { ControlNode } from './start-node.ts'

export { createMetrics } from '../http/metrics/metrics.ts'
export { TroubleLog } from './trouble-log.ts'

/** A node that is reachable over HTTP. */
export interface RunningServer {
  url: string
  /** The address that clients use, if it is configured. */
  publicUrl: string | null
  /**
   * No token was ever created, so every caller may do everything. This is possible only on a loopback address without a
   * proxy.
   */
  open: boolean
  /** The location of the data, for people. */
  location: string
  /** A connection pooler sits in front of the database. */
  pooled: boolean
  /** Refuses new work, lets running requests finish, and always stops in time. */
  stop(beforeStoreCloses: () => Promise<void>): Promise<void>
}

interface ServerOptions {
  /** Closed with the server, and also if the server cannot start. */
  node: ControlNode
  metrics: Metrics
  roles?: ReadonlySet<NodeRole> | undefined
  config: ServerConfig
  world: World
  logger: FastifyBaseLogger
  version: string
}

/** A server that other machines can reach does not start without a token. */
export class TokenNeeded extends Error {
  override readonly name = 'TokenNeeded'
}

/** The client of Redis takes a quarter of a second to load, so only a server that uses Redis loads it. */
export function redisOf({ redisUrl: url, shards, redisPrefix: prefix }: ServerConfig): Redis | null {
  if (url === null) return null
  return {
    async prepare(world, store) {
      const { redisAt } = await import('./redis-adapters.ts')
      return redisAt({ url, shards, prefix }).prepare(world, store)
    },
  }
}

/** During this time /readyz answers 503 and requests are still accepted, so that a load balancer can turn away. */
const NOTICE_MS = 300
/** The time for running requests. Nearly all are faster, and "stopped within 2 s" holds. */
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
  // Clients cannot call an address that means "all interfaces".
  const name = host === '0.0.0.0' || host === '::' ? 'localhost' : host.includes(':') ? `[${host}]` : host
  return `${tls === null ? 'http' : 'https'}://${name}:${port}${basePath}`
}

/** How many files this process may have open, connections included; null where Linux does not say. */
export function readOpenFilesMax(): number | null {
  try {
    const [, soft] = /^Max open files +(\d+)/m.exec(readFileSync('/proc/self/limits', 'utf8')) ?? []
    return soft === undefined ? null : Number(soft)
  } catch {
    return null
  }
}
