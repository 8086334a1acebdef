import { subscribe } from 'node:diagnostics_channel'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { join } from 'node:path'
import { pino } from 'pino'
import { startDemoWorker } from '../../server/src/cli/commands/operate/demo-worker.ts'
import { VERSION } from '../../server/src/cli/self.ts'
import { readServerConfig } from '../../server/src/node/config.ts'
import { startNode } from '../../server/src/node/start-node.ts'
import { createMetrics, startServer } from '../../server/src/node/start-server.ts'
import { realWorld as world } from '../../server/src/node/world.ts'

/** A server like that of `npm start`, for one page, on a free port and with its own store. */
export interface Stage {
  url: string
  dataDir: string
  stop(): Promise<void>
}

export async function startStage(folder: string): Promise<Stage> {
  const dataDir = join(folder, 'data')
  const config = readServerConfig({ env: { DATA_DIR: dataDir, PORT: '0' }, cwd: folder, readFile: () => '' })
  const onTrouble = (where: string, error: unknown) => console.error(where, error)
  const metrics = createMetrics(world)
  const { storage, allowNoFsync, artifacts } = config
  const node = await startNode({ storage, allowNoFsync, artifacts, world, meter: metrics.meter, onTrouble })
  const logger = pino({ level: 'silent' })
  const server = await startServer({ node, metrics, config, world, logger, version: VERSION })
  const worker = startDemoWorker(node, world, onTrouble)
  return { url: server.url, dataDir, stop: () => server.stop(() => worker.close({ drainMs: 0 })) }
}

let refusals: string[] = []
subscribe('http.server.response.finish', (exchange) => {
  const { request, response } = exchange as { request: IncomingMessage; response: ServerResponse }
  const isShown = request.headers['user-agent']?.startsWith('curl/') ?? false
  if (isShown && response.statusCode >= 400) refusals.push(`${request.method} ${request.url}: ${response.statusCode}`)
})

/** The curl requests of pages that got an error since the last call. */
export function takeRefusals(): string[] {
  const taken = refusals
  refusals = []
  return taken
}
