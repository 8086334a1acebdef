import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { killAll, ichido as run, ichidoJson as runJson, serve } from '../../testing/cli.ts'

const folder = mkdtempSync(join(tmpdir(), 'ichido-settings-test-'))
let env = { ICHIDO_URL: '' }
beforeAll(async () => {
  env = { ICHIDO_URL: (await serve({ DATA_DIR: folder, REAP_BATCH_MAX: '7' })).url }
})
afterAll(async () => {
  await killAll()
  rmSync(folder, { recursive: true })
})

const ichido = (...args: string[]) => run(args, env)
const json = (...args: string[]) => runJson(args, env)

test('settings are listed, shown, set and reset', async () => {
  const { stdout } = await ichido('settings', 'list')
  expect(stdout).toMatch(/^SETTING +VALUE +DEFAULT +SOURCE +DESCRIPTION\n/)
  expect(stdout).toMatch(/^reap_interval_seconds +5 +5 +default +How often the leader looks for lost workers$/m)
  expect(stdout).toMatch(/^reap_batch_max +7 +200 +environment /m)

  const set = await ichido('settings', 'set', 'reap_interval_seconds', '2')
  expect(set).toMatchObject({ code: 0, stderr: '' })
  expect(set.stdout).toMatch(/^value +2\ndefault +5\nfrom +0\.05\nto +30\nsource +stored\n/m)
  expect(set.stdout).toMatch(/^changed +20\S+Z by local$/m)
  expect(await json('settings', 'show', 'reap_interval_seconds')).toMatchObject({ value: 2, source: 'stored' })
  expect(await json('settings', 'reset', 'reap_interval_seconds')).toMatchObject({ value: 5, source: 'default' })
})

test('a time in any unit is converted to the unit of the setting', async () => {
  expect(await json('settings', 'set', 'job_retention_seconds', '7d')).toMatchObject({ value: 604_800 })
  expect(await json('settings', 'set', 'audit_retention_days', '36h')).toMatchObject({ value: 1.5 })
  expect(await json('settings', 'set', 'log_retention_days_db', '3')).toMatchObject({ value: 3 })
  expect(await json('settings', 'set', 'submitter_priority_max', '-5')).toMatchObject({ value: -5 })
  expect((await ichido('settings', 'set', 'backups_kept', '2d')).stderr).toBe(
    'error: 2d is not a value of backups_kept. It must be a number.\n',
  )
})

test('an unknown setting and one that the environment fixes are refused', async () => {
  const unknown = await ichido('settings', 'show', 'reap_interval')
  expect(unknown.code).toBe(1)
  expect(unknown.stderr).toContain('There is no setting reap_interval; the nearest is reap_interval_seconds')
  expect(unknown.stderr).toMatch(/List them: .* settings list\n$/)
  const typo = await ichido('settings', 'set', 'job_retention_second', '7d')
  expect(typo.stderr).toContain('There is no setting job_retention_second; the nearest is job_retention_seconds')
  const fixed = await ichido('settings', 'set', 'reap_batch_max', '9')
  expect(fixed.code).toBe(1)
  expect(fixed.stderr).toContain('REAP_BATCH_MAX=7 (SETTING_FIXED)')
})

test('the audit is listed by actor, action, subject and time, page by page', async () => {
  await ichido('queues', 'pause', 'audited')
  await ichido('queues', 'resume', 'audited')
  const { stdout } = await ichido('audit', 'list', '--subject', 'audited')
  expect(stdout).toMatch(
    /^TIME +ACTOR +ACTION +SUBJECT +CHANGE\n20\S+Z +local +queue\.\w+ +audited +\{.*\n20\S+Z +local /,
  )
  const filters = ['--actor', 'local', '--subject', 'audited', '--from', '2020-01-01T00:00:00Z']
  const first = await json('audit', ...filters, '--limit', '1')
  const second = await json('audit', ...filters, '--limit', '1', '--cursor', first.next_cursor)
  expect([first, second].map(({ data }) => data.length)).toEqual([1, 1])
  expect(first.data[0].audit_id).not.toBe(second.data[0].audit_id)
  expect((await json('audit', '--subject', 'audited', '--from', '1h')).data.length).toBeGreaterThan(1)
  expect((await json('audit', '--subject', 'audited', '--to', '1h')).data).toEqual([])
  const none = await ichido('audit', 'list', '--subject', 'audited', '--to', '2020-01-01T00:00:00Z')
  expect(none).toMatchObject({ code: 0, stdout: '', stderr: 'No changes.\n' })
  expect((await json('audit', '--action', 'queue.none')).data).toEqual([])
})

test('jobs are counted by state', async () => {
  const { job_id } = await json('submit', 'k')
  await json('submit', 'k')
  await ichido('jobs', 'cancel', job_id)
  expect(await json('stats')).toMatchObject({ PENDING: 1, CANCELED: 1, RUNNING: 0 })
  expect((await ichido('stats')).stdout).toMatch(/^PENDING +1\n(.+\n)+CANCELED +1$/m)
})
