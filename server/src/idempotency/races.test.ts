import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import type pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { bareDatabase, type FreshDatabase } from '../../../scripts/testing/services.ts'
import { size } from '../../../scripts/testing/size.ts'
import { postgresShop, type Shop, sqliteShop } from './conformance/shop.ts'
import { type Answer, createIdempotency, type Settings } from './index.ts'
import { ask, fresh } from './testing/ask.ts'
import { openPool } from './testing/pool.ts'

const CALLERS = 64
const ROUNDS = size(1, 25)
const QUIET: Partial<Settings> = { onError: () => {} }

/** Two nodes on one database: what the second does, it does without knowing of the first. */
function races<Tx, Returned>(open: () => readonly [Shop<Tx, Returned>, Shop<Tx, Returned>]): void {
  const nodes = () => open().map((shop) => createIdempotency({ keys: shop.keys, ...QUIET }))
  const allCallers = async <T>(
    callers: number,
    call: (once: ReturnType<typeof nodes>[number], i: number) => Promise<T>,
  ) => {
    const all = nodes()
    return Promise.all(Array.from({ length: callers }, (_, i) => call(all[i % all.length] ?? expect.fail(), i)))
  }
  const shop = () => open()[0]
  const lapse = (key: string) =>
    shop().sql(`UPDATE ichido_idempotency_keys SET lease_expires_at = 0 WHERE key = '${key}'`)
  const turns = (n: number) => new Promise((resolve) => setTimeout(resolve, n))

  test(`${CALLERS} calls with one key and a slow handler: one effect, one answer`, async () => {
    for (let round = 0; round < ROUNDS; round++) {
      const { key, note } = fresh()
      const said = await allCallers(CALLERS, (once, i) =>
        ask(once, key, async () => {
          await shop().write(note)
          await turns(5)
          return { status: 201, body: { by: i } }
        }),
      )
      expect(await shop().count(note)).toBe(1)
      expect(new Set(said.map((one) => JSON.stringify([one.status, one.body])))).toHaveLength(1)
      expect(said.filter((one) => !one.replayed)).toHaveLength(1)
    }
  })

  test(`${CALLERS} calls and a throw after the effect: one effect, the others get the doubt`, async () => {
    for (let round = 0; round < ROUNDS; round++) {
      const { key, note } = fresh()
      const said = await allCallers(CALLERS, (once) =>
        ask(once, key, async () => {
          await shop().write(note)
          await turns(2)
          throw new Error('on purpose')
        }).catch(String),
      )
      expect(await shop().count(note)).toBe(1)
      expect(said.filter((one) => one === 'Error: on purpose')).toHaveLength(1)
      expect(said.filter((one) => typeof one === 'object' && one.code === 'IDEMPOTENCY_IN_DOUBT')).toHaveLength(63)
    }
  })

  test('with a recover hook, it is called once, and all get its answer', async () => {
    const { key, note } = fresh()
    let asked = 0
    const recover = async (): Promise<Answer> => {
      asked += 1
      return { status: 201, body: { found: await shop().count(note) } }
    }
    const handler = async () => {
      await shop().write(note)
      throw new Error('on purpose')
    }
    const said = await allCallers(CALLERS, (once) => ask(once, key, handler, { recover }).catch(String))
    expect(said.filter((one) => typeof one === 'object' && one.replayed)).toHaveLength(63)
    expect([asked, await shop().count(note)]).toEqual([1, 1])
    expect(await ask(nodes()[0] ?? expect.fail(), key, handler)).toMatchObject({ status: 201, body: { found: 1 } })
  })

  test('a section that is rolled back first takes effect once', async () => {
    const { key, note } = fresh()
    let tries = 0
    const said = await allCallers(16, (once) =>
      ask(once, key, (call) => {
        tries += 1
        return call.withKey(shop().section(note, () => ({ status: tries < 5 ? 503 : 201 })))
      }),
    )
    expect(said.map((one) => one.status).sort()).toEqual([...Array(12).fill(201), ...Array(4).fill(503)])
    expect([tries, await shop().count(note)]).toEqual([5, 1])
  })

  test('one of many callers takes an expired key', async () => {
    const { key, note } = fresh()
    const handler = async () => {
      await shop().write(note)
      return { status: 201 }
    }
    await allCallers(1, (once) => ask(once, key, handler))
    await shop().sql(`UPDATE ichido_idempotency_keys SET expires_at = 1 WHERE key = '${key}'`)
    const said = await allCallers(16, (once) => ask(once, key, handler))
    expect(said.filter((one) => !one.replayed)).toHaveLength(1)
    expect(await shop().count(note)).toBe(2)
  })

  test.each([
    ['removed', 'DELETE FROM ichido_idempotency_keys'],
    ['expired', 'UPDATE ichido_idempotency_keys SET expires_at = 1'],
  ])(
    'a record that is %s between being found in the way and being read is no crash and no stale answer',
    async (_, sql) => {
      const { key, note } = fresh()
      let runs = 0
      const handler = async () => ({ status: 201, body: { run: ++runs } })
      await allCallers(1, (once) => ask(once, key, handler))
      const { keys } = shop()
      let meddled = false
      const once = createIdempotency<Tx, Returned>({
        keys: {
          ...keys,
          async find(place) {
            if (!meddled) await shop().sql(`${sql} WHERE key = '${key}'`)
            meddled = true
            return keys.find(place)
          },
        },
      })
      expect(await ask(once, key, handler)).toMatchObject({ status: 201, replayed: false, body: { run: 2 } })
      expect(note).toBeTruthy()
    },
  )

  test.each(['section', 'answer'] as const)('a late %s of a replaced holder changes nothing', async (by) => {
    const { key, note } = fresh()
    const [first, second] = nodes()
    if (!first || !second) return expect.fail()
    const [entered, wake] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
    const late = ask(first, key, async (call) => {
      entered.resolve()
      await wake.promise
      const answer = { status: 201, body: { by: 'first' } }
      return by === 'section' ? call.withKey(shop().section(note, () => answer)) : answer
    })
    await entered.promise
    await lapse(key)
    const taken = await ask(
      second,
      key,
      (call) => call.withKey(shop().section(note, () => ({ status: 201, body: { by: 'second' } }))),
      { recover: () => 'run' },
    )
    expect(taken).toMatchObject({ replayed: false, body: { by: 'second' } })
    wake.resolve()
    expect(await late).toMatchObject({ status: 201, replayed: true, body: { by: 'second' } })
    expect(await shop().count(note)).toBe(1)
  })

  test('a late answer counts without a takeover', async () => {
    const { key } = fresh()
    const said = await allCallers(1, (once) =>
      ask(once, key, async () => {
        await lapse(key)
        return { status: 201 }
      }),
    )
    expect(said).toMatchObject([{ status: 201, replayed: false }])
    expect(await allCallers(1, (once) => ask(once, key, () => expect.fail()))).toMatchObject([{ replayed: true }])
  })

  test('one hook gets an expired lease; after `unknown` it is called again', async () => {
    const { key } = fresh()
    const [first, second] = nodes()
    if (!first || !second) return expect.fail()
    const [entered, wake] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
    const late = ask(first, key, async () => {
      entered.resolve()
      await wake.promise
      return { status: 200, body: 'late' }
    })
    await entered.promise
    await lapse(key)
    const recoveries: (() => Answer | 'unknown')[] = [
      () => 'unknown',
      () => {
        throw new Error('on purpose')
      },
      () => ({ status: 201, headers: { 'no name': '' } }),
      () => ({ status: 201, body: { recovered: true } }),
    ]
    const recover = () => recoveries.shift()?.() ?? expect.fail()
    const again = () => ask(second, key, () => expect.fail(), { recover })
    for (let i = 0; i < 3; i++) {
      expect(await again()).toMatchObject({ status: 409, code: 'IDEMPOTENCY_IN_PROGRESS' })
    }
    expect(await again()).toMatchObject({ status: 201, replayed: true, body: { recovered: true } })
    wake.resolve()
    expect(await late).toMatchObject({ status: 201, replayed: true, body: { recovered: true } })
  })

  test('expired answers are removed in batches; keys without an answer stay', async () => {
    const user = fresh().key
    const row = (state: string, expires: string) =>
      `SELECT '${user}', 'r', '${state}' || n, 'h', 1, '${state}', 'x', 0, 0, ${expires}`
    const numbers = 'WITH RECURSIVE many(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM many WHERE n < 1200)'
    const columns =
      'user_id, route, key, request_hash, hash_version, state, holder, lease_expires_at, created_at, expires_at'
    const into = `INSERT INTO ichido_idempotency_keys (${columns}, response_status, response_headers)`
    await shop().sql(`${into} ${numbers} ${row('answered', 'n')}, 200, '[]' FROM many`)
    await shop().sql(`${into} ${numbers} ${row('held', 'NULL')}, NULL, NULL FROM many WHERE n < 3`)
    await shop().sql(`${into} ${numbers} ${row('in_doubt', 'NULL')}, NULL, NULL FROM many WHERE n < 3`)
    const batches: number[] = []
    const { keys } = shop()
    const removeExpired = async (limit: number) => {
      batches.push(await keys.removeExpired(limit))
      return batches.at(-1) ?? 0
    }
    expect(await createIdempotency({ keys: { ...keys, removeExpired } }).tidy()).toBe(1200)
    expect(batches).toEqual([500, 500, 200])
    expect(await keys.find({ user, route: 'r', key: 'held1' })).toMatchObject({ state: 'held', lapsed: true })
    expect(await keys.find({ user, route: 'r', key: 'in_doubt1' })).toMatchObject({ state: 'in_doubt' })
  })
}

