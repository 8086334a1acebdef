import { randomUUID } from 'node:crypto'
import { sleep } from '@ichido/sdk/world'
import { afterAll, beforeAll, describe } from 'vitest'
import { freshDatabase } from '../../../../scripts/testing/services.ts'
import { realWorld } from '../../node/world.ts'
import { openPostgres, type PostgresStore } from '../../store/engines/postgres/postgres.ts'
import { openSqlite } from '../../store/engines/sqlite/sqlite.ts'
import { command, type Store } from '../../store/port.ts'
import type { Row, SqlValue } from '../../store/statement.ts'
import { ENGINES, type Engine } from '../services/services.ts'
import { changeRuns, changesRuns, otherThanChange, removeEvents } from './runs-table.ts'

export interface TestStore {
  store: Store
  /** Closes the store and deletes its data. */
  close(): Promise<void>
}

/** A new empty store: SQLite in memory, or a new PostgreSQL database. */
export async function testStore(engine: Engine): Promise<TestStore> {
  if (engine === 'sqlite') {
    const store = openSqlite({ now: () => realWorld.now() })
    return { store, close: () => store.close() }
  }
  const { url, leave } = await freshDatabase()
  const store = await openNode(url)
  return {
    store,
    async close() {
      await store.close()
      await leave()
    },
  }
}

/** Opens another node on a PostgreSQL database. */
export function openNode(
  url: string,
  changes: { schema?: string; allowNoFsync?: boolean } = {},
): Promise<PostgresStore> {
  return openPostgres({
    url,
    now: () => realWorld.now(),
    monotonic: realWorld.monotonic,
    sleep: (ms) => sleep(realWorld, ms),
    ...changes,
  })
}

/** Runs a suite once for each engine. All its tests share the store, so each test uses its own names. */
export function eachEngine(suite: (given: { engine: Engine; store(): Store }) => void): void {
  describe.each(ENGINES)('%s', (engine) => {
    let opened: TestStore | undefined
    beforeAll(async () => {
      opened = await testStore(engine)
    })
    afterAll(() => opened?.close())
    suite({
      engine,
      store() {
        if (opened === undefined) throw new Error('The store is there while tests run')
        return opened.store
      },
    })
  })
}

/** Runs any SQL in the notation of our statements: `ichido.table`, `$1`, `now_ms()`. Runs are in one table, `ichido.runs`. */
export function sql(store: Store, text: string, ...params: SqlValue[]): Promise<Row[]> {
  return store.write(
    command('test', () => (changesRuns(text) ? changeRuns(text, params) : otherThanChange(text, params))),
  )
}

/** Removes the events of a job before a number, by default all. */
export function removeEventsOf(store: Store, jobId: string, before: number = Number.MAX_SAFE_INTEGER): Promise<void> {
  return store.write(command('test', () => removeEvents(jobId, Math.min(before, 2 ** 31 - 1))))
}

/** A name that no other test uses. */
export function unique(prefix: string): string {
  return `${prefix}-${randomUUID().slice(0, 13)}`
}

/** Calls `look` until it returns something. The timeout is longer than a healthy machine needs. */
export async function until<T>(what: string, look: () => Promise<T | null | undefined | false | 0>): Promise<T> {
  const deadlineMs = performance.now() + 30_000
  for (;;) {
    const found = await look()
    if (found) return found
    if (performance.now() > deadlineMs) throw new Error(`Waited 30 s for ${what}`)
    await sleep(realWorld, 5)
  }
}
