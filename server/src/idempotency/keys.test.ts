import { DatabaseSync } from 'node:sqlite'
import type pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { bareDatabase, type FreshDatabase } from '../../../scripts/testing/services.ts'
import { postgresShop, type Shop, sqliteShop } from './conformance/shop.ts'
import type { Claim, Holder, Keys } from './stores/keys.ts'
import { SQL } from './stores/postgres.ts'
import { fresh } from './testing/ask.ts'
import { openPool } from './testing/pool.ts'

const LEASE_MS = 60_000
const TTL_MS = 60_000
const ANSWER = { status: 201, headers: [], body: Buffer.from('made') }

type State = 'absent' | 'held' | 'lapsed' | 'in_doubt' | 'answered' | 'expired'
const STATES: State[] = ['absent', 'held', 'lapsed', 'in_doubt', 'answered', 'expired']

/** The allowed writes; all others change nothing. `other` has read the record, but is not its holder. */
const ALLOWED: Record<string, { by: 'holder' | 'other'; from: State[]; to: State }> = {
  claim: { by: 'other', from: ['absent'], to: 'held' },
  reclaim: { by: 'other', from: ['expired'], to: 'held' },
  takeOver: { by: 'other', from: ['lapsed', 'in_doubt'], to: 'held' },
  renew: { by: 'holder', from: ['held', 'lapsed'], to: 'held' },
  answer: { by: 'holder', from: ['held', 'lapsed', 'in_doubt'], to: 'answered' },
  doubt: { by: 'holder', from: ['held', 'lapsed'], to: 'in_doubt' },
  release: { by: 'holder', from: ['held', 'lapsed'], to: 'absent' },
}

function guards<Tx, Returned>(open: () => Shop<Tx, Returned>): void {
  const claimOf = (holder: Holder): Claim => ({ ...holder, requestHash: 'hash', hashVersion: 1, leaseMs: LEASE_MS })

  /** A record in the state, held or left by `first`. */
  async function given(state: State): Promise<Holder> {
    const { keys, sql } = open()
    const first = { user: 'ann', route: 'r', key: fresh().key, holder: 'first' }
    const set = (assignment: string) =>
      sql(`UPDATE ichido_idempotency_keys SET ${assignment} WHERE key = '${first.key}'`)
    if (state === 'absent') return first
    await keys.claim(claimOf(first))
    if (state === 'lapsed') await set('lease_expires_at = 1')
    if (state === 'in_doubt') await keys.doubt(first)
    if (state === 'answered' || state === 'expired') await keys.answer(first, ANSWER, TTL_MS)
    if (state === 'expired') await set('expires_at = 1')
    return first
  }

  const verbs = (keys: Keys<Tx, Returned>, seen: string): Record<string, (by: Holder) => Promise<boolean>> => ({
    claim: (by) => keys.claim(claimOf(by)),
    reclaim: (by) => keys.reclaim(claimOf(by), seen),
    takeOver: (by) => keys.takeOver(by, LEASE_MS, seen),
    renew: (by) => keys.renew(by, LEASE_MS),
    answer: (by) => keys.answer(by, ANSWER, TTL_MS),
    doubt: (by) => keys.doubt(by),
    release: (by) => keys.release(by),
  })

  async function stateOf(holder: Holder): Promise<{ state: State; by: string | null }> {
    const record = await open().keys.find(holder)
    if (record === null) return { state: 'absent', by: null }
    const state = record.expired ? 'expired' : record.lapsed ? 'lapsed' : record.state
    return { state, by: record.holder }
  }

  test.each(Object.entries(ALLOWED))('%s changes only what it may', async (verb, { by, from, to }) => {
    for (const state of STATES) {
      for (const who of ['holder', 'other'] as const) {
        const first = await given(state)
        const before = await stateOf(first)
        const caller = who === 'holder' ? first : { ...first, holder: 'second' }
        // The holder itself is not asked whether it may come after itself.
        if (by === 'other' && who === 'holder') continue
        const may = by === who && from.includes(state)
        const did = await verbs(open().keys, 'first')[verb]?.(caller)
        const after = may ? { state: to, by: to === 'absent' ? null : caller.holder } : before
        expect({ from: state, who, did, ...(await stateOf(first)) }).toEqual({ from: state, who, did: may, ...after })
      }
    }
  })

  test('a takeover fails if the holder has changed', async () => {
    for (const [verb, state] of [
      ['reclaim', 'expired'],
      ['takeOver', 'lapsed'],
      ['takeOver', 'in_doubt'],
    ] as const) {
      const first = await given(state)
      const before = await stateOf(first)
      const late = { ...first, holder: 'second' }
      expect(await verbs(open().keys, 'somebody before')[verb]?.(late)).toBe(false)
      expect(await stateOf(first)).toEqual(before)
    }
  })

  test.each(STATES)('a section writes only for the holder (%s)', async (state) => {
    const { keys, section, count } = open()
    for (const holder of ['first', 'second']) {
      const { note } = fresh()
      const record = await given(state)
      const work = section(note, () => ({ status: 201 }))
      const done = await keys.section({ ...record, holder }, work, () => ({ store: ANSWER, ttlMs: TTL_MS }))
      const may = holder === 'first' && (state === 'held' || state === 'lapsed')
      expect([state, holder, done.outcome]).toEqual([state, holder, may ? 'committed' : 'failed'])
      expect(await count(note)).toBe(may ? 1 : 0)
    }
  })

  test('the longest names of any script fit', async () => {
    const long = { user: '漢'.repeat(256), route: '字'.repeat(256), key: 'k'.repeat(256), holder: 'first' }
    expect(await open().keys.claim(claimOf(long))).toBe(true)
    expect(await open().keys.find(long)).toMatchObject({ state: 'held' })
  })

  test('an answer is read unchanged', async () => {
    const first = await given('held')
    const answer = { status: 404, headers: [['location', '/é'] as [string, string]], body: Buffer.from([0, 255, 128]) }
    await open().keys.answer(first, answer, TTL_MS)
    const found = await open().keys.find(first)
    expect(found?.answer).toMatchObject({ status: 404, headers: [['location', '/é']] })
    expect([...(found?.answer?.body ?? [])]).toEqual([0, 255, 128])
  })
}

