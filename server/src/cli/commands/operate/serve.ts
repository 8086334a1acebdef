import { jsonForTerminal } from '@ichido/sdk/terminal'
import type { Command } from 'commander'
import { ALL_NODE_ROLES, isNodeRole, NODE_ROLES, type NodeRole } from '../../../core/node/node.ts'
import { codeOf, innermost } from '../../../core/node/store-errors.ts'
import type { ServerConfig } from '../../../node/config.ts'
import type { AlertChange, LeadershipChange } from '../../../node/start-node.ts'
import { processEnv } from '../../connection/connect.ts'
import { opening, tlsProblem } from '../../connection/store.ts'
import { sayRunning, sayStopped, tokenLine } from '../../output/banner.ts'
import { EXIT, Failure } from '../../output/exit.ts'
import { outJson, paint, say } from '../../output/terminal.ts'
import { VERSION } from '../../self.ts'
import { youngMemory } from '../../young-memory.ts'

interface ServeFlags {
  localWorker?: boolean
  json?: boolean
  roles?: string
}

export const STOP_SIGNALS = ['SIGHUP', 'SIGINT', 'SIGQUIT', 'SIGTERM', 'SIGUSR2'] as const
/** A signal to the process group arrives again from npm and from the script that npm runs. */
const SAME_SIGNAL_MS = 1_000
/** "Ctrl-C stops everything within 2 s": work that takes longer is cut off. */
const STOP_WITHIN_MS = 1_900
const DRAIN_WORKER_MS = 1_000

export function addServe(program: Command): void {
  program
    .command('serve')
    .description('run the control plane')
    .option('--local-worker', 'also run a worker for the queue "demo"')
    .option('--roles <list>', `the roles of this process: some of ${NODE_ROLES.join(',')} (default: all)`)
    .option('--json', 'print the address as a line of JSON')
    .addHelpText('after', SETTINGS)
    .action(serve)
}

const SETTINGS = `
Configure it with environment variables:
  HOST, PORT                    where to listen (127.0.0.1, 8001; port 0 takes a free one)
  DATA_DIR                      folder of the embedded store (./data)
  DATABASE_URL                  PostgreSQL instead: postgres://user:password@host/database, or host1,host2 with replicas
  DATABASE_DIRECT_URL           PostgreSQL itself, for wake-ups, when DATABASE_URL leads to PgBouncer
  DATABASE_SCHEMA               where its tables are (ichido)
  REDIS_URL                     events also go over Redis: redis://host:6379 or redis+cluster://host:6379,host:6379
  SHARDS                        streams in Redis for each domain (4)
  REDIS_PREFIX                  a prefix of all keys in a shared Redis (none)
  ARTIFACTS_DIR                 folder for artifacts, shared by all nodes (DATA_DIR/artifacts; none with PostgreSQL)
  ARTIFACT_BYTES_MAX            the maximum size of an artifact (5368709120)
  TLS_CERT_FILE, TLS_KEY_FILE   serve HTTPS with this certificate and key
  TRUST_PROXY                   the proxies whose X-Forwarded-* headers to trust: true, false or addresses (false)
  PUBLIC_URL, BASE_PATH         the URL for people, and a prefix of all paths
  LOG_LEVEL                     fatal, error, warn, info, debug, trace or silent (warn)
  IDEMPOTENCY_MISMATCH_STATUS   409 or 422 for a key with a different request (409)
  REAP_INTERVAL_SECONDS, …      each name of GET /v1/settings in capitals: overrides the stored value
  ALLOW_NO_FSYNC                1 allows a store that may lose acknowledged jobs
DATABASE_URL, DATABASE_DIRECT_URL and REDIS_URL can also come from a file: DATABASE_URL_FILE, ….`

