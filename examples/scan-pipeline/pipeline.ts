import { execFile } from 'node:child_process'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { portFrom, portTaken } from '../port.ts'
import { Api } from './api.ts'
import { PageServer } from './page-server.ts'
import { CLI, Service } from './service.ts'

const run = promisify(execFile)
const HANDLERS = fileURLToPath(new URL('handlers.ts', import.meta.url))
/** Processes that still run after these times are killed: Ctrl-C takes no longer than 2 s in total. */
const STOP_WORKER_MS = 1_000
const STOP_SERVER_MS = 700

export interface Pipeline {
  /** The address of the page. */
  url: string
  /** Resolves when all processes have ended. */
  stopped: Promise<void>
}

export interface PipelineOptions {
  /** The folder of the store, the token and the ports, which the next start reuses. */
  folder: string
  /** Stops the pipeline, even while it is starting. */
  signal: AbortSignal
  say(line: string): void
  failed(error: Error): void
}

/** A control plane, a worker and the page: three processes, of which this one serves the page. */
export async function startPipeline({ folder, signal, say, failed }: PipelineOptions): Promise<Pipeline> {
  const wanted = portFrom(process.env, 0)
  mkdirSync(folder, { recursive: true })
  const pagePort = wanted === 0 ? await portOf(join(folder, 'page-port')) : await requirePort(wanted)
  const { PATH, HOME, NODE_COMPILE_CACHE, REDIS_URL, SCAN_STEP_MS } = process.env
  const inherited = { PATH, HOME, NODE_COMPILE_CACHE }
  const DATA_DIR = join(folder, 'store')
  const token = await remembered(join(folder, 'token'), async () => {
    const args = [...CLI, 'token', 'create', '--user', 'scan', '--role', 'operator', '--json']
    const { stdout } = await run(process.execPath, args, { env: { ...inherited, DATA_DIR }, signal })
    return (JSON.parse(stdout) as { token: string }).token
  })
  const port = await portOf(join(folder, 'port'))
  const url = `http://127.0.0.1:${port}`
  const serve = { DATA_DIR, PORT: String(port), ...(REDIS_URL === undefined ? {} : { REDIS_URL }) }
  const server = new Service({
    name: 'server',
    args: ['serve'],
    env: { ...inherited, ...serve },
    ready: /Ctrl-C stops it/,
    say,
    failed,
  })
  const worker = new Service({
    name: 'worker',
    // There is no drain time: running work is released, and continues after the next start.
    args: 'worker --queue scan --concurrency 4 --drain 0 --name scan'
      .split(' ')
      .concat('--state', join(folder, 'worker'), '--handlers', HANDLERS),
    env: { ...inherited, SCAN_STEP_MS, ICHIDO_URL: url, ICHIDO_TOKEN: token },
    ready: /takes scan/,
    say,
    failed,
  })
  const api = new Api(url, token)
  const page = new PageServer({ api, port: pagePort, kill: () => server.kill() })
  const stopAll = async () => {
    page.close()
    // The worker stops first, because it still has to report to the server.
    await worker.stop(STOP_WORKER_MS)
    await server.stop(STOP_SERVER_MS)
  }
  const stopped = new Promise<void>((resolve) => {
    signal.addEventListener('abort', () => resolve(stopAll()))
  })
  for (const begin of [() => server.start(), () => api.define(), () => worker.start(), () => page.listen()]) {
    if (!signal.aborted) await begin()
  }
  return { url: page.url, stopped }
}

async function remembered(file: string, make: () => Promise<string>): Promise<string> {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    const made = await make()
    writeFileSync(file, made, { mode: 0o600 })
    return made
  }
}

/** Reuses the port of the last start, so that an open page reconnects. If that port is in use, it takes another one. */
async function portOf(file: string): Promise<number> {
  const before = Number(await remembered(file, async () => '0'))
  const port = await freePort(before).catch(() => freePort(0))
  writeFileSync(file, String(port))
  return port
}

/** The port of the page, which PORT sets. */
async function requirePort(port: number): Promise<number> {
  return freePort(port).catch((error: unknown) => {
    throw new Error(portTaken(error, port) ?? String(error))
  })
}

function freePort(wanted: number): Promise<number> {
  return new Promise((resolve, reject) => {
    const probe = createServer().once('error', reject)
    probe.listen(wanted, '127.0.0.1', () => {
      const address = probe.address()
      probe.close(() => resolve(typeof address === 'object' && address !== null ? address.port : wanted))
    })
  })
}
