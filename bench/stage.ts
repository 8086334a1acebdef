import pg from 'pg'
import { type Postgres, startPostgres } from '../scripts/services/postgres.ts'
import { type Redis, startRedis } from '../scripts/services/redis.ts'
import { fetchPeers } from './peers/packages.ts'

export interface Size {
  /** Rounds that do not count, until the JIT compiler has seen enough of all code. */
  warmUps: number
  /** Measured rounds. */
  rounds: number
  roundMs: number
  /** The number of calls for a median, where single calls are timed. */
  calls: number
}

export const QUICK: Size = { warmUps: 2, rounds: 3, roundMs: 1_500, calls: 300 }
export const LONG: Size = { warmUps: 1, rounds: 7, roundMs: 5_000, calls: 2_000 }

/** The environment of every suite: one database server for all contestants, with durable commits. */
export interface Stage {
  size: Size
  packages: string
  /** An empty database on the shared server. */
  database(name: string): Promise<string>
  /** A Redis that acknowledges only what is on disk, as the databases do. It starts on the first call. */
  redis(): Promise<string>
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

export async function setStage(size: Size, say: (text: string) => void): Promise<Stage> {
  const packages = await fetchPeers()
  const postgres: Postgres = await startPostgres({ settings: SETTINGS })
  const recycleLog = await logOfOldServer(postgres)
  let redis: Promise<Redis> | null = null
  return {
    size,
    packages,
    say,
    recycleLog,
    database: (name) => postgres.createDatabase(name),
    async redis() {
      redis ??= startRedis({ appendfsync: 'always' })
      return (await redis).url
    },
    async close() {
      if (redis !== null) await (await redis).stop()
      await postgres.stop()
    },
  }
}