async function serve({ localWorker = false, json = false, roles: roleNames }: ServeFlags): Promise<void> {
  youngMemory.hold()
  const { readServerConfig } = await import('../../../node/config.ts')
  const config = readServerConfig(processEnv)
  const roles = readRoles(roleNames, config)
  const [
    { createMetrics, redisOf, startServer, TokenNeeded, TroubleLog },
    { startNode },
    { realWorld: world },
    { pino },
    { default: closeWithGrace },
  ] = await Promise.all([
    import('../../../node/start-server.ts'),
    import('../../../node/start-node.ts'),
    import('../../../node/world.ts'),
    import('pino'),
    import('close-with-grace'),
  ])
  const stderr = pino.destination({ fd: 2, sync: true })
  const logger = pino({ level: config.logLevel }, { write: (line) => stderr.write(jsonForTerminal(line)) })
  // Called only after the node has reported trouble, so it exists.
  const troubles = new TroubleLog({
    logger,
    world,
    askStore: () => starting.then((node) => node.services.deps.store.health()),
  })
  const onTrouble = troubles.on
  const metrics = createMetrics(world)
  const { storage, allowNoFsync, artifacts, settings: fixed } = config
  const given = {
    storage,
    allowNoFsync,
    artifacts,
    redis: redisOf(config),
    roles,
    fixed,
    certificate: config.tls?.cert,
  }
  const onLeadership = ({ leads, ...change }: LeadershipChange) =>
    logger.info(change, leads ? 'this node leads' : 'this node no longer leads')
  const onAlert = ({ open, ...alert }: AlertChange) =>
    open ? logger.warn(alert, 'alert opened') : logger.info(alert, 'alert closed')
  const listeners = { onTrouble, onLeadership, onAlert, onFull: troubles.onFull }
  const starting = startNode({ ...given, ...listeners, world, meter: metrics.meter })
  const begin = async () => {
    const node = await opening(config, starting)
    const options = { node, metrics, roles, config, world, logger, version: VERSION }
    return {
      node,
      server: await startServer(options).catch((error: unknown) =>
        explain(error, config, error instanceof TokenNeeded),
      ),
    }
  }
  const { node, server } = await begin().catch((error: unknown) => {
    troubles.close()
    throw error
  })
  const { startDemoWorker } = await import('./demo-worker.ts')
  const worker = localWorker ? startDemoWorker(node, world, onTrouble) : null

  const { close } = closeWithGrace(
    {
      delay: STOP_WITHIN_MS,
      logger: false,
      skip: [...STOP_SIGNALS],
      onTimeout: () => say(`Some work had not ended after ${STOP_WITHIN_MS / 1000} s and was cut off.`),
    },
    async ({ err }) => {
      if (err !== undefined) logger.fatal({ err }, 'stopping after an uncaught error')
      await server.stop(async () => worker?.close({ drainMs: DRAIN_WORKER_MS }))
      troubles.close()
      sayStopped()
    },
  )
  onStopSignals(close, () => {
    say('Stopped at once.')
    process.exit(EXIT.failed)
  })
  youngMemory.release()
  if (json) outJson({ url: server.url, pid: process.pid, open_mode: server.open, store: server.location })
  sayRunning(server, config, localWorker)
  const tls = tlsProblem(config.storage)
  if (tls !== null) say(`${paint('yellow', 'warning:')} ${tls.message}. ${tls.advice}`)
  // A signal ends the process.
  await new Promise<never>(() => {})
}

/** Calls `stop` at the first signal, and `stopAtOnce` at a later one. */
export function onStopSignals(stop: () => void, stopAtOnce: () => void): void {
  let firstMs: number | null = null
  const onSignal = () => {
    const nowMs = performance.now()
    if (firstMs === null) {
      firstMs = nowMs
      stop()
    } else if (nowMs - firstMs >= SAME_SIGNAL_MS) stopAtOnce()
  }
  for (const signal of STOP_SIGNALS) process.on(signal, onSignal)
}

function readRoles(list: string | undefined, { storage, redisUrl }: ServerConfig): ReadonlySet<NodeRole> {
  if (list === undefined) return ALL_NODE_ROLES
  const names = list.split(',').map((name) => name.trim())
  const roles = new Set(names.filter(isNodeRole))
  const unknown = names.find((name) => !isNodeRole(name))
  if (unknown !== undefined) {
    throw new Failure(`There is no role ${JSON.stringify(unknown)}.`, `The roles are ${NODE_ROLES.join(', ')}.`, 2)
  }
  if ('dataDir' in storage && roles.size < NODE_ROLES.length) {
    throw new Failure(
      'A folder belongs to one process, which must have all roles.',
      'Leave out --roles, or set DATABASE_URL to split the roles over processes.',
      2,
    )
  }
  if (redisUrl === null && roles.has('router') && roles.size === 1) {
    throw new Failure('A router has nothing to do without Redis.', 'Set REDIS_URL.', 2)
  }
  return roles
}

/** Explains an error of the address; other errors are rethrown. */
function explain(error: unknown, config: ServerConfig, needsToken: boolean): never {
  const { host, port } = config
  if (error instanceof Error && needsToken) {
    throw new Failure(
      `${error.message}. The server does not start, because without a token it would be open to everybody.`,
      `Make a token first, then start again:\n  ${tokenLine(config)}\nor serve only this machine: unset HOST, TRUST_PROXY, PUBLIC_URL and BASE_PATH.`,
    )
  }
  switch (codeOf(error)) {
    case 'EADDRINUSE':
      throw new Failure(
        `Port ${port} on ${host} is in use, perhaps by another Ichido.`,
        `Stop that process, or choose another port: PORT=${port === 65_535 ? 8001 : port + 1}, or PORT=0 for any free one.`,
      )
    case 'EACCES':
      throw new Failure(`This user may not listen on port ${port}.`, 'Choose one from 1024 up with PORT.')
    case 'EADDRNOTAVAIL':
    case 'ENOTFOUND':
      throw new Failure(
        `HOST ${host} is not an address of this machine: ${innermost(error)}`,
        'Set HOST to an address of this machine.',
      )
    default:
      throw error
  }
}
