import { type Postgres, startPostgres } from '../scripts/services/postgres.ts'
import { type Redis, startRedis } from '../scripts/services/redis.ts'
import { fetchPeers } from './peers/packages.ts'

export interface Size {
  /** Measured ones; one more before them warms up. */
  rounds: number
  roundMs: number
  /** Calls of which a median is taken, where single calls are timed. */
  calls: number
}

export const QUICK: Size = { rounds: 3, roundMs: 1_500, calls: 300 }
export const LONG: Size = { rounds: 7, roundMs: 5_000, calls: 2_000 }

/** What every suite works with: one database server for all, everybody on it durable. */
export interface Stage {
  size: Size
  packages: string
  /** An empty database on the one server. */
  database(name: string): Promise<string>
  /** A Redis that acknowledges what is on disk, as the databases do; started when it is first asked for. */
  redis(): Promise<string>
  say(text: string): void
  close(): Promise<void>
}

// Checkpoints in the middle of one contestant's round would be counted against it alone. And who has a million jobs has told
// PostgreSQL that it may use more than the 128 MB of its default.
const SETTINGS = {
  max_wal_size: '8GB',
  checkpoint_timeout: '30min',
  maintenance_work_mem: '256MB',
  shared_buffers: '1GB',
}

export async function setStage(size: Size, say: (text: string) => void): Promise<Stage> {
  const packages = await fetchPeers()
  const postgres: Postgres = await startPostgres({ settings: SETTINGS })
  let redis: Promise<Redis> | null = null
  return {
    size,
    packages,
    say,
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
