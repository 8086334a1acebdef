import { afterAll, beforeAll, expect, test } from 'vitest'
import { type FreshDatabase, freshDatabase } from '../../../../../scripts/testing/services.ts'
import { insertBulk } from '../../../testing/store/bulk.ts'
import { integer } from '../../../testing/store/rows.ts'
import { openNode, sql, until } from '../../../testing/store/store.ts'
import type { PostgresStore } from './postgres.ts'

let database: FreshDatabase
let node: PostgresStore
beforeAll(async () => {
  database = await freshDatabase()
  node = await openNode(database.url)
})
afterAll(async () => {
  await node.close()
  await database.leave()
})

const COUNT = 8_000
const pagesOf = async (room: string) =>
  integer((await sql(node, `SELECT pg_relation_size('ichido.${room}') / 8192 AS pages`))[0], 'pages')

test.each([
  ['ready', 'PENDING'],
  ['held', 'RUNNING'],
] as const)('%s stays small however many runs pass through it', async (room, state) => {
  expect(await node.vacuum()).toEqual([])
  const pages: number[] = []
  for (let round = 0; round < 4; round++) {
    await insertBulk(node, { count: COUNT, state })
    await sql(node, `DELETE FROM ichido.${room}`)
    await until('the statistics', async () => (await node.vacuum()).includes(room))
    pages.push(await pagesOf(room))
  }
  expect(Math.max(...pages)).toBeLessThanOrEqual((pages[0] ?? 0) * 1.5)
})
