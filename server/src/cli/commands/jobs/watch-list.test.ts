import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { until } from '../../../testing/store/store.ts'
import { begin, killAll, ichido as run, ichidoJson as runJson, serve } from '../../testing/cli.ts'

const folder = mkdtempSync(join(tmpdir(), 'ichido-watch-list-test-'))
let env = { ICHIDO_URL: '' }
beforeAll(async () => {
  env = { ICHIDO_URL: (await serve({ DATA_DIR: folder })).url }
})
afterAll(async () => {
  await killAll()
  rmSync(folder, { recursive: true })
})

test('jobs list --watch prints each change once to a pipe', async () => {
  const { job_id } = await runJson(['submit', 'k', '--queue', 'q'], env)
  const watching = begin(['jobs', 'list', '--watch', '--queue', 'q'], env)
  await until('the job', async () => watching.stdout().includes('PENDING'))
  await run(['jobs', 'cancel', job_id], env)
  await until('its end', async () => watching.stdout().includes('CANCELED'))
  const other = await runJson(['submit', 'k', '--queue', 'q'], env)
  await until('the next job', async () => watching.stdout().includes(other.job_id))
  const lines = watching.stdout().trim().split('\n')
  expect(lines.map((line) => line.split('  ').slice(0, 2))).toEqual([
    [job_id, 'PENDING'],
    [job_id, 'CANCELED'],
    [other.job_id, 'PENDING'],
  ])
  watching.signal('SIGINT')
  await watching.ended
})

test('states are coloured without a change of the columns, and not in a pipe', async () => {
  const plain = await run(['jobs', 'list'], env)
  expect(plain.stdout).not.toContain('\u001b')
  const { stdout } = await run(['jobs', 'list'], { ...env, FORCE_COLOR: '1' })
  expect(stdout).toContain('\u001b[2mCANCELED\u001b[22m')
  expect(stdout).toContain('\u001b[33mPENDING \u001b[39m')
  const ESCAPES = new RegExp(`${String.fromCharCode(27)}\\[\\d+m`, 'g')
  expect(stdout.replaceAll(ESCAPES, '')).toBe(plain.stdout)
  const json = await run(['jobs', 'list', '--json'], { ...env, FORCE_COLOR: '1' })
  expect(json.stdout).not.toContain('\u001b')
})
