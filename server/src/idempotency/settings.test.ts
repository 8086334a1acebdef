import { DatabaseSync } from 'node:sqlite'
import { Counter, Registry } from '@prometheus-io/client'
import type pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { bareDatabase, type FreshDatabase } from '../../../scripts/testing/services.ts'
import { until } from '../testing/store/store.ts'
import { createIdempotency, type Idempotency, postgresKeys, prometheusCounters, sqliteKeys } from './index.ts'
import { ask, fresh } from './testing/ask.ts'
import { openPool } from './testing/pool.ts'

const never = () => expect.fail('ran a second time')
const run = () => ({ status: 201 })

/** Every counter that is not 0, by its name without prefix and suffix. */
async function counts(registry: Registry): Promise<Record<string, number>> {
  const lines = (await registry.metrics()).matchAll(/^ichido_idempotency_(\w+)_total\{route="POST \/orders"\} (\d+)$/gm)
  return Object.fromEntries([...lines].map(([, name = '', value]) => [name, Number(value)]))
}

function suite<Tx, Returned>(open: (options: object) => Idempotency<Tx, Returned>): void {
  const counted = () => {
    const registry = new Registry()
    const metrics = prometheusCounters(Counter, registry)
    const once = open({ metrics, onError: () => {} })
    return { registry, once }
  }

  test('a first request is a use, its repeat a duplicate, another one a mismatch', async () => {
    const { registry, once } = counted()
    const { key } = fresh()
    await ask(once, key, run)
    expect(await counts(registry)).toEqual({ uses: 1 })
    await ask(once, key, never)
    await ask(once, key, never)
    expect(await counts(registry)).toEqual({ uses: 3, duplicates: 2 })
    const other = new Request('http://shop/orders', { method: 'POST', body: '2', headers: { 'idempotency-key': key } })
    expect((await once.fetch(other, { route: 'POST /orders', user: 'ann' }, never)).status).toBe(409)
    expect(await counts(registry)).toEqual({ uses: 4, duplicates: 2, mismatches: 1 })
  })

  test('a waiting request counts once as a wait and once as a duplicate', async () => {
    const { registry, once } = counted()
    const { key } = fresh()
    const began = Promise.withResolvers<void>()
    const end = Promise.withResolvers<void>()
    const first = ask(once, key, async () => {
      began.resolve()
      await end.promise
      return { status: 201 }
    })
    await began.promise
    const second = ask(once, key, never)
    await until('the second to wait', async () => (await counts(registry)).waits === 1)
    end.resolve()
    expect(await Promise.all([first, second])).toMatchObject([{ replayed: false }, { replayed: true }])
    expect(await counts(registry)).toEqual({ uses: 2, waits: 1, duplicates: 1 })
  })

  test('a repeat of a broken request counts as in doubt, with and without recover', async () => {
    const { registry, once } = counted()
    const { key } = fresh()
    const breaks = () => {
      throw new Error('on purpose')
    }
    await expect(ask(once, key, breaks)).rejects.toThrow('on purpose')
    expect(await ask(once, key, never)).toMatchObject({ code: 'IDEMPOTENCY_IN_DOUBT' })
    expect(await counts(registry)).toEqual({ uses: 2, in_doubt: 1 })
    expect(await ask(once, key, run, { recover: () => 'run' })).toMatchObject({ status: 201 })
    expect(await counts(registry)).toEqual({ uses: 3, in_doubt: 2 })
  })

  test('requests without a valid key do not count', async () => {
    const { registry, once } = counted()
    const request = new Request('http://shop/orders', { method: 'POST' })
    await once.fetch(request, { route: 'POST /orders', user: 'ann' }, never)
    await ask(once, 'two words', never)
    expect(await counts(registry)).toEqual({})
  })

  test('a counter that throws does not fail the request', async () => {
    const errors: unknown[] = []
    const metrics = {
      count() {
        throw new Error('no counter')
      },
    }
    const once = open({ metrics, onError: (error: unknown) => void errors.push(error) })
    const { key } = fresh()
    expect(await ask(once, key, run)).toMatchObject({ status: 201 })
    expect(errors).toMatchObject([{ message: 'no counter' }])
  })
}

describe('SQLite', () => {
  const database = new DatabaseSync(':memory:')
  afterAll(() => database.close())
  suite((options) => createIdempotency({ keys: sqliteKeys(database), ...options }))
})

describe('PostgreSQL', () => {
  let database: FreshDatabase
  let pool: pg.Pool
  beforeAll(async () => {
    database = await bareDatabase()
    pool = openPool(database.url)
  })
  afterAll(async () => {
    await pool.end()
    await database.leave()
  })
  suite((options) => createIdempotency({ keys: postgresKeys(pool), ...options }))
})
