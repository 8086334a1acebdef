import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, rmdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { beforeEach, expect, onTestFinished, test } from 'vitest'
import { nodeArgs } from '../../../../scripts/testing/services.ts'
import { size } from '../../../../scripts/testing/size.ts'
import { openSqlite } from '../../../src/store/engines/sqlite/sqlite.ts'
import { Scene } from '../../../src/testing/store/scene.ts'
import { sql } from '../../../src/testing/store/store.ts'

/** Hazard 24: two servers on one SQLite folder. The second one is refused until the first one is gone. */

let dataDir: string
const open = (folder = dataDir) => openSqlite({ dataDir: folder, now: () => Date.now() })
const refusal = (folder: string) =>
  `Another process, or another open() in this one, is using ${folder}. Stop it, use another folder (dataDir; for the server DATA_DIR), or use PostgreSQL (pool or databaseUrl; for the server DATABASE_URL) to run several nodes.`

beforeEach(() => {
  dataDir = mkdtempSync(join(tmpdir(), 'ichido-h24-'))
  const folder = dataDir
  onTestFinished(() => rmSync(folder, { recursive: true }))
})

test('a second open is refused, also through a symlink, until the first has closed', async () => {
  const first = open()
  expect(() => open()).toThrow(refusal(dataDir))
  const alias = `${dataDir}-alias`
  symlinkSync(dataDir, alias)
  onTestFinished(() => rmSync(alias))
  expect(() => open(alias)).toThrow(refusal(alias))
  await new Scene(first).submitted()
  await first.close()
  const second = open(alias)
  expect(await sql(second, 'SELECT id FROM jobs')).toHaveLength(1)
  await second.close()
})

test('SIGKILL of the owner frees the folder, with all acknowledged jobs in it', async () => {
  for (let round = 0; round < size(2, 20); round++) {
    const { child, submit } = await spawnOwner(dataDir)
    for (let i = 0; i < 5; i++) await submit(`${round}-${i}`)
    expect(() => open()).toThrow(refusal(dataDir))
    child.kill('SIGKILL')
    await once(child, 'exit')
    const store = open()
    expect(await sql(store, 'SELECT id FROM jobs')).toHaveLength(5 * (round + 1))
    await store.close()
  }
})

test('only one of many simultaneous processes gets the folder', async () => {
  const owners = await Promise.all(Array.from({ length: 4 }, () => spawnOwner(dataDir).catch(() => null)))
  expect(owners.filter((owner) => owner !== null)).toHaveLength(1)
  for (const owner of owners) owner?.child.kill('SIGKILL')
})

test('an open that fails for another reason says why and leaves the folder free', async () => {
  const file = join(dataDir, 'ichido.db')
  mkdirSync(file)
  expect(() => open()).toThrow(/unable to open database file/)
  rmdirSync(file)
  writeFileSync(file, 'this is no database, only a text that is long enough to be looked at'.repeat(100))
  expect(() => open()).toThrow(/file is not a database/)
  rmSync(file)
  const lock = join(dataDir, 'lock.db')
  rmSync(lock)
  mkdirSync(lock)
  expect(() => open()).toThrow(/unable to open database file/)
  rmdirSync(lock)
  await open().close()
})

/** A child process that holds the folder. Resolves when it has the folder, rejects when it is refused. */
async function spawnOwner(folder: string): Promise<{ child: ChildProcess; submit(name: string): Promise<void> }> {
  const script = new URL('../../../src/testing/store/submit-on-request.ts', import.meta.url).pathname
  const child = spawn(process.execPath, [...nodeArgs, script, folder], { stdio: ['pipe', 'pipe', 'ignore'] })
  onTestFinished(() => void child.kill('SIGKILL'))
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
  const said = await lines.next()
  if (said.value !== 'ready') throw new Error('It was refused')
  return {
    child,
    async submit(name) {
      child.stdin.write(`${name}\n`)
      expect((await lines.next()).value).toBe(`answered ${name}`)
    },
  }
}
