import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type FreshDatabase, freshDatabase } from '../../../scripts/testing/services.ts'
import { whyNotOpened } from '../core/node/store-errors.ts'
import { thrownBy } from '../testing/services/embedded.ts'
import { NotOpened, type OpenOptions, open } from './index.ts'

const folder = mkdtempSync(join(tmpdir(), 'ichido-refused-'))
let database: FreshDatabase
beforeAll(async () => {
  writeFileSync(join(folder, 'file'), '')
  database = await freshDatabase()
})
afterAll(async () => {
  await database.leave()
  rmSync(folder, { recursive: true })
})

function changed(change: Partial<Pick<URL, 'pathname' | 'username'>>): string {
  return Object.assign(new URL(database.url), change).href
}

test.each<[string, () => OpenOptions, string, RegExp]>([
  [
    'nobody listens',
    () => ({ databaseUrl: 'postgres://127.0.0.1:2/jobs' }),
    'ECONNREFUSED',
    /cannot be used: connect ECONNREFUSED 127\.0\.0\.1:2\. Start PostgreSQL, or set databaseUrl to its address\.$/,
  ],
  [
    'the pool finds nobody',
    () => ({ pool: new pg.Pool({ connectionString: 'postgres://127.0.0.1:2/jobs' }) }),
    'ECONNREFUSED',
    /or set the pool's options to its address\.$/,
  ],
  [
    'there is no such database',
    () => ({ databaseUrl: changed({ pathname: '/no_such_database' }) }),
    '3D000',
    /database "no_such_database" does not exist\. Make that database first \(createdb\), or name another database in databaseUrl\.$/,
  ],
  [
    'there is no such user',
    () => ({ databaseUrl: changed({ username: 'no_such_user' }) }),
    '28000',
    /role "no_such_user" does not exist\. Check the user and the password in databaseUrl\.$/,
  ],
  [
    'the folder is a file',
    () => ({ dataDir: join(folder, 'file') }),
    'EEXIST',
    /^The store in .*file cannot be opened: EEXIST: .* Set dataDir to a folder that this user may write to/,
  ],
])('open() reports in one sentence that %s', async (_, options, code, message) => {
  const error = await thrownBy(open(options()))
  expect(error).toBeInstanceOf(NotOpened)
  expect(error).toMatchObject({ code, message: expect.stringMatching(message) })
  expect((error as NotOpened).stack).not.toContain('\n')
})

test('an invalid address is refused before any call', async () => {
  for (const databaseUrl of ['', 'jobs', 'http://127.0.0.1/jobs', undefined as never]) {
    const message =
      /^(databaseUrl must be an address like postgres:\/\/|open\(\) needs one of dataDir, pool, databaseUrl or url)/
    expect(await thrownBy(open({ databaseUrl }))).toMatchObject({
      name: 'TypeError',
      message: expect.stringMatching(message),
    })
  }
})

test('a wrong password is reported with advice', () => {
  const wrong = Object.assign(new Error('password authentication failed for user "me"'), { code: '28P01' })
  const names = { dataDir: 'dataDir', databaseUrl: 'databaseUrl', schema: 'schema' }
  expect(whyNotOpened(wrong, null, names)).toEqual({
    message: 'PostgreSQL cannot be used: password authentication failed for user "me"',
    advice: 'Check the user and the password in databaseUrl.',
  })
})
