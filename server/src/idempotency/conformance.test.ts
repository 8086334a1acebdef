import { DatabaseSync } from 'node:sqlite'
import type pg from 'pg'
import { afterAll, beforeAll, describe } from 'vitest'
import { bareDatabase, type FreshDatabase } from '../../../scripts/testing/services.ts'
import { FRAMEWORKS } from './conformance/frameworks.ts'
import { postgresShop, type Shop, sqliteShop } from './conformance/shop.ts'
import { conforms } from './conformance/suite.ts'
import type { Answer } from './index.ts'
import { openPool } from './testing/pool.ts'

const database = new DatabaseSync(':memory:')
const onSqlite = sqliteShop(database)
let postgres: FreshDatabase
let pool: pg.Pool
let onPostgres: Shop<pg.PoolClient, Answer | Promise<Answer>>

beforeAll(async () => {
  postgres = await bareDatabase()
  pool = openPool(postgres.url)
  onPostgres = await postgresShop(pool)
})

afterAll(async () => {
  database.close()
  await pool.end()
  await postgres.leave()
})

for (const [name, framework] of Object.entries(FRAMEWORKS)) {
  describe(`${name} on SQLite`, () => conforms(framework, () => onSqlite))
  describe(`${name} on PostgreSQL`, () => conforms(framework, () => onPostgres))
}
