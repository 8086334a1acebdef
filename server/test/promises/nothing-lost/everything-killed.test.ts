import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { setTimeout as pause } from 'node:timers/promises'
import { afterAll, expect, test } from 'vitest'
import { privatePostgres } from '../../../../scripts/testing/services.ts'
import { size } from '../../../../scripts/testing/size.ts'
import { killAll, type Serving, serve } from '../../../src/cli/testing/cli.ts'
import { check, KEYS, keptIn, RUNS, Submitters } from '../../../src/cli/testing/submitters.ts'

const folder = mkdtempSync(join(tmpdir(), 'ichido-kill-test-'))

afterAll(async () => {
  await killAll()
  rmSync(folder, { recursive: true })
})

const ACKNOWLEDGED_BETWEEN_KILLS = 40

test(`${size(3, 200)} × kill -9 of the server on SQLite: nothing acknowledged is lost, no key has two jobs`, async () => {
  const kills = size(3, 200)
  const env = { DATA_DIR: folder }
  let server: Serving = await serve(env)
  const submitters = new Submitters(server.url)
  try {
    for (let kill = 0; kill < kills; kill++) {
      await submitters.more(ACKNOWLEDGED_BETWEEN_KILLS)
      await pause(Math.random() * 20)
      const started = server.kill9().then(() => serve(env))
      submitters.moveTo(started)
      server = await started
    }
    await submitters.more(ACKNOWLEDGED_BETWEEN_KILLS)
  } finally {
    await submitters.stop()
  }
  await server.stop()
  expect(submitters.interruptions).toBeGreaterThanOrEqual(kills)

  const db = new DatabaseSync(join(folder, 'ichido.db'))
  const rows = (sql: string) => db.prepare(sql).all()
  const ids = (sql: string) => rows(sql).map((row) => String(row.id))
  const keys = rows(`${KEYS} idempotency_keys`).map((row) => ({ key: String(row.key), job_id: String(row.job_id) }))
  check(submitters, { keys, jobs: ids('SELECT id FROM jobs'), runs: ids(RUNS) })
  db.close()
})

test(`${size(1, 20)} × kill -9 of PostgreSQL: nothing acknowledged is lost, no key has two jobs`, async () => {
  const kills = size(1, 20)
  const postgres = await privatePostgres()
  const server = await serve({ DATABASE_URL: postgres.url })
  const submitters = new Submitters(server.url)
  void server.ended.then(({ stderr }) => submitters.fail(new Error(`The server ended: ${stderr}`)))
  try {
    for (let kill = 0; kill < kills; kill++) {
      await submitters.more(ACKNOWLEDGED_BETWEEN_KILLS)
      await pause(Math.random() * 20)
      await postgres.kill9()
      await postgres.restart()
    }
    await submitters.more(ACKNOWLEDGED_BETWEEN_KILLS)
  } finally {
    await submitters.stop()
  }
  expect((await server.stop()).code).toBe(0)

  const kept = await keptIn(postgres.url)
  await postgres.stop()
  check(submitters, kept)
})
