import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { DATABASE_FILE } from '../../../store/engines/sqlite/sqlite.ts'
import { until } from '../../../testing/store/store.ts'
import { killAll, ichido as run, ichidoJson as runJson, type Serving, serve } from '../../testing/cli.ts'

const folder = mkdtempSync(join(tmpdir(), 'ichido-alerts-test-'))
let server: Serving
let env = { ICHIDO_URL: '' }
beforeAll(async () => {
  const settings = { ALERT_INTERVAL_SECONDS: '0.05', ALERT_OLDEST_WAITING_THRESHOLD_SECONDS: '1' }
  server = await serve({ DATA_DIR: folder, LOG_LEVEL: 'info', ...settings })
  env = { ICHIDO_URL: server.url }
})
afterAll(async () => {
  await killAll()
  rmSync(folder, { recursive: true })
})

test('alerts are listed and logged as they open and close; a bad rule is refused', async () => {
  expect(await run(['alerts'], env)).toMatchObject({ code: 0, stdout: '', stderr: 'No alerts.\n' })
  expect((await run(['alerts', 'list', '--open'], env)).stderr).toBe('No alert is open.\n')
  const { job_id } = await runJson(['submit', 'work', '--queue', 'slow'], env)
  const opened = await until('the alert', async () => {
    const { data } = await runJson(['alerts', '--open'], env)
    return data.length === 1 && data[0]
  })
  expect(opened).toMatchObject({ rule: 'oldest_waiting', subject: 'slow', closed_at: null })
  expect((await run(['alerts', 'list', '--open'], env)).stdout).toMatch(
    /RULE +SUBJECT +OPENED +CLOSED +MESSAGE\noldest_waiting +slow +20\S+Z +open +A run of the queue slow has been due for/,
  )
  await run(['jobs', 'cancel', job_id], env)
  await until('its end', async () => (await runJson(['alerts', '--open'], env)).data.length === 0)
  expect((await run(['alerts', '--rule', 'oldest_waiting'], env)).stdout).toMatch(/slow +20\S+Z +20\S+Z +A run/)
  const logged = server.stderr().match(/.*"alert (opened|closed)".*/g) ?? []
  expect(logged.map((line) => JSON.parse(line))).toMatchObject([
    { level: 40, rule: 'oldest_waiting', subject: 'slow', msg: 'alert opened' },
    { level: 30, rule: 'oldest_waiting', subject: 'slow', msg: 'alert closed' },
  ])
  expect(await run(['alerts', '--rule', 'nope'], env)).toMatchObject({ stderr: expect.stringContaining('rule') })
})

test('the counters are in the store after the server has stopped', async () => {
  for (let i = 0; i < 3; i++) await run(['submit', 'work', '--key', 'same'], env)
  await server.stop()
  const database = new DatabaseSync(join(folder, DATABASE_FILE))
  const sums = database.prepare('SELECT name, sum(count) AS count FROM minute_counts GROUP BY name').all()
  database.close()
  expect(Object.fromEntries(sums.map(({ name, count }) => [name, count]))).toEqual({
    leader_changes: 1,
    // And the one before: the command line makes a key when it is given none.
    keyed_submits: 4,
    duplicate_submits: 2,
  })
})
