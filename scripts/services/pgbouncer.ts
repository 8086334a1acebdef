import { mkdtempSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { findProgram } from './debian.ts'
import { shortTmp } from './find.ts'
import { onFreePort } from './free-port.ts'
import { ServerProcess, unprivilegedUser } from './server-process.ts'

export type PgbouncerOptions = {
  /** The PostgreSQL behind it, over TCP: postgres://user:password@host:port/… */
  target: string
  mode: 'session' | 'transaction' | 'statement'
  /** The number of connections to PostgreSQL for each database. */
  poolSize?: number
  /** Other settings of pgbouncer.ini. */
  settings?: Record<string, string>
}

export type Pgbouncer = {
  /** The same address through the pooler. */
  through(url: string): string
  stop(): Promise<void>
}

/** Starts a PgBouncer with its defaults, except for the options of the test. It ends with this process. */
export async function startPgbouncer(options: PgbouncerOptions): Promise<Pgbouncer> {
  const { path, env } = await findProgram({
    title: 'PgBouncer',
    variable: 'PGBOUNCER',
    names: ['pgbouncer'],
    package: 'pgbouncer',
    packages: ['pgbouncer', 'libevent-2.1-7', 'libc-ares2'],
    program: 'usr/sbin/pgbouncer',
    advice: 'Install PgBouncer, or set PGBOUNCER to the path of `pgbouncer`.',
  })
  const folder = mkdtempSync(join(shortTmp(), 'ichido-pgbouncer-'))
  const server = new ServerProcess(folder)
  const user = unprivilegedUser()
  const ready = (_: number, log: () => string) => /process up/.test(log())
  try {
    return await onFreePort(async (port) => {
      const file = join(folder, 'pgbouncer.ini')
      writeFileSync(file, configuration(port, options), { mode: 0o600 })
      // As root it first reads its settings and libraries, and then becomes the other user.
      const args = user === undefined ? [file] : ['-u', user.name, file]
      await server.start({ command: path, args, env, ready })
      return handle(server, port)
    })
  } catch (error) {
    await server.release()
    throw error
  }
}

function configuration(port: number, { target, mode, poolSize = 20, settings = {} }: PgbouncerOptions): string {
  const { hostname, port: targetPort, username, password } = new URL(target)
  const login = `user=${username} password=${password}`
  return `[databases]
* = host=${hostname} port=${targetPort} ${login}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ${port}
unix_socket_dir =
auth_type = any
pool_mode = ${mode}
default_pool_size = ${poolSize}
max_client_conn = 500
${Object.entries(settings)
  .map(([name, value]) => `${name} = ${value}\n`)
  .join('')}`
}

function handle(server: ServerProcess, port: number): Pgbouncer {
  return {
    through(url) {
      const changed = new URL(url)
      changed.host = `127.0.0.1:${port}`
      return changed.href
    },
    stop: async () => {
      await server.end('SIGTERM')
      await server.release()
    },
  }
}
