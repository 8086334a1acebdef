import { execFile } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { promisify } from 'node:util'
import pg from 'pg'
import { cacheDir, root } from '../scripts/boot/fetch-packages.mjs'
import { bundleLibrary } from '../scripts/bundle.mjs'
import { type Postgres, startPostgres } from '../scripts/services/postgres.ts'
import { type Redis, type RedisOptions, startRedis } from '../scripts/services/redis.ts'
import type { Settings } from './contest/contestant.ts'
import { type Entrant, enter } from './contest/entrant.ts'
import { FROM_SOURCES } from './ichido/server-process.ts'
import { fetchPeers } from './peers/packages.ts'

const run = promisify(execFile)

export interface Size {
  /** Rounds that do not count, until the JIT compiler has seen enough of all code. */
  warmUps: number
  /** Measured rounds. */
  rounds: number
  roundMs: number
  /** The number of calls for a median, where single calls are timed. */
  calls: number
  /** The callers of single submissions. */
  callers: readonly number[]
  /** The jobs that are worked off in one round. */
  drained: number
  /** The jobs of a large store, of one behind a dashboard, and of one with many ready jobs, beside `few`. */
  few: number
  many: number
  shown: number
  ready: number
  /** The jobs after which bytes and dead rows are counted. */
  written: number
  steadyMs: number
  /** How many pages of the dashboard are opened. */
  pages: number
  /** How long open dashboards are watched. */
  watchMs: number
  nodes: readonly number[]
  /** The subscribers of one job. */
  subscribers: readonly number[]
  /** How long a process rests before its memory is measured. */
  settleMs: number
}

export const QUICK: Size = {
  warmUps: 1,
  rounds: 3,
  roundMs: 400,
  calls: 100,
  callers: [1, 16, 64, 256],
  drained: 5_000,
  few: 10_000,
  many: 100_000,
  shown: 100_000,
  ready: 50_000,
  written: 10_000,
  steadyMs: 3_000,
  pages: Infinity,
  watchMs: 12_000,
  nodes: [1, 2, 4],
  subscribers: [1_000, 5_000],
  settleMs: 2_000,
}
export const LONG: Size = {
  warmUps: 1,
  rounds: 5,
  roundMs: 3_000,
  calls: 1_000,
  callers: [1, 16, 64, 256],
  drained: 20_000,
  few: 10_000,
  many: 10_000_000,
  shown: 1_000_000,
  ready: 1_000_000,
  written: 1_000_000,
  steadyMs: 60_000,
  pages: Infinity,
  watchMs: 30_000,
  nodes: [1, 2, 4],
  subscribers: [1_000, 5_000],
  settleMs: 3_000,
}

export interface Published {
  /** Node's arguments for the command line. */
  program: readonly string[]
  /** The addresses of the modules of the library, and of the SDK for workers; null if that is not built. */
  library: string
  worker: string | null
}

/** The environment of every suite: one database server for all contestants, with durable commits. */
export interface Stage {
  size: Size
  packages: string
  /** An empty database on the shared server. */
  database(name: string): Promise<string>
  /** The address of an empty folder, for SQLite. */
  folder(name: string): string
  /** A Redis that acknowledges only what is on disk, as the databases do. It starts on the first call. */
  redis(): Promise<string>
  /** Another such Redis, which the caller stops. */
  ownRedis(settings: RedisOptions['settings']): Promise<Redis>
  /** Contestants that are left out. */
  absent: ReadonlySet<string>
  /** Starts a contestant. */
  enter(settings: Settings): Promise<Entrant>
  /** Node's arguments for the command line of Ichido. */
  program: readonly string[]
  /** The files that are published. */
  published(): Promise<Published>
  say(text: string): void
  /** Called before each suite, so that the database's log files already exist. */
  recycleLog(): Promise<void>
  close(): Promise<void>
}

// A checkpoint during one contestant's round would count against that contestant alone. And an installation with a million jobs
// allows PostgreSQL more memory than its default of 128 MB.
const SETTINGS = {
  max_wal_size: '8GB',
  checkpoint_timeout: '30min',
  min_wal_size: '2GB',
  maintenance_work_mem: '256MB',
  shared_buffers: '1GB',
}

/**
 * A server that has run for a while reuses its log files. A new server first fills each of them with zeros, 16 MB at a
 * time, and the contestant that writes most per second pays for most of it: this made our submits 8 % slower.
 */
async function logOfOldServer(postgres: Postgres): Promise<() => Promise<void>> {
  const ask = async (...statements: string[]) => {
    const client = new pg.Client(postgres.url)
    await client.connect()
    for (const statement of statements) await client.query(statement)
    await client.end()
  }
  await ask(`SELECT count(pg_logical_emit_message(false, '', repeat('x', 1048576))) FROM generate_series(1, 2048)`)
  return () => ask('SELECT pg_switch_wal()', 'CHECKPOINT')
}

/** The sources take 60 MB more memory than the JavaScript that is published. The library is built from the SDK's. */
async function build(folder: string): Promise<Published> {
  await run(process.execPath, [join(root, 'scripts/build.mjs'), 'server'], { cwd: root })
  await bundleLibrary(folder, ['pg'])
  return {
    program: [join(root, 'server/dist/cli/bin.js')],
    library: pathToFileURL(join(folder, 'library/index.js')).href,
    worker: pathToFileURL(join(root, 'sdk/dist/worker/index.js')).href,
  }
}

export async function setStage(size: Size, say: (text: string) => void): Promise<Stage> {
  const packages = await fetchPeers()
  const postgres: Postgres = await startPostgres({ settings: SETTINGS })
  const recycleLog = await logOfOldServer(postgres)
  const folders = mkdtempSync(join(tmpdir(), 'ichido-bench-'))
  // Inside the clone, so that the library finds pg.
  const library = mkdtempSync(join(cacheDir, 'bench-library-'))
  let redis: Promise<Redis> | null = null
  return {
    size,
    packages,
    say,
    recycleLog,
    absent: new Set(),
    enter,
    program: FROM_SOURCES,
    published: () => build(library),
    database: (name) => postgres.createDatabase(name),
    folder: (name) => pathToFileURL(join(folders, name)).href,
    ownRedis: (settings = {}) => startRedis({ appendfsync: 'always', settings }),
    async redis() {
      redis ??= startRedis({ appendfsync: 'always' })
      return (await redis).url
    },
    async close() {
      if (redis !== null) await (await redis).stop()
      await postgres.stop()
      for (const folder of [folders, library]) rmSync(folder, { recursive: true, force: true })
    },
  }
}
