import { setTimeout as sleep } from 'node:timers/promises'
import type { TestProject } from 'vitest/node'
import { openPostgres } from '../server/src/store/engines/postgres/postgres.ts'
import { startPostgres } from './services/postgres.ts'
import { startRedis } from './services/redis.ts'
import { bundlePrograms } from './testing/programs.ts'
import { full } from './testing/size.ts'

declare module 'vitest' {
  export interface ProvidedContext {
    /** The shared PostgreSQL over its unix socket. Tests create their own database with `freshDatabase()`. */
    pgUrl: string
    /** The same server over TCP, for tests that put a proxy in between. */
    pgTcpUrl: string
    /** A database with an empty store. Copying it is cheaper than creating the schema every time. */
    pgTemplate: string
    redisUrl: string
    /** The folder with the programs that tests start; `bundled()` finds a program in it. */
    programs: string
  }
}

const TEMPLATE = 'ichido_template'

/** One private PostgreSQL, one private Redis and the programs that tests start, for the whole run. */
export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  // The files are in memory, because removing hundreds of databases from a disk takes most of a minute. At full size they may
  // need more memory than there is. Autovacuum would visit all these databases once a minute. The connections
  // of a store avoid scans, so a test's look at a whole table seems so expensive that PostgreSQL would start two processes for it.
  const settings = { autovacuum_naptime: '1h', max_parallel_workers: '0' }
  const starting = [startPostgres({ tcp: true, inMemory: !full, settings }), startRedis(), bundlePrograms()] as const
  const [postgres, redis, programs] = await allOrNone(starting)
  project.provide('pgUrl', postgres.url)
  project.provide('pgTcpUrl', postgres.tcpUrl ?? '')
  project.provide('redisUrl', redis.url)
  project.provide('pgTemplate', TEMPLATE)
  project.provide('programs', programs.folder)
  const store = await openPostgres({
    url: await postgres.createDatabase(TEMPLATE),
    now: Date.now,
    monotonic: performance.now,
    sleep,
  })
  await store.close()
  return async () => {
    await Promise.all([postgres.stop(), redis.stop(), programs.stop()])
  }
}

type Stoppable = { stop(): Promise<void> }

/** If one of them cannot start, the others are stopped before the run fails. */
async function allOrNone<All extends readonly Promise<Stoppable>[]>(all: All) {
  try {
    return await Promise.all(all)
  } catch (error) {
    const settled = await Promise.allSettled<Stoppable>(all)
    for (const one of settled) if (one.status === 'fulfilled') await one.value.stop()
    throw error
  }
}
