import { execFile } from 'node:child_process'
import { globSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { findPython } from '../../clients/python/testing/python.ts'
import { root } from '../boot/fetch-packages.mjs'
import { onPath } from '../services/find.ts'
import { installPackages } from '../testing/debian-packages.ts'
import { type FreshDatabase, freshDatabase, nodeArgs } from '../testing/services.ts'
import { blocksOf } from './blocks.ts'
import type { Report } from './run.ts'

const run = promisify(execFile)
const RUN_WITHIN_MS = 180_000
const REPORT_BYTES_MAX = 10_000_000

const WRONG = 'scripts/docs/fixtures/wrong.md'
const PAGES = globSync(['*.md', 'docs/**/*.md', 'deploy/*.md', '{clients,examples}/*/README.md'], { cwd: root })
  // These pages are generated, and another test compares them.
  .filter((path) => !path.startsWith('docs/reference-'))
  .toSorted()

let database: FreshDatabase
let report: Report
beforeAll(async () => {
  database = await freshDatabase()
  const client = new pg.Client(database.url)
  await client.connect()
  await client.query('CREATE TABLE orders (id integer)')
  await client.end()
  const missing = ['bash', 'curl', 'jq', 'openssl'].filter((name) => onPath(name) === undefined)
  if (missing.length > 0) await installPackages(missing)
  const env = { ...process.env, DATABASE_URL: database.url, DOCS_PYTHON: await findPython() }
  const args = [...nodeArgs, join(root, 'scripts', 'docs', 'run.ts'), WRONG, ...PAGES]
  const bounds = { maxBuffer: REPORT_BYTES_MAX, timeout: RUN_WITHIN_MS, killSignal: 'SIGKILL' } as const
  const { stdout } = await run(process.execPath, args, { cwd: root, env, ...bounds })
  report = JSON.parse(stdout)
}, RUN_WITHIN_MS + 30_000)
afterAll(() => database.leave())

const fencesOf = (path: string) => readFileSync(join(root, path), 'utf8').match(/^ *```/gm)?.length ?? 0
const isOf = (path: string) => (place: { at: string }) => place.at.startsWith(`${path}:`)

test.for(PAGES)('the blocks of %s run and type-check', (path) => {
  const told = report.told.filter(isOf(path))
  const problems = told.filter(({ problem }) => problem !== null).map(({ at, problem }) => `${at} ${problem}`)
  expect([...problems, ...report.types.filter((problem) => problem.includes(`(${path}:`))]).toEqual([])
  expect(told).toHaveLength(fencesOf(path) / 2)
})

test('every type error belongs to a page', () => {
  expect(report.types.filter((problem) => !/ \(.*\.md:\d+\)$/.test(problem))).toEqual([])
})

test('the references match the types', () => {
  for (const [path, text] of Object.entries(report.references)) {
    if (process.env.ICHIDO_UPDATE_DOCS === '1') writeFileSync(join(root, path), text)
    expect(readFileSync(join(root, path), 'utf8'), 'ICHIDO_UPDATE_DOCS=1 writes it').toBe(text)
  }
})

test('every export, option and call of the packages has a comment', () => {
  expect(report.undocumented).toEqual([])
})

test('most blocks are run or compared', () => {
  const told = report.told.filter((block) => !isOf(WRONG)(block))
  const count = (...fates: string[]) => told.filter(({ fate }) => fates.includes(fate)).length
  expect(count('ran', 'compared')).toBeGreaterThan(120)
  expect(count('not run')).toBeLessThan(told.length / 5)
})

test('every error in the fixture page is found', () => {
  const found = report.told.filter(isOf(WRONG)).filter(({ problem }) => problem !== null)
  const wrong = new Set([
    ...found.map(({ at }) => at),
    ...report.types.flatMap((problem) => problem.match(/[\w/]+\.md:\d+/) ?? []),
  ])
  const blocks = blocksOf(WRONG, readFileSync(join(root, WRONG), 'utf8')).filter(({ marks }) => !marks.has('answer'))
  expect([...wrong].toSorted()).toEqual(blocks.map(({ at }) => at).toSorted())
})
