import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Pgbouncer } from '../../../../../scripts/services/pgbouncer.ts'
import { type FreshDatabase, freshDatabase, privatePgbouncer } from '../../../../../scripts/testing/services.ts'
import { full } from '../../../../../scripts/testing/size.ts'
import { openNode } from '../../../testing/store/store.ts'
import type { Given } from '../../conformance/given.ts'
import { runConformance } from '../../conformance/runs.ts'
import { submitConformance } from '../../conformance/submit.ts'
import { conformance } from '../../conformance.ts'
import type { PostgresStore } from './postgres.ts'

/** In session mode every connection of ours takes one of PostgreSQL's: 10 that read, 13 that write, and some for the tests. */
const POOL_SIZE = { transaction: 2, session: 30 }

describe.each(['transaction', 'session'] as const)('behind PgBouncer in %s mode', (mode) => {
  let database: FreshDatabase
  let pooler: Pgbouncer
  let store: PostgresStore | undefined
  beforeAll(async () => {
    database = await freshDatabase()
    pooler = await privatePgbouncer({ mode, poolSize: POOL_SIZE[mode] })
    store = await openNode(pooler.through(database.tcpUrl))
  })
  afterAll(async () => {
    await store?.close()
    await pooler.stop()
    await database.leave()
  })

  const given: Given = {
    engine: 'postgres',
    store() {
      if (store === undefined) throw new Error('The store is there while tests run')
      return store
    },
  }
  if (full) conformance(given)
  else {
    submitConformance(given)
    runConformance(given)
  }

  test('the store detects a pooler', async () => {
    expect(await given.store().health()).toMatchObject({ pooled: true, durable: true })
    const direct = await openNode(database.url)
    expect(await direct.health()).toMatchObject({ pooled: false })
    await direct.close()
  })
})
