import { readFileSync } from 'node:fs'
import pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { blocksOf } from '../../../../../scripts/docs/blocks.ts'
import { bareDatabase, type FreshDatabase } from '../../../../../scripts/testing/services.ts'
import { defineKind, open } from '../../../library/index.ts'
import { openNode, unique } from '../../../testing/store/store.ts'

/** The statements of the page, carried out one after the other, with roles that no other test has. */
const PAGE = 'docs/operations/secure.md'
const owner = unique('owner').replaceAll('-', '_')
const node = unique('node').replaceAll('-', '_')

let database: FreshDatabase
let admin: pg.Client

beforeAll(async () => {
  database = await bareDatabase()
  admin = new pg.Client(database.url)
  await admin.connect()
})
afterAll(async () => {
  await admin.query(`DROP OWNED BY ${node}; DROP ROLE ${node}; DROP OWNED BY ${owner}; DROP ROLE ${owner}`)
  await admin.end()
  await database.leave()
})

function grants(): string[] {
  const page = readFileSync(new URL(`../../../../../${PAGE}`, import.meta.url), 'utf8')
  const name = new URL(database.url).pathname.slice(1)
  return blocksOf(PAGE, page)
    .filter(({ language }) => language === 'sql')
    .map(({ text }) =>
      text
        .replaceAll('jobs_owner', owner)
        .replaceAll('jobs_node', node)
        .replaceAll('DATABASE jobs', `DATABASE ${name}`),
    )
}

function as(role: string): string {
  const url = new URL(database.url)
  url.username = role
  return url.href
}

test('a role that may only change rows works on a store that another role migrated', async () => {
  const [before = '', after = ''] = grants()
  await admin.query(before)
  await expect(openNode(as(node))).rejects.toThrow('permission denied')
  await (await openNode(as(owner))).close()
  await admin.query(after)

  const troubles: unknown[] = []
  const ichido = await open({ databaseUrl: as(node), onTrouble: (where, error) => void troubles.push([where, error]) })
  const kind = defineKind('answer')
  ichido.handle(kind, () => 42)
  const job = await ichido.submit(kind, null, { key: 'k' })
  expect(await job.result()).toBe(42)
  await ichido.close()
  expect(troubles).toEqual([])

  const client = new pg.Client(as(node))
  await client.connect()
  for (const sql of ['CREATE TABLE ichido.mine (id int)', 'DROP TABLE ichido.jobs', 'TRUNCATE ichido.audit']) {
    await expect(client.query(sql)).rejects.toMatchObject({ code: '42501' })
  }
  await client.end()
})
