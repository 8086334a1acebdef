import { spawnSync } from 'node:child_process'
import { chmodSync, mkdirSync, mkdtempSync, readdirSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, relative } from 'node:path'
import { afterAll, afterEach, beforeEach, expect, test } from 'vitest'
import { freshDatabase } from '../../../scripts/testing/services.ts'
import { modesInside, PRIVATE } from '../core/node/file-modes.ts'
import { openSqlite } from '../store/engines/sqlite/sqlite.ts'
import type { Store } from '../store/port.ts'
import { chunksOf, someBytes } from '../testing/services/artifacts.ts'
import { openNode } from '../testing/store/store.ts'
import { openFiles } from './folders.ts'
import { exposedFiles } from './maintenance.ts'
import { realWorld } from './world.ts'

const folder = mkdtempSync(join(tmpdir(), 'ichido-modes-'))
afterAll(() => rmSync(folder, { recursive: true }))

/** The most generous umask and the usual one. Neither makes a difference. */
const UMASKS = [0o000, 0o022]
let usual: number
beforeEach(() => {
  usual = process.umask()
})
afterEach(() => {
  process.umask(usual)
})

const modeOf = (path: string) => (statSync(path).mode & 0o7777).toString(8)

/** The modes of everything in a folder and below. */
function modesIn(root: string): Record<'folder' | 'file', Set<string>> {
  const found = { folder: new Set<string>(), file: new Set<string>() }
  for (const entry of readdirSync(root, { recursive: true, withFileTypes: true })) {
    found[entry.isDirectory() ? 'folder' : 'file'].add(modeOf(join(entry.parentPath, entry.name)))
  }
  return found
}

/** Everything that a node stores in the folder: an open upload, a blob, a blob of several parts, a log. */
async function fill(store: Store, storage: object, artifacts: string | undefined): Promise<void> {
  const onTrouble = (_: string, error: unknown) => expect.fail(String(error))
  const { deps } = await openFiles({ storage, artifacts: { folder: artifacts }, world: realWorld, onTrouble }, store)
  const { blobs, logArchive } = deps
  if (blobs === undefined || logArchive === undefined) expect.fail('There is a folder')
  for (const [id, parts] of [
    ['whole', 1],
    ['parts', 2],
    ['open', 1],
  ] as const) {
    const received = async (fromByte: number) => {
      const receiving = await blobs.receive(id, fromByte)
      await receiving.take(chunksOf(someBytes(100)), 1_000, async () => {})
      return receiving
    }
    let receiving = await received(0)
    if (parts === 2) receiving = await received(100)
    if (id !== 'open') await blobs.place(await receiving.seal(), `${id}-blob`)
  }
  const chunk = { n: 1, stream: 'stdout', createdAtMs: 1, text: 'secret' } as const
  const [runId, fileId] = [realWorld.uuid(), realWorld.uuid()]
  await logArchive.write({ runId, fileId }, chunksOfLog(chunk))
}

async function* chunksOfLog<T>(chunk: T): AsyncGenerator<T> {
  yield chunk
}

test.each(UMASKS)('with the umask %o a folder and all its files are private', async (umask) => {
  process.umask(umask)
  const dataDir = join(folder, `new-${umask}`, 'data')
  const store = openSqlite({ dataDir, now: realWorld.now })
  await fill(store, { dataDir }, undefined)
  expect(readdirSync(dataDir).sort()).toEqual(expect.arrayContaining(['ichido.db', 'ichido.db-wal', 'lock.db']))
  expect(modeOf(dataDir)).toBe('700')
  expect(modesIn(dataDir)).toEqual({ folder: new Set(['700']), file: new Set(['600']) })
  expect(exposedFiles({ storage: { dataDir }, artifacts: { folder: undefined, bytesMax: 1 } })).toEqual([])
  await store.close()
})

test('an exposed database is restricted, its folder is only reported', async () => {
  process.umask(0o022)
  const dataDir = join(folder, 'old')
  const artifacts = join(dataDir, 'artifacts')
  mkdirSync(artifacts, { recursive: true })
  const first = openSqlite({ dataDir, now: realWorld.now })
  await first.close()
  for (const name of ['ichido.db', 'lock.db']) chmodSync(join(dataDir, name), 0o644)
  const told = () => exposedFiles({ storage: { dataDir }, artifacts: { folder: undefined, bytesMax: 1 } })
  expect(told()).toEqual([
    { path: dataDir, mode: '755', mend: `chmod 700 ${dataDir}` },
    { path: join(dataDir, 'ichido.db'), mode: '644', mend: `chmod 600 ${join(dataDir, 'ichido.db')}` },
    { path: artifacts, mode: '755', mend: `chmod -R go-rwx ${artifacts}` },
  ])
  const store = openSqlite({ dataDir, now: realWorld.now })
  expect(['ichido.db', 'ichido.db-wal', 'ichido.db-shm', 'lock.db'].map((name) => modeOf(join(dataDir, name)))).toEqual(
    Array(4).fill('600'),
  )
  expect(told().map(({ path }) => relative(dataDir, path))).toEqual(['', 'artifacts'])
  chmodSync(dataDir, 0o700)
  expect(told()).toEqual([])
  await store.close()
})

test('a second open() in this process does not release the first lock', async () => {
  const dataDir = join(folder, 'locked')
  const store = openSqlite({ dataDir, now: realWorld.now })
  expect(() => openSqlite({ dataDir, now: realWorld.now })).toThrow('is using')
  const script = `new (require('node:sqlite').DatabaseSync)(process.argv[1]).exec('BEGIN EXCLUSIVE')`
  const other = spawnSync(process.execPath, ['-e', script, join(dataDir, 'lock.db')], { encoding: 'utf8' })
  expect(other.stderr).toContain('database is locked')
  await store.close()
})

test.each(UMASKS)('with the umask %o a group folder is shared with the group throughout', async (umask) => {
  process.umask(umask)
  const database = await freshDatabase()
  const store = await openNode(database.url)
  const shared = mkdtempSync(join(folder, 'shared-'))
  chmodSync(shared, 0o2770)
  await fill(store, {}, shared)
  expect(modesIn(shared)).toEqual({ folder: new Set(['2770']), file: new Set(['660']) })
  const config = { storage: { databaseUrl: '', schema: '', databaseDirectUrl: undefined } }
  const told = () => exposedFiles({ ...config, artifacts: { folder: shared, bytesMax: 1 } })
  expect(told()).toEqual([])
  chmodSync(shared, 0o2775)
  expect(told()).toEqual([{ path: shared, mode: '2775', mend: `chmod -R o-rwx ${shared}` }])
  await store.close()
  await database.leave()
})

test('only a group that may write shares a folder', () => {
  expect(modesInside(0o40755)).toBe(PRIVATE)
  expect(modesInside(0o40777)).toEqual({ folder: 0o770, file: 0o660 })
})
