import { spawn } from 'node:child_process'
import { once as event } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { DatabaseSync } from 'node:sqlite'
import { fileURLToPath } from 'node:url'
import type pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { bareDatabase, type FreshDatabase, nodeArgs } from '../../../scripts/testing/services.ts'
import { full, size } from '../../../scripts/testing/size.ts'
import { postgresShop, type Shop, sqliteShop } from './conformance/shop.ts'
import { createIdempotency, type Recovery } from './index.ts'
import { ask, fresh } from './testing/ask.ts'
import { openPool } from './testing/pool.ts'

const CALLERS = 64
const ROUNDS = size(1, 5)
const LEASE_MS = 400

const folder = mkdtempSync(join(tmpdir(), 'ichido-crash-'))
const file = join(folder, 'shop.db')
const sqlite = new DatabaseSync(file, { timeout: 5_000 })
sqlite.exec('PRAGMA journal_mode = WAL')
const onSqlite = sqliteShop(sqlite)
let postgres: FreshDatabase
let pool: pg.Pool
let onPostgres: Awaited<ReturnType<typeof postgresShop>>

beforeAll(async () => {
  postgres = await bareDatabase()
  pool = openPool(postgres.url)
  onPostgres = await postgresShop(pool)
})

afterAll(async () => {
  sqlite.close()
  rmSync(folder, { recursive: true })
  await pool.end()
  await postgres.leave()
})

/** 64 calls with one key to a process that is killed by the first of them. */
async function killed(database: string, where: string, key: string, note: string): Promise<void> {
  const script = fileURLToPath(new URL('./testing/dying-shop.ts', import.meta.url))
  const child = spawn(process.execPath, [...nodeArgs, script, database, where, note, String(LEASE_MS)], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const exit = event(child, 'exit')
  const [url] = await event(createInterface(child.stdout), 'line')
  const headers = { 'idempotency-key': key }
  const post = () => fetch(`${url}/orders`, { method: 'POST', headers })
  const calls = await Promise.allSettled(Array.from({ length: CALLERS }, post))
  expect(calls.filter((one) => one.status === 'fulfilled')).toEqual([])
  expect(await exit).toEqual([null, 'SIGKILL'])
}

/** The same 64 calls again, to a living process: the hook checks the effect of the first before any of them runs. */
async function survives<Tx, Returned>(shop: Shop<Tx, Returned>, database: string, where: string): Promise<void> {
  const { key, note } = fresh()
  await killed(database, where, key, note)
  const once = createIdempotency({ keys: shop.keys, leaseMs: LEASE_MS })
  let asked = 0
  const recover = async (): Promise<Recovery> => {
    asked += 1
    return (await shop.count(note)) > 0 ? { status: 201, body: { note, by: 'hook' } } : 'run'
  }
  const handler = async () => {
    await shop.write(note)
    return { status: 201, body: { note, by: 'handler' } }
  }
  const unasked = await ask(createIdempotency({ keys: shop.keys, waitMs: LEASE_MS * 10 }), key, handler)
  expect(unasked.code).toBe('IDEMPOTENCY_IN_DOUBT')
  const said = await Promise.all(Array.from({ length: CALLERS }, () => ask(once, key, handler, { recover })))
  expect(new Set(said.map((one) => JSON.stringify([one.status, one.body])))).toEqual(
    new Set([JSON.stringify([201, { note, by: where === 'after its effect' ? 'hook' : 'handler' }])]),
  )
  expect([asked, await shop.count(note)]).toEqual([1, 1])
}

const cases = ['after its effect', 'in its section', 'before its effect'].flatMap((where) => [
  { where, engine: 'SQLite' as const },
  { where, engine: 'PostgreSQL' as const },
])
// A process for each: one on each database, dying in different places, is what the small size can afford.
const chosen = full ? cases : [cases[0], cases[3]].filter((one) => one !== undefined)

test.each(chosen)('killed $where, $engine: the effect happens once', async ({ where, engine }) => {
  for (let round = 0; round < ROUNDS; round++) {
    if (engine === 'SQLite') await survives(onSqlite, file, where)
    else await survives(onPostgres, postgres.url, where)
  }
})
