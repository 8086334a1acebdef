import { randomBytes } from 'node:crypto'
import pg from 'pg'
import { inject } from 'vitest'
import { type Chromium, findChromium } from '../services/chromium.ts'
import { type Pgbouncer, type PgbouncerOptions, startPgbouncer } from '../services/pgbouncer.ts'
import { type Postgres, type PostgresOptions, startPostgres } from '../services/postgres.ts'
import { type Redis, type RedisOptions, startRedis } from '../services/redis.ts'
import { type RedisCluster, startRedisCluster } from '../services/redis-cluster.ts'

export type FreshDatabase = {
  /** The address over the unix socket. */
  url: string
  /** The address over 127.0.0.1, for a proxy in between. */
  tcpUrl: string
  /**
   * Ends its connections. The database is removed with the whole cluster: otherwise the next database would be created
   * beside hundreds of removed files, among whose inodes ext4 searches for 60 s, and take four times as long.
   */
  leave(): Promise<void>
}

/** A new database in the run's shared cluster, with an empty store. */
export const freshDatabase = (): Promise<FreshDatabase> => databaseLike(inject('pgTemplate'))

/** A database without a store, for tests of its creation. */
export const bareDatabase = (): Promise<FreshDatabase> => databaseLike('template1')

async function databaseLike(template: string): Promise<FreshDatabase> {
  const name = `test_${randomBytes(6).toString('hex')}`
  await administer(`CREATE DATABASE ${name} TEMPLATE ${template}`)
  return {
    url: withDatabase(inject('pgUrl'), name),
    tcpUrl: withDatabase(inject('pgTcpUrl'), name),
    leave: () => administer(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '${name}'`),
  }
}

/** For tests that kill the server or change its settings. */
export const privatePostgres = (options?: PostgresOptions): Promise<Postgres> => startPostgres(options)

/** A pooler in front of the run's shared cluster. */
export const privatePgbouncer = (options: Omit<PgbouncerOptions, 'target'>): Promise<Pgbouncer> =>
  startPgbouncer({ ...options, target: inject('pgTcpUrl') })

/** The run's shared Redis. Tests use their own keys, and a private Redis for FLUSHALL. */
export const redisUrl = (): string => inject('redisUrl')

export const privateRedis = (options?: RedisOptions): Promise<Redis> => startRedis(options)

/** A cluster of three nodes. */
export const privateRedisCluster = (): Promise<RedisCluster> => startRedisCluster()

/** Downloaded on the first call only: most runs of single files need no browser. */
export const chromium = (): Promise<Chromium> => findChromium()

/** The arguments before a script's path when a test starts a process with `process.execPath`. */
export const nodeArgs = ['--conditions=ichido-source']

async function administer(sql: string): Promise<void> {
  const client = new pg.Client(inject('pgUrl'))
  await client.connect()
  try {
    await client.query(sql)
  } finally {
    await client.end()
  }
}

function withDatabase(url: string, name: string): string {
  const changed = new URL(url)
  changed.pathname = `/${name}`
  return changed.href
}
