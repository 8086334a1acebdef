import { pino } from 'pino'
import { ALL_NODE_ROLES, type NodeRole } from '../../core/node/node.ts'
import { readServerConfig } from '../../node/config.ts'
import { startNode } from '../../node/start-node.ts'
import { createMetrics, redisOf, startServer } from '../../node/start-server.ts'
import { realWorld as world } from '../../node/world.ts'
import type { Env, Serving } from './cli.ts'

/** A server in this process: where none is to be killed, that saves the second of a processor that each takes to start. */
export async function serveHere(
  env: Env,
  roles: ReadonlySet<NodeRole> = ALL_NODE_ROLES,
): Promise<Pick<Serving, 'url' | 'kill9'>> {
  const readFile = () => {
    throw new Error('There are no files')
  }
  const config = readServerConfig({ env: { PORT: '0', ...env }, cwd: '/', readFile })
  const metrics = createMetrics(world)
  const { storage, allowNoFsync, artifacts, settings: fixed } = config
  const given = { storage, allowNoFsync, artifacts, redis: redisOf(config), roles, fixed }
  const node = await startNode({ ...given, world, meter: metrics.meter, onTrouble() {} })
  const logger = pino({ level: 'silent' })
  const server = await startServer({ node, metrics, roles, config, world, logger, version: '0.0.0-test' })
  return { url: server.url, kill9: () => server.stop(async () => {}) }
}
