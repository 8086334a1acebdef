import pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type FreshDatabase, freshDatabase } from '../../../scripts/testing/services.ts'
import { unique } from '../testing/store/store.ts'
import { open } from './index.ts'

/** Node warns about the eleventh listener. */
const OPENS = 12

let database: FreshDatabase
let pool: pg.Pool
const clients = new Set<pg.PoolClient>()
beforeAll(async () => {
  database = await freshDatabase()
  pool = new pg.Pool({ connectionString: database.url, max: 2, idleTimeoutMillis: 0 })
  pool.on('error', () => {})
  pool.on('connect', (client) => clients.add(client))
  pool.on('remove', (client) => clients.delete(client))
})
afterAll(async () => {
  await pool.end()
  await database.leave()
})

const listenersOf = (emitter: pg.Pool | pg.PoolClient) =>
  Object.fromEntries(emitter.eventNames().map((name) => [name, emitter.listenerCount(name as never)]))

test('a pool that was opened and closed many times keeps no listener', async () => {
  const warnings: string[] = []
  const hear = ({ message }: Error) => warnings.push(message)
  process.on('warning', hear)
  const [first, second] = await Promise.all([pool.connect(), pool.connect()])
  first.release()
  second.release()
  const before = { client: listenersOf(first), pool: listenersOf(pool) }
  for (let i = 0; i < OPENS; i++) {
    const ichido = await open({ pool })
    // The pool replaces this connection while the store is open.
    if (i === 0) (await pool.connect()).release(true)
    const kind = unique('opened')
    await ichido.submit(kind, null)
    await Promise.all([ichido.list({ kind }), ichido.list({ kind })])
    await ichido.close()
  }
  process.off('warning', hear)
  expect(warnings).toEqual([])
  expect([...clients].map(listenersOf)).toEqual([before.client, before.client])
  expect(listenersOf(pool)).toEqual(before.pool)
})
