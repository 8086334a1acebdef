import pg from 'pg'
import { type Postgres, startPostgres } from '../scripts/services/postgres.ts'
import { type Redis, startRedis } from '../scripts/services/redis.ts'
import { fetchPeers } from './peers/packages.ts'

export interface Size {
  /** Rounds that do not count: until the compiler has seen enough of everybody's code. */
  warmUps: number
  /** Measured ones. */
  rounds: number
  roundMs: number
  /** Calls of which a median is taken, where single calls are timed. */
  calls: number
}

export const QUICK: Size = { warmUps: 2, rounds: 3, roundMs: 1_500, calls: 300 }
export const LONG: Size = { warmUps: 1, rounds: 7, roundMs: 5_000, calls: 2_000 }

/** What every suite works with: one database server for all, everybody on it durable. */
export interface Stage {
  size: Size
  packages: string
  /** An empty database on the one server. */
  database(name: string): Promise<string>
  /** A Redis that acknowledges what is on disk, as the databases do; started when it is first asked for. */
  redis(): Promise<string>
  say(text: string): void
  /** Before each suite: the database's log files are there already. */
  recycleLog(): Promise<void>
  close(): Promise<void>
}

// Checkpoints in the middle of one contestant's round would be counted against it alone. And who has a million jobs has told
// PostgreSQL that it may use more than the 128 MB of its default.
const SETTINGS = {
  max_wal_size: '8GB',
  checkpoint_timeout: '30min',
  min_wal_size: '2GB',
  maintenance_work_mem: '256MB',
  shared_buffers: '1GB',
}

/**
 * A server that has run for a while writes its log into files that it has used before. A new one fills each of them with
 * zeros first, 16 MB at a time, and whoever writes most in a second pays for most of it: it made our submits 8 % slower.
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