describe('SQLite', () => {
  const database = new DatabaseSync(':memory:')
  const shop = sqliteShop(database)
  afterAll(() => database.close())
  guards(() => shop)
})

describe('PostgreSQL', () => {
  let postgres: FreshDatabase
  let pool: pg.Pool
  let shop: Awaited<ReturnType<typeof postgresShop>>
  beforeAll(async () => {
    postgres = await bareDatabase()
    pool = openPool(postgres.url, 2)
    shop = await postgresShop(pool)
  })
  afterAll(async () => {
    await pool.end()
    await postgres.leave()
  })
  guards(() => shop)

  test('expired records and single keys are found by an index', async () => {
    const client = await pool.connect()
    try {
      await client.query('BEGIN; SET LOCAL enable_seqscan = off; SET LOCAL plan_cache_mode = force_generic_plan')
      const plan = async (sql: string, values: unknown[]) =>
        JSON.stringify((await client.query(`EXPLAIN ${sql}`, values)).rows)
      expect(await plan(SQL.removeExpired, [500])).toMatch(/_keys_expires.*Index Cond: \(expires_at <=/)
      const renewed = await plan(SQL.renew, ['ann', 'r', 'k', 'first', LEASE_MS])
      expect(renewed.match(/Index Cond: \(\(user_id = /g)).toHaveLength(2)
    } finally {
      await client.query('ROLLBACK')
      client.release()
    }
  })

  test.each(['COMMIT', 'COMMIT; BEGIN'])(
    'a section that ends its transaction (%s) and fails leaves it uncertain',
    async (end) => {
      const holder = { user: 'ann', route: 'r', key: fresh().key, holder: 'first' }
      await shop.keys.claim({ ...holder, requestHash: 'hash', hashVersion: 1, leaseMs: LEASE_MS })
      const done = await shop.keys.section(
        holder,
        async (tx) => {
          await tx.query(end)
          throw new Error('on purpose')
        },
        () => null,
      )
      expect(done).toMatchObject({ outcome: 'failed', certain: false })
    },
  )

  test('a section with a broken connection or a failed statement is rolled back', async () => {
    for (const sql of ['SELECT pg_terminate_backend(pg_backend_pid())', 'SELECT 1 / 0']) {
      const { note } = fresh()
      const holder = { user: 'ann', route: 'r', key: note, holder: 'first' }
      await shop.keys.claim({ ...holder, requestHash: 'hash', hashVersion: 1, leaseMs: LEASE_MS })
      const done = await shop.keys.section(
        holder,
        async (tx) => {
          await tx.query('INSERT INTO effects VALUES ($1)', [note])
          await tx.query(sql)
          return { status: 201 }
        },
        () => null,
      )
      expect(done).toMatchObject({ outcome: 'failed', certain: true })
      expect(await shop.count(note)).toBe(0)
    }
    expect(pool.idleCount).toBeGreaterThan(0)
  })
})
