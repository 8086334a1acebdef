import { randomBytes } from 'node:crypto'
import pg from 'pg'
import { inject } from 'vitest'
import { type Chromium, findChromium } from '../services/chromium.ts'
import { type Pgbouncer, type PgbouncerOptions, startPgbouncer } from '../services/pgbouncer.ts'
import { type Postgres, type PostgresOptions, startPostgres } from '../services/postgres.ts'
import { type Redis, type RedisOptions, startRedis } from '../services/redis.ts'
import { type RedisCluster, startRedisCluster } from '../services/redis-cluster.ts'

export type FreshDatabase = {
  /** Over the unix socket. */
  url: string
  /** Over 127.0.0.1, for a proxy in between. */
  tcpUrl: string
  /**
   * Ends its connections. It goes with the whole cluster: the next database would else be made beside hundreds of files that
   * were just removed, among whose inodes ext4 searches for 60 s, and take four times as long.
   */
  leave(): Promise<void>
}

/** A database of one's own in the cluster that the whole run shares, with an empty store in it. */
export const freshDatabase = (): Promise<FreshDatabase> => databaseLike(inject('pgTemplate'))

/** Without a store, for tests of how one is made. */
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

/** For tests that kill it or change its settings. */
export const privatePostgres = (options?: PostgresOptions): Promise<Postgres> => startPostgres(options)

/** A pooler before the cluster that the whole run shares. */
export const privatePgbouncer = (options: Omit<PgbouncerOptions, 'target'>): Promise<Pgbouncer> =>
  startPgbouncer({ ...options, target: inject('pgTcpUrl') })

/** The Redis that the whole run shares: use keys of your own, and a private one for FLUSHALL. */
export const redisUrl = (): string => inject('redisUrl')

export const privateRedis = (options?: RedisOptions): Promise<Redis> => startRedis(options)

/** Three nodes. */
export const privateRedisCluster = (): Promise<RedisCluster> => startRedisCluster()

/** Fetched on the first call only: most runs of single files need no browser. */
export const chromium = (): Promise<Chromium> => findChromium()

/** What a test puts before a script's path when it starts a process of its own with `process.execPath`. */
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
