import { execFile, execFileSync, spawnSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { appendFileSync, chownSync, cpSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs'
import { basename, dirname, join } from 'node:path'
import { promisify } from 'node:util'
import pg from 'pg'
import { Trouble } from '../boot/trouble.mjs'
import { memoryTmp, shortTmp } from './find.ts'
import { onFreePort } from './free-port.ts'
import { postgresBinaries } from './postgres-binaries.ts'
import { killTree } from './process-tree.ts'
import { type Owner, ServerProcess, unprivilegedUser } from './server-process.ts'

const run = promisify(execFile)
const DEFAULT_PORT = 5432
const SLOT = 'ichido_replica'

const SETTINGS = {
  max_connections: '200',
  shared_buffers: '128MB',
  fsync: 'on',
  synchronous_commit: 'on',
  timezone: 'UTC',
  unix_socket_permissions: '0700',
  log_checkpoints: 'off',
}

export type PostgresOptions = {
  /** Listen on 127.0.0.1 too, with a password, for tests that put a proxy in between. */
  tcp?: boolean
  /** Keep the files in memory if there is room. They are lost with the machine, but quick to remove. */
  inMemory?: boolean
  /** Settings of postgresql.conf, which override the options above. */
  settings?: Record<string, string>
}

export type Postgres = {
  /** The address of the database `postgres` over the unix socket. */
  url: string
  /** The address over TCP; undefined without the option `tcp`. */
  tcpUrl: string | undefined
  port: number
  socketDir: string
  readonly pid: number
  /** Resolves with the address of the new database over the unix socket. */
  createDatabase(name: string): Promise<string>
  /** Shuts the server down and removes its folder. */
  stop(): Promise<void>
  /** Sends SIGKILL to the server and all its backends, like a power cut. */
  kill9(): Promise<void>
  /** Starts it on the same folder and port, after a `kill9` or a shutdown. */
  restart(): Promise<void>
  /** A streaming replica. This server is stopped for the copy. From then on its commits wait for the replica's disk. */
  startReplica(): Promise<Replica>
}

export type Replica = Postgres & {
  /** Resolves when it accepts writes. */
  promote(): Promise<void>
}

/** Starts a PostgreSQL in a temporary folder. It ends with this process, however this process ends. */
export async function startPostgres(options: PostgresOptions = {}): Promise<Postgres> {
  const bin = await postgresBinaries()
  const folder = mkdtempSync(join(options.inMemory ? memoryTmp() : shortTmp(), 'ichido-pg-'))
  const server = new ServerProcess(folder)
  try {
    const owner = unprivilegedUser()?.owner
    if (owner) chownSync(folder, owner.uid, owner.gid)
    const usableBin = reachable(bin, folder, owner)
    const password = randomBytes(12).toString('hex')
    await initdb(usableBin, folder, password, owner)
    return await started({ server, bin: usableBin, folder, owner, password, options })
  } catch (error) {
    await server.release()
    throw error
  }
}

type Cluster = {
  server: ServerProcess
  bin: string
  folder: string
  owner: Owner | undefined
  password: string
  options: PostgresOptions
}

async function started(cluster: Cluster): Promise<Replica> {
  const { server, bin, folder, owner, options } = cluster
  return handle(cluster, await startServer(server, bin, folder, owner, options))
}

/** If the clone is below root's home folder, the user that runs PostgreSQL cannot reach downloaded binaries. */
function reachable(bin: string, folder: string, owner: Owner | undefined): string {
  const runs = (candidate: string) =>
    spawnSync(join(candidate, 'postgres'), ['--version'], { cwd: folder, ...owner }).status === 0
  if (runs(bin)) return bin
  cpSync(dirname(bin), join(folder, 'pg'), { recursive: true, verbatimSymlinks: true })
  const copy = join(folder, 'pg', basename(bin))
  if (runs(copy)) return copy
  throw new Trouble(`${bin}/postgres does not run here. Set PG_BIN to the folder of one that does.`)
}

async function initdb(bin: string, folder: string, password: string, owner: Owner | undefined): Promise<void> {
  const passwordFile = join(folder, 'password')
  writeFileSync(passwordFile, password, { mode: 0o600 })
  if (owner) chownSync(passwordFile, owner.uid, owner.gid)
  const auth = ['--auth-local=trust', '--auth-host=scram-sha-256', `--pwfile=${passwordFile}`]
  const args = ['-D', join(folder, 'data'), '-U', 'postgres', '--locale=C', '--encoding=UTF8', '--no-sync', ...auth]
  await run(join(bin, 'initdb'), args, { cwd: folder, ...owner })
}

async function startServer(
  server: ServerProcess,
  bin: string,
  folder: string,
  owner: Owner | undefined,
  { tcp, settings }: PostgresOptions,
): Promise<number> {
  const dataDir = join(folder, 'data')
  const lines = Object.entries({ ...SETTINGS, unix_socket_directories: folder, ...settings })
  appendFileSync(join(dataDir, 'postgresql.conf'), lines.map(([name, value]) => `${name} = '${value}'\n`).join(''))
  const ready = (pid: number) => {
    const status = postmasterFile(dataDir)
    return status[0] === String(pid) && status[7]?.trim() === 'ready'
  }
  const startOn = async (port: number) => {
    const args = ['-D', dataDir, '-p', String(port), '-h', tcp ? '127.0.0.1' : '']
    await server.start({ command: join(bin, 'postgres'), args, owner, ready })
    return port
  }
  return tcp ? onFreePort(startOn) : startOn(DEFAULT_PORT)
}

function handle(cluster: Cluster, port: number): Replica {
  const { server, folder, password, options } = cluster
  const socketUrl = (name: string) =>
    `postgres://postgres@localhost:${port}/${encodeURIComponent(name)}?host=${encodeURIComponent(folder)}`
  const administer = async (...statements: string[]) => {
    const client = new pg.Client(socketUrl('postgres'))
    await client.connect()
    try {
      for (const statement of statements) await client.query(statement)
    } finally {
      await client.end()
    }
  }
  const restart = async () => {
    await server.end('SIGINT')
    await server.start()
  }
  return {
    url: socketUrl('postgres'),
    tcpUrl: options.tcp ? `postgres://postgres:${password}@127.0.0.1:${port}/postgres` : undefined,
    port,
    socketDir: folder,
    get pid() {
      return server.pid
    },
    createDatabase: async (name) => {
      await administer(`CREATE DATABASE ${pg.escapeIdentifier(name)}`)
      return socketUrl(name)
    },
    stop: async () => {
      await server.end('SIGINT')
      removeSharedMemory(join(folder, 'data'))
      await server.release()
    },
    kill9: async () => {
      if (!server.running) return
      await killTree(server.pid)
      await server.end('SIGKILL')
    },
    restart,
    startReplica: async () => {
      await administer(`SELECT pg_create_physical_replication_slot('${SLOT}')`)
      await server.end('SIGINT')
      const replica = await copyOf(cluster, port)
      await server.start()
      try {
        const copy = await started(replica)
        await administer(`ALTER SYSTEM SET synchronous_standby_names = '*'`, 'SELECT pg_reload_conf()')
        return copy
      } catch (error) {
        await replica.server.release()
        throw error
      }
    },
    promote: () => administer('SELECT pg_promote()'),
  }
}

/** Copies the files itself, because not every installation of PostgreSQL has pg_basebackup. */
async function copyOf(primary: Cluster, primaryPort: number): Promise<Cluster> {
  const { bin, owner, folder: from } = primary
  const folder = mkdtempSync(join(shortTmp(), 'ichido-pg-'))
  const server = new ServerProcess(folder)
  if (owner) chownSync(folder, owner.uid, owner.gid)
  await run('cp', ['-r', join(from, 'data'), folder], { ...owner })
  writeFileSync(join(folder, 'data', 'standby.signal'), '')
  const settings = {
    ...primary.options.settings,
    primary_conninfo: `host=${from} port=${primaryPort} user=postgres`,
    primary_slot_name: SLOT,
    // A promotion waits for the next attempt to reach the lost primary: by default up to 5 s.
    wal_retrieve_retry_interval: '100ms',
  }
  return { ...primary, server, bin, folder, options: { ...primary.options, settings } }
}

function postmasterFile(dataDir: string): string[] {
  try {
    return readFileSync(join(dataDir, 'postmaster.pid'), 'utf8').split('\n')
  } catch {
    return []
  }
}

/** A killed server leaves its System V segment, which its pid file names, and a machine has only 4096 of them. */
function removeSharedMemory(dataDir: string): void {
  const id = postmasterFile(dataDir)[6]?.trim().split(/\s+/)[1]
  if (!id) return
  try {
    execFileSync('ipcrm', ['-m', id], { stdio: 'ignore' })
  } catch {
    // The segment is already gone, or there is no ipcrm: 56 bytes are left until the next boot.
  }
}
