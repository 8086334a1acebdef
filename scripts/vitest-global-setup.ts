import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import type { TestProject } from 'vitest/node'
import { openPostgres } from '../server/src/store/engines/postgres.ts'
import { startPostgres } from './services/postgres.ts'
import { startRedis } from './services/redis.ts'

declare module 'vitest' {
  export interface ProvidedContext {
    /** The shared PostgreSQL over its unix socket; take a database of your own with `freshDatabase()`. */
    pgUrl: string
    /** The same over TCP, for tests that put a proxy in between. */
    pgTcpUrl: string
    /** A database with an empty store, to be copied: that is cheaper than making the schema every time. */
    pgTemplate: string
    /** Through the log, PostgreSQL's default since 15, a copy takes twice as long, and so does dropping it. */
    pgCopyClause: string
    redisUrl: string
  }
}

const TEMPLATE = 'ichido_template'

/** One private PostgreSQL and one private Redis for the whole run. */
export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const [postgres, redis] = await both(startPostgres({ tcp: true }), startRedis())
  project.provide('pgUrl', postgres.url)
  project.provide('pgTcpUrl', postgres.tcpUrl ?? '')
  project.provide('redisUrl', redis.url)
  project.provide('pgTemplate', TEMPLATE)
  project.provide('pgCopyClause', (await versionOf(postgres.url)) < 15 ? '' : 'STRATEGY FILE_COPY')
  const store = await openPostgres({
    url: await postgres.createDatabase(TEMPLATE),
    now: Date.now,
    monotonic: performance.now,
    sleep,
  })
  await store.close()
  return async () => {
    await Promise.all([postgres.stop(), redis.stop()])
  }
}

async function versionOf(url: string): Promise<number> {
  const client = new pg.Client(url)
  await client.connect()
  const { rows } = await client.query('SHOW server_version_num').finally(() => client.end())
  return Math.floor(Number(rows[0].server_version_num) / 10_000)
}

type Stoppable = { stop(): Promise<void> }

/** When one of them cannot be had, the other one is stopped before the run fails. */
async function both<A extends Stoppable, B extends Stoppable>(a: Promise<A>, b: Promise<B>): Promise<[A, B]> {
  try {
    return await Promise.all([a, b])
  } catch (error) {
    const settled = await Promise.allSettled<Stoppable>([a, b])
    for (const one of settled) if (one.status === 'fulfilled') await one.value.stop()
    throw error
  }
}