describe('SQLite, two connections', () => {
  const folder = mkdtempSync(join(tmpdir(), 'ichido-idempotency-'))
  const databases = [0, 1].map(() => new DatabaseSync(join(folder, 'shop.db')))
  for (const one of databases) one.exec('PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF')
  const [first, second] = databases.map((one) => sqliteShop(one))
  afterAll(() => {
    for (const one of databases) one.close()
    rmSync(folder, { recursive: true })
  })
  races(() => [first ?? expect.fail(), second ?? expect.fail()])
})

describe('PostgreSQL, two pools', () => {
  let database: FreshDatabase
  let pools: pg.Pool[]
  let shops: Awaited<ReturnType<typeof postgresShop>>[]
  beforeAll(async () => {
    database = await bareDatabase()
    pools = [0, 1].map(() => openPool(database.url))
    shops = await Promise.all(pools.map((pool) => postgresShop(pool)))
  })
  afterAll(async () => {
    await Promise.all(pools.map((pool) => pool.end()))
    await database.leave()
  })
  races(() => [shops[0] ?? expect.fail(), shops[1] ?? expect.fail()])

  test('a key is not taken over while its section writes', async () => {
    const { key, note } = fresh()
    const [first, second] = shops.map((shop) => createIdempotency({ keys: shop.keys, waitMs: 0 }))
    if (!first || !second) return expect.fail()
    const [entered, wake] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
    const writing = ask(first, key, async (call) => {
      await pools[0]?.query('UPDATE ichido_idempotency_keys SET lease_expires_at = 0 WHERE key = $1', [key])
      return call.withKey(async (tx) => {
        await tx.query('INSERT INTO effects VALUES ($1)', [note])
        entered.resolve()
        await wake.promise
        return { status: 201 }
      })
    })
    await entered.promise
    const recover = () => expect.fail('asked for a key whose holder lives')
    expect(await ask(second, key, () => expect.fail(), { recover })).toMatchObject({ code: 'IDEMPOTENCY_IN_PROGRESS' })
    wake.resolve()
    expect(await writing).toMatchObject({ status: 201, replayed: false })
    expect(await ask(second, key, () => expect.fail())).toMatchObject({ status: 201, replayed: true })
  })

  test('a COMMIT without an answer is looked up, not treated as a failure', async () => {
    const { key, note } = fresh()
    const cut = openPool(database.url, 2)
    cut.on('connect', (client) => {
      const query = client.query.bind(client)
      const commit = () => query('COMMIT').then(() => Promise.reject(new Error('Connection terminated unexpectedly')))
      Object.assign(client, { query: (...args: [string]) => (args[0] === 'COMMIT' ? commit() : query(...args)) })
    })
    const shop = await postgresShop(cut)
    const once = createIdempotency({ keys: shop.keys })
    const said = await ask(once, key, (call) =>
      call.withKey(shop.section(note, () => ({ status: 201, body: { note } }))),
    )
    expect(said).toMatchObject({ status: 201, body: { note } })
    expect(await shop.count(note)).toBe(1)
    await cut.end()
  })

  test('many nodes can create the table at the same time', async () => {
    const bare = await bareDatabase()
    const many = Array.from({ length: 4 }, () => openPool(bare.url, 1))
    const made = await Promise.all(many.map((pool) => postgresShop(pool)))
    const { key } = fresh()
    const said = await Promise.all(
      made.map(({ keys }) => ask(createIdempotency({ keys }), key, () => ({ status: 200 }))),
    )
    expect(said.filter((one) => !one.replayed)).toHaveLength(1)
    await Promise.all(many.map((pool) => pool.end()))
    await bare.leave()
  })
})
