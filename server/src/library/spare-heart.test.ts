import { setTimeout as sleep } from 'node:timers/promises'
import { elapsedMs } from '@ichido/sdk/worker'
import pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type FreshDatabase, freshDatabase } from '../../../scripts/testing/services.ts'
import { realWorld } from '../node/world.ts'
import { openPostgres } from '../store/engines/postgres/postgres.ts'
import { until } from '../testing/store/store.ts'
import { SpareHeart } from './spare-heart.ts'

let fresh: FreshDatabase
let client: pg.Client
beforeAll(async () => {
  fresh = await freshDatabase()
  const { now, monotonic } = realWorld
  await (await openPostgres({ url: fresh.url, now, monotonic, sleep })).close()
  client = new pg.Client(fresh.url)
  await client.connect()
})
afterAll(async () => {
  await client.end()
  await fresh.leave()
})

test('the covered time counts once, even after a refused heartbeat', async () => {
  const heart = new SpareHeart({ storage: { databaseUrl: fresh.url }, world: realWorld, onTrouble: () => {} })
  heart.keep('local:1')
  await heart.start()
  try {
    await until('the connection of the thread', async () => {
      const others = "datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
      return (await client.query(`SELECT 1 FROM pg_stat_activity WHERE ${others} AND state = 'idle'`)).rowCount
    })
    const refused = client.query(`SELECT pg_sleep(1.6); ALTER TABLE ichido.held RENAME TO away; COMMIT;
      SELECT pg_sleep(0.6); ALTER TABLE ichido.away RENAME TO held`)
    // It is sent before everything stands still.
    await sleep(50)
    const [before, began] = [heart.clocks(), realWorld.monotonic()]
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 3_200)
    await refused
    const countedMs = elapsedMs(before, heart.clocks())
    expect(countedMs).toBeGreaterThanOrEqual(0)
    // It did stand in.
    expect(countedMs).toBeLessThan(realWorld.monotonic() - began - 500)
  } finally {
    await heart.close()
  }
})

test('options that cannot be copied are reported once, before the first run', async () => {
  const troubles: unknown[] = []
  const pool = new pg.Pool({ ssl: { checkServerIdentity: () => undefined } })
  const heart = new SpareHeart({ storage: { pool }, world: realWorld, onTrouble: (error) => troubles.push(error) })
  heart.keep('local:1')
  expect(troubles.map(String)).toEqual([expect.stringContaining('options that can be copied')])
  heart.keep('local:2')
  await heart.start()
  expect(troubles).toHaveLength(1)
  await heart.close()
})
