import { mkdtempSync, readFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { size } from '../../../../scripts/testing/size.ts'
import { realWorld } from '../../node/world.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import { ENGINES, testServices } from '../../testing/services/services.ts'
import { eachEngine } from '../../testing/store/store.ts'
import { tamper } from '../../testing/store/tampered-backup.ts'
import { BackupRefused, backupStore, restoreStore, verifyBackup } from './backup.ts'
import { checkSeal } from './backup-file.ts'

const PLACES = size(24, 500)
const folder = mkdtempSync(join(tmpdir(), 'ichido-backup-damaged-'))
const file = join(folder, 'backup')
let whole: Buffer

beforeAll(async () => {
  const { services, close } = await testServices('sqlite')
  for (let n = 0; n < 20; n++) {
    await services.submission.submit(
      LOCAL_ADMIN,
      { kind: 'k', payload: { n, text: 'x'.repeat(n * 100) } },
      { key: null },
    )
  }
  await backupStore(services.deps.store, file, { world: realWorld })
  await close()
  whole = readFileSync(file)
})
afterAll(() => rmSync(folder, { recursive: true }))

/**
 * The file has about as many bytes of free space and indexes, which the checksums of tables do not cover, as of rows.
 */
const somewhere = () => Math.floor(Math.random() * whole.length)

function written(name: string, bytes: Buffer): string {
  const path = join(folder, name)
  writeFileSync(path, bytes)
  return path
}

eachEngine(({ engine, store }) => {
  const refused = (path: string, what: string) =>
    expect(restoreStore(store(), path, {}), what).rejects.toThrow(BackupRefused)

  test('one flipped bit anywhere is noticed, and nothing is restored', async () => {
    // The last byte of the data and both ends of the seal, too.
    const places = [0, whole.length - 98, whole.length - 97, whole.length - 1]
    while (places.length < PLACES) places.push(somewhere())
    for (const place of places) {
      const bit = 1 << Math.floor(Math.random() * 8)
      const bytes = Buffer.from(whole)
      bytes.writeUInt8(bytes.readUInt8(place) ^ bit, place)
      await refused(written(`${engine}-turned`, bytes), `bit ${bit} of byte ${place}`)
    }
  })

  test('a file that is truncated anywhere, or has more at its end, is refused', async () => {
    const lengths = [0, 1, whole.length - 97, whole.length - 1]
    while (lengths.length < PLACES) lengths.push(somewhere())
    for (const length of lengths) {
      await refused(written(`${engine}-cut`, whole.subarray(0, length)), `${length} bytes`)
    }
    await refused(written(`${engine}-longer`, Buffer.concat([whole, Buffer.from('\n')])), 'one byte more')
  })

  test.each([
    ['a table with SQL in its name', `CREATE TABLE "jobs; DROP SCHEMA ichido CASCADE; --" (id)`],
    ['a table that Ichido does not have', 'CREATE TABLE pg_shadow (id TEXT PRIMARY KEY)'],
    ['a column with SQL in its name', `ALTER TABLE settings ADD COLUMN "x) SELECT 1; --" TEXT`],
    ['a column that Ichido does not have', 'ALTER TABLE settings ADD COLUMN more TEXT'],
    ['a table too few', 'DROP TABLE hooks'],
    ['a view', 'CREATE VIEW v AS SELECT 1'],
    ['a trigger', 'CREATE TRIGGER t AFTER DELETE ON jobs BEGIN DELETE FROM ready; END'],
  ])('a file with %s is refused, whatever its seal says', async (name, sql) => {
    const path = join(folder, `${engine} ${name}`)
    tamper(file, path, sql)
    await refused(path, name)
  })

  test('the store is still empty afterwards, and the whole file is restored', async () => {
    expect(await restoreStore(store(), file, {})).toMatchObject({ engine: 'sqlite' })
  })
})

test('a complete file is verified, also without its store', () => {
  expect(verifyBackup(file)).toMatchObject({ engine: 'sqlite', bytes: whole.length })
  expect(() => verifyBackup(written('half', whole.subarray(0, 5_000)))).toThrow(BackupRefused)
})

describe('a file of the format without seals', () => {
  function unsealed(name: string, sql: string): string {
    const path = join(folder, name)
    tamper(file, path, `UPDATE backup_manifest SET manifest = json_set(manifest, '$.format', 1); ${sql}`)
    const sealed = checkSeal(path)
    if (sealed === null || 'problem' in sealed) throw new Error('it was sealed')
    truncateSync(path, sealed.bytes)
    return path
  }

  test.each(ENGINES)('is restored into %s, checked by the sums of its tables', async (engine) => {
    const { services, close } = await testServices(engine)
    const changed = unsealed(`${engine}-old-changed`, `UPDATE jobs SET payload = '0'`)
    await expect(restoreStore(services.deps.store, changed, {})).rejects.toThrow('is damaged: the table jobs')
    const old = unsealed(`${engine}-old`, '')
    expect(await restoreStore(services.deps.store, old, {})).toMatchObject({ engine: 'sqlite' })
    await close()
  })
})
