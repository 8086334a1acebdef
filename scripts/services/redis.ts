import { randomBytes } from 'node:crypto'
import { mkdtempSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { findProgram } from './debian.ts'
import { shortTmp } from './find.ts'
import { freePort, onFreePort } from './free-port.ts'
import { ServerProcess } from './server-process.ts'

export type RedisOptions = {
  /** Store everything in an append-only file, with this fsync policy. Without it nothing is stored. */
  appendfsync?: 'always' | 'everysec' | 'no'
  settings?: Record<string, string>
}

export type Redis = {
  /** The address with the password. */
  url: string
  port: number
  /** The port for connections between the nodes of a cluster. */
  busPort: number | undefined
  readonly pid: number
  stop(): Promise<void>
  kill9(): Promise<void>
  /** Starts it on the same folder and port. */
  restart(): Promise<void>
}

/** Starts a Redis in a temporary folder. It ends with this process, however this process ends. */
export async function startRedis(options: RedisOptions = {}): Promise<Redis> {
  const { path, env } = await findProgram({
    title: 'Redis',
    variable: 'REDIS_SERVER',
    names: ['redis-server', 'valkey-server'],
    package: 'redis-server',
    packages: ['redis-server', 'redis-tools', 'libjemalloc2', 'liblzf1'],
    program: 'usr/bin/{redis,valkey}-server',
    advice: 'Install Redis 6.2 or newer, or set REDIS_SERVER to the path of `redis-server`.',
  })
  const folder = mkdtempSync(join(shortTmp(), 'ichido-redis-'))
  const server = new ServerProcess(folder)
  const password = randomBytes(12).toString('hex')
  const ready = (pid: number, log: () => string) =>
    new RegExp(`^${pid}:M .*ready to accept connections`, 'im').test(log())
  try {
    return await onFreePort(async (port) => {
      const file = join(folder, 'redis.conf')
      const settings = { ...options.settings }
      // By default the cluster port is 10,000 above the other port, where it may be taken.
      const busPort = settings['cluster-enabled'] === 'yes' ? await freePort() : undefined
      if (busPort !== undefined) settings['cluster-port'] = String(busPort)
      writeFileSync(file, configuration(folder, port, password, { ...options, settings }), { mode: 0o600 })
      await server.start({ command: path, args: [file], env, ready })
      return handle(server, port, busPort, password)
    })
  } catch (error) {
    await server.release()
    throw error
  }
}

function configuration(
  folder: string,
  port: number,
  password: string,
  { appendfsync, settings }: RedisOptions,
): string {
  const all = {
    bind: '127.0.0.1',
    port: String(port),
    dir: folder,
    requirepass: password,
    save: '""',
    appendonly: appendfsync ? 'yes' : 'no',
    appendfsync: appendfsync ?? 'no',
    ...settings,
  }
  return Object.entries(all)
    .map(([name, value]) => `${name} ${value}\n`)
    .join('')
}

function handle(server: ServerProcess, port: number, busPort: number | undefined, password: string): Redis {
  return {
    url: `redis://:${password}@127.0.0.1:${port}`,
    port,
    busPort,
    get pid() {
      return server.pid
    },
    stop: async () => {
      await server.end('SIGTERM')
      await server.release()
    },
    kill9: () => server.end('SIGKILL'),
    restart: async () => {
      await server.end('SIGTERM')
      await server.start()
    },
  }
}
