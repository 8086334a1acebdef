import { DatabaseSync } from 'node:sqlite'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { FakeWorld, settled } from '../../../scripts/testing/fake-world.ts'
import { sqliteShop } from './conformance/shop.ts'
import { createIdempotency, type Settings, sqliteKeys } from './index.ts'
import { ask, fresh } from './testing/ask.ts'

const MINUTE_MS = 60_000
const HOUR_MS = 60 * MINUTE_MS

let database: DatabaseSync
let world: FakeWorld
let errors: unknown[]
beforeEach(() => {
  database = new DatabaseSync(':memory:')
  world = new FakeWorld()
  errors = []
})
afterEach(() => database.close())

const shopOf = () => sqliteShop(database, sqliteKeys(database, world))
const node = (settings: Partial<Settings> = {}) =>
  createIdempotency({ keys: shopOf().keys, world, onError: (error) => void errors.push(error), ...settings })
const run = () => ({ status: 201 })
const never = () => expect.fail('ran a second time')

/** A handler that goes on until it is told to end. */
function working() {
  const wake = Promise.withResolvers<void>()
  const handler = async () => {
    await wake.promise
    return { status: 201, body: { done: true } }
  }
  return { handler, end: wake.resolve }
}

test('a living holder keeps its key; a second caller waits and gets 409', async () => {
  const { key } = fresh()
  const { handler, end } = working()
  const first = ask(node(), key, handler)
  await world.pass(10 * MINUTE_MS)
  const second = ask(node(), key, never, { recover: never })
  await world.pass(9_999)
  await world.pass(2_000)
  expect(await second).toMatchObject({ status: 409, code: 'IDEMPOTENCY_IN_PROGRESS' })
  end()
  expect(await first).toMatchObject({ status: 201, replayed: false })
  expect(await ask(node(), key, never)).toMatchObject({ replayed: true })
  expect(world.pendingMs).toEqual([])
})

test('a second caller on the same node gets the answer without polling', async () => {
  const { key } = fresh()
  const { handler, end } = working()
  const once = node()
  const first = ask(once, key, handler)
  const others = [ask(once, key, never), ask(once, key, never)]
  await settled()
  end()
  expect(await Promise.all([first, ...others])).toMatchObject([
    { replayed: false },
    { replayed: true },
    { replayed: true },
  ])
})

test('a committed answer reaches waiting callers while the handler continues', async () => {
  const { key } = fresh()
  const { handler, end } = working()
  const once = node()
  const first = ask(once, key, async (call) => {
    const answer = await call.withKey(() => ({ status: 201 }))
    await handler()
    return answer
  })
  expect(await ask(once, key, never)).toMatchObject({ status: 201, replayed: true })
  end()
  expect(await first).toMatchObject({ status: 201, replayed: false })
  expect(world.pendingMs).toEqual([])
})

test('a handler that never ends loses its key after an hour', async () => {
  const { key } = fresh()
  const first = ask(node(), key, working().handler)
  await world.pass(HOUR_MS + MINUTE_MS)
  expect(world.pendingMs).toEqual([])
  expect(await ask(node(), key, never)).toMatchObject({ code: 'IDEMPOTENCY_IN_DOUBT' })
  const recover = () => ({ status: 200, body: { found: true } })
  expect(await ask(node(), key, never, { recover })).toMatchObject({ status: 200, replayed: true })
  expect(await Promise.race([first, 'still working'])).toBe('still working')
})

test('an answer is replayed for 72 hours; then the key is free without tidy()', async () => {
  const { key } = fresh()
  await ask(node(), key, run)
  await world.pass(72 * HOUR_MS - 1)
  expect(await ask(node(), key, never)).toMatchObject({ replayed: true })
  await world.pass(1)
  expect(await ask(node(), key, run)).toMatchObject({ status: 201, replayed: false })
  expect(await ask(node({ ttlMs: 1 }), fresh().key, run)).toMatchObject({ replayed: false })
})

test('a key in doubt does not expire', async () => {
  const { key } = fresh()
  await ask(node(), key, () => ({ status: 500 }))
  await world.pass(1_000 * HOUR_MS)
  expect(await node().tidy()).toBe(0)
  expect(await ask(node(), key, never)).toMatchObject({ code: 'IDEMPOTENCY_IN_DOUBT' })
})

test('expired answers are removed automatically', async () => {
  const once = node({ ttlMs: MINUTE_MS })
  await ask(once, 'old', run)
  await world.pass(2 * MINUTE_MS)
  await ask(once, 'new', run)
  expect(database.prepare('SELECT key FROM ichido_idempotency_keys').all()).toMatchObject([{ key: 'new' }])
})

test('an answer that cannot be stored reaches its caller and leaves the key in doubt', async () => {
  const { key } = fresh()
  const { keys } = shopOf()
  const answer = () => Promise.reject(new Error('disk full'))
  const once = createIdempotency({ keys: { ...keys, answer }, world, onError: (error) => void errors.push(error) })
  const first = ask(once, key, run)
  await world.pass(1_000)
  expect(await first).toMatchObject({ status: 201, replayed: false })
  expect(errors.map(String)).toEqual(['Error: disk full'])
  await world.pass(MINUTE_MS)
  expect(await ask(node(), key, never)).toMatchObject({ code: 'IDEMPOTENCY_IN_DOUBT' })
})

