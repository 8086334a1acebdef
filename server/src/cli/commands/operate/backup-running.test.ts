import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { size } from '../../../../../scripts/testing/size.ts'
import { until } from '../../../testing/store/store.ts'
import { ichido, ichidoJson, killAll, type Serving, serve } from '../../testing/cli.ts'
import { RUNS, Submitters } from '../../testing/submitters.ts'

/** An embedded store is backed up by the server that works on it. */

const KEPT = 2
const folder = mkdtempSync(join(tmpdir(), 'ichido-backup-running-'))
const dataDir = join(folder, 'data')
const backups = join(dataDir, 'backups')
let server: Serving
let env: Record<string, string>

beforeAll(async () => {
  server = await serve({ DATA_DIR: dataDir, BACKUPS_KEPT: String(KEPT) })
  env = { DATA_DIR: dataDir, ICHIDO_URL: server.url }
})
afterAll(async () => {
  await killAll()
  rmSync(folder, { recursive: true })
})

const isPrivate = (path: string) => (statSync(path).mode & 0o077) === 0

function countIn(file: string, table: string): number {
  const db = new DatabaseSync(file, { readOnly: true })
  try {
    return Number(db.prepare(`SELECT count(*) AS n FROM ${table}`).get()?.n)
  } finally {
    db.close()
  }
}

test('a backup during submissions is of one instant and leaves no other files', async () => {
  const file = join(folder, 'under-load.backup')
  const submitters = new Submitters(server.url)
  try {
    await submitters.more(size(100, 2_000))
    const before = submitters.acknowledged.size
    const made = await ichidoJson(['backup', file], env)
    expect(made).toMatchObject({ file, engine: 'sqlite', bytes: statSync(file).size })
    await submitters.more(1)
    const jobs = countIn(file, 'jobs')
    expect(jobs).toBeGreaterThanOrEqual(before)
    for (const table of [`(${RUNS})`, 'idempotency_keys']) expect(countIn(file, table)).toBe(jobs)
  } finally {
    await submitters.stop()
  }
  expect(isPrivate(file)).toBe(true)
  expect(readdirSync(backups)).toEqual([])
  const target = { DATA_DIR: join(folder, 'restored') }
  expect(await ichidoJson(['backup', file, '--restore'], target)).toMatchObject({ engine: 'sqlite' })
})

test('a whole file is verified; a damaged one is refused before a store is made', async () => {
  const file = join(folder, 'whole.backup')
  await ichido(['backup', file], env)
  const whole = await ichido(['backup', file, '--verify'], {})
  expect(whole).toMatchObject({ code: 0, stderr: expect.stringContaining(`${file} is whole: `) })
  expect((await ichido(['backup', file], env)).stderr).toContain('--force')

  const bytes = readFileSync(file)
  bytes.writeUInt8(bytes.readUInt8(5_000) ^ 1, 5_000)
  const damaged = join(folder, 'damaged.backup')
  writeFileSync(damaged, bytes)
  const target = { DATA_DIR: join(folder, 'never') }
  for (const flag of ['--verify', '--restore']) {
    const { code, stderr } = await ichido(['backup', damaged, flag], target)
    expect(code).toBe(1)
    expect(stderr).toContain(`${damaged} is damaged: its checksum does not match.`)
  }
  expect(existsSync(target.DATA_DIR)).toBe(false)
})

test('backups are made on schedule, and the newest are kept', async () => {
  writeFileSync(join(backups, 'mine'), '')
  const put = await fetch(`${server.url}/v1/settings/backup_interval_seconds`, {
    method: 'PUT',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ value: 1 }),
  })
  expect(put.status).toBe(200)
  const made = new Set<string>()
  const finished = () => readdirSync(backups).filter((name) => name.endsWith('.backup'))
  await until('more backups than are kept', async () => {
    for (const name of finished()) made.add(name)
    return made.size > KEPT + 1
  })
  const stopped = await server.stop()
  expect(stopped.stderr).not.toMatch(/"level":50/)
  const kept = finished().toSorted()
  expect(kept).toHaveLength(KEPT)
  expect(readdirSync(backups)).toContain('mine')
  for (const one of kept) {
    expect(isPrivate(join(backups, one))).toBe(true)
    expect((await ichido(['backup', join(backups, one), '--verify'], {})).code).toBe(0)
  }
})
