import { randomBytes } from 'node:crypto'
import { mkdtempSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { freePort, shortTmp } from './find.ts'
import { redisBinary } from './redis-binary.ts'
import { ServerProcess } from './server-process.ts'

const STARTS_MAX = 5

export type RedisOptions = {
  /** Keep everything in an append-only file, fsynced like this; nothing is kept without it. */
  appendfsync?: 'always' | 'everysec' | 'no'
  settings?: Record<string, string>
}

export type Redis = {
  /** With a password. */
  url: string
  port: number
  readonly pid: number
  stop(): Promise<void>
  kill9(): Promise<void>
  /** Starts it on the same folder and port. */
  restart(): Promise<void>
}

/** A Redis of our own in a temporary folder. It ends with this process, however this process ends. */
export async function startRedis(options: RedisOptions = {}): Promise<Redis> {
  const { path, env } = await redisBinary()
  const folder = mkdtempSync(join(shortTmp(), 'ichido-redis-'))
  const server = new ServerProcess(folder)
  const password = randomBytes(12).toString('hex')
  const ready = (pid: number, log: () => string) =>
    new RegExp(`^${pid}:M .*ready to accept connections`, 'im').test(log())
  try {
    for (let starts = 1; ; starts++) {
      const port = await freePort()
      const file = join(folder, 'redis.conf')
      writeFileSync(file, configuration(folder, port, password, options), { mode: 0o600 })
      try {
        await server.start({ command: path, args: [file], env, ready })
        return handle(server, port, password)
      } catch (error) {
        if (starts === STARTS_MAX || !String(error).includes('Address already in use')) throw error
      }
    }
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

function handle(server: ServerProcess, port: number, password: string): Redis {
  return {
    url: `redis://:${password}@127.0.0.1:${port}`,
    port,
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
