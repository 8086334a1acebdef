import { readFileSync, writeFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { dumpSchema } from '../testing/store/schema-dump.ts'
import { eachEngine } from '../testing/store/store.ts'

const UPDATE = 'ICHIDO_UPDATE_SCHEMA=1 npm test server/src/store/schema.test.ts'

eachEngine(({ engine, store }) => {
  test('the schema equals the recorded schema', async () => {
    const file = new URL(`./schema.${engine}.sql`, import.meta.url)
    const header = `-- What the migrations make on ${engine === 'sqlite' ? 'SQLite' : 'PostgreSQL'}. Made by: ${UPDATE}\n\n`
    const dump = header + (await dumpSchema(store()))
    if (process.env.ICHIDO_UPDATE_SCHEMA === '1') writeFileSync(file, dump)
    const why = `The schema has changed. If that is meant, there is a new migration, and the record is written anew by: ${UPDATE}`
    expect(dump, why).toBe(readFileSync(file, 'utf8'))
  })
})