test('storing an answer is retried', async () => {
  const { key } = fresh()
  const { keys } = shopOf()
  let tries = 0
  const answer: typeof keys.answer = (...args) =>
    ++tries < 3 ? Promise.reject(new Error('connection lost')) : keys.answer(...args)
  const first = ask(createIdempotency({ keys: { ...keys, answer }, world }), key, run)
  await world.pass(1_000)
  expect(await first).toMatchObject({ status: 201, replayed: false })
  expect(await ask(node(), key, never)).toMatchObject({ replayed: true })
})

test('a failed claim holds no key', async () => {
  const { key } = fresh()
  const { keys } = shopOf()
  const claim: typeof keys.claim = async (...args) => {
    await keys.claim(...args)
    throw new Error('connection lost')
  }
  await expect(ask(createIdempotency({ keys: { ...keys, claim }, world }), key, never)).rejects.toThrow(
    'connection lost',
  )
  await settled()
  expect(await ask(node(), key, run)).toMatchObject({ status: 201, replayed: false })
})

describe('on SQLite', () => {
  test.each([
    ['an async section', async () => ({ status: 201 })],
    ['a section that returns a promise', () => Promise.resolve({ status: 201 })],
  ])('%s is refused and rolled back', async (_, section) => {
    const { key, note } = fresh()
    const shop = shopOf()
    const broken = () => {
      database.prepare('INSERT INTO effects VALUES (?)').run(note)
      return section()
    }
    const work = section.constructor.name === 'AsyncFunction' ? section : broken
    // @ts-expect-error the types refuse it too
    const first = ask(node(), key, (call) => call.withKey(work))
    await expect(first).rejects.toThrow('must be synchronous')
    expect([await shop.count(note), database.isTransaction]).toEqual([0, false])
  })

  test.each(['COMMIT', 'COMMIT; BEGIN'])(
    'a section that ends its transaction (%s) and fails leaves the key in doubt',
    async (end) => {
      const { key, note } = fresh()
      const shop = shopOf()
      const handler = node()
      const first = ask(handler, key, (call) =>
        call.withKey((tx) => {
          tx.prepare('INSERT INTO effects VALUES (?)').run(note)
          tx.exec(end)
          throw new Error('on purpose')
        }),
      )
      await expect(first).rejects.toThrow('on purpose')
      expect(await ask(node(), key, never)).toMatchObject({ code: 'IDEMPOTENCY_IN_DOUBT' })
      expect([await shop.count(note), database.isTransaction]).toEqual([1, false])
    },
  )

  test('the plugin never writes into a transaction of the application', async () => {
    const { key } = fresh()
    const once = node()
    await ask(once, fresh().key, run)
    database.exec('BEGIN')
    const call = ask(once, key, run)
    await world.pass(1_000)
    database.exec('ROLLBACK')
    await world.pass(10)
    expect(await call).toMatchObject({ status: 201, replayed: false })
    expect(await ask(once, key, never)).toMatchObject({ replayed: true })
  })

  test('a transaction that never ends is reported', async () => {
    const once = node()
    await ask(once, fresh().key, run)
    database.exec('BEGIN')
    const call = ask(once, fresh().key, never)
    const refused = expect(call).rejects.toThrow('must not await inside a transaction')
    await world.pass(20_000)
    await refused
    database.exec('ROLLBACK')
  })
})

describe('settings', () => {
  test('a mismatch may be a 422', async () => {
    const { key } = fresh()
    const once = node({ mismatchStatus: 422 })
    const post = (body: string) =>
      once.fetch(
        new Request('http://shop/orders', { method: 'POST', headers: { 'idempotency-key': key }, body }),
        { route: 'POST /orders', user: 'ann' },
        run,
      )
    expect((await post('a')).status).toBe(201)
    const other = await post('b')
    expect([other.status, other.headers.get('should-retry')]).toEqual([422, 'false'])
  })

  test('chosen headers are kept, and none fakes a replay', async () => {
    const { key } = fresh()
    const headers = { 'X-Order': '7', 'x-secret': 's', 'Idempotent-Replayed': 'true' }
    const once = node({ headers: ['X-Order', 'Idempotent-Replayed'] })
    const post = () =>
      once.fetch(
        new Request('http://shop/orders', { method: 'POST', headers: { 'idempotency-key': key } }),
        { route: 'POST /orders', user: 'ann' },
        () => Response.json({}, { headers }),
      )
    const [first, again] = [await post(), await post()]
    expect([first.headers.get('x-order'), first.headers.get('x-secret')]).toEqual(['7', 's'])
    expect(first.headers.get('idempotent-replayed')).toBeNull()
    expect([again.headers.get('x-order'), again.headers.get('x-secret')]).toEqual(['7', null])
    expect(again.headers.get('idempotent-replayed')).toBe('true')
  })

  test.each([
    [{ ttlMs: 0 }, 'ttlMs must be an integer of at least 1, not 0'],
    [{ leaseMs: 1.5 }, 'leaseMs must be an integer of at least 1, not 1.5'],
    [{ waitMs: -1 }, 'waitMs must be an integer of at least 0, not -1'],
    [{ mismatchStatus: 400 }, 'mismatchStatus must be 409 or 422, not 400'],
  ])('%j is refused', (given, message) => {
    // @ts-expect-error one of them is no status that the types allow
    expect(() => node(given)).toThrow(message)
  })

  test.each(['user', 'route'] as const)(
    'a %s that is empty or not a text is refused before any write',
    async (name) => {
      for (const value of ['', 'a\0b', '\ud800', 'x'.repeat(257), undefined]) {
        await expect(ask(node(), fresh().key, never, { [name]: value })).rejects.toThrow(`${name} must be text`)
      }
    },
  )
})
