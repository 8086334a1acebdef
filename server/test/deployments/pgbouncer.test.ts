import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { z } from 'zod'
import type { Pgbouncer } from '../../../scripts/services/pgbouncer.ts'
import { bareDatabase, type FreshDatabase, freshDatabase, privatePgbouncer } from '../../../scripts/testing/services.ts'
import { size } from '../../../scripts/testing/size.ts'
import { channelOf } from '../../src/bus/postgres.ts'
import { ichido, ichidoJson, killAll, serve } from '../../src/cli/testing/cli.ts'
import { serveHere } from '../../src/cli/testing/serve-here.ts'
import { plainNode } from '../../src/idempotency/conformance/frameworks.ts'
import { postgresShop, type Shop } from '../../src/idempotency/conformance/shop.ts'
import { conforms } from '../../src/idempotency/conformance/suite.ts'
import type { Answer } from '../../src/idempotency/index.ts'
import { openPool } from '../../src/idempotency/testing/pool.ts'
import { defineKind, open } from '../../src/library/index.ts'
import { unique, until } from '../../src/testing/store/store.ts'

const CALLERS = 64
/** In session mode each connection of a node takes one of PostgreSQL's, and the tests need some too. */
const POOL_SIZE = { transaction: 2, session: 60 }

afterAll(killAll)

describe.each(['transaction', 'session'] as const)('behind PgBouncer in %s mode', (mode) => {
  let database: FreshDatabase
  let pooler: Pgbouncer
  let url: string
  let pool: pg.Pool
  beforeAll(async () => {
    database = await freshDatabase()
    // Without a reset query PgBouncer passes sessions on as they are, so the test can find settings that leak.
    const settings = { server_reset_query: '' }
    pooler = await privatePgbouncer({ mode, poolSize: POOL_SIZE[mode], settings })
    url = pooler.through(database.tcpUrl)
    pool = openPool(url, 10)
  })
  afterAll(async () => {
    await pooler.stop()
    await database.leave()
  })

  const submits = size(200, 2_000)
  test(`${submits} submits by ${CALLERS} callers: no error, and nothing is lost`, async () => {
    const server = await serveHere({ DATABASE_URL: url })
    const queue = unique('q')
    const acknowledged: string[] = []
    let next = 0
    const caller = async () => {
      while (next < submits) {
        const body = JSON.stringify({ kind: 'k', queue, idempotency_key: `${queue}/${next++}` })
        const headers = { 'content-type': 'application/json' }
        const response = await fetch(`${server.url}/v1/jobs`, { method: 'POST', headers, body })
        const answer = await response.json()
        expect([response.status, answer.error]).toEqual([201, undefined])
        acknowledged.push(answer.job_id)
      }
    }
    try {
      await Promise.all(Array.from({ length: CALLERS }, caller))
    } finally {
      await server.kill9()
    }
    const { rows } = await pool.query<{ id: string }>('SELECT id FROM ichido.jobs WHERE queue = $1', [queue])
    expect(rows.map(({ id }) => id).toSorted()).toEqual(acknowledged.toSorted())
    expect(acknowledged).toHaveLength(submits)
  })

  test("the library works with an application's pool that goes through PgBouncer", async () => {
    const ichidoHere = await open({ pool })
    try {
      const kind = defineKind(unique('double'), { payload: z.object({ n: z.int() }), result: z.int() })
      ichidoHere.handle(kind, ({ payload }) => 2 * payload.n)
      const job = await ichidoHere.submit(kind, { n: 21 })
      expect(await job.result()).toBe(42)

      const tx = await pool.connect()
      await tx.query('BEGIN')
      const later = await ichidoHere.submit(kind, { n: 4 }, { tx })
      await tx.query('COMMIT')
      tx.release()
      expect(await later.result()).toBe(8)
    } finally {
      await ichidoHere.close()
    }
  })

  let shop: Shop<pg.PoolClient, Answer | Promise<Answer>>
  describe('idempotency keys', () => {
    beforeAll(async () => {
      shop = await postgresShop(pool)
    })
    conforms(plainNode, () => shop)
  })

  test('Ichido leaves no setting, prepared statement, lock or LISTEN for other clients', async () => {
    const direct = new pg.Client(database.tcpUrl)
    await direct.connect()
    const untouched = await settingsOf(direct)
    await pool.end()
    const { rows } = await direct.query<{ pid: number }>(
      'SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()',
    )
    await direct.end()
    const unseen = new Set(rows.map(({ pid }) => pid))
    expect(unseen.size).toBeGreaterThan(1)
    await until('every session of PgBouncer to be checked', async () => {
      // Concurrent transactions each have their own session.
      const clients = await Promise.all(Array.from({ length: unseen.size }, () => beginOn(url)))
      for (const client of clients) {
        expect(await settingsOf(client)).toEqual(untouched)
        const { rows } = await client.query(`SELECT (SELECT count(*)::int FROM pg_prepared_statements) AS prepared,
          (SELECT count(*)::int FROM pg_listening_channels()) AS channels,
          (SELECT count(*)::int FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) AS locks`)
        expect(rows).toEqual([{ prepared: 0, channels: 0, locks: 0 }])
        unseen.delete((await client.query<{ pid: number }>('SELECT pg_backend_pid() AS pid')).rows[0]?.pid ?? 0)
      }
      await Promise.all(clients.map((client) => client.end()))
      return unseen.size === 0
    })
  })
})

async function beginOn(url: string): Promise<pg.Client> {
  const client = new pg.Client(url)
  await client.connect()
  await client.query('BEGIN')
  return client
}

/** All settings of a session, except transaction settings and those of plpgsql, which exist only after its first use. */
async function settingsOf(client: pg.Client): Promise<Record<string, string>> {
  const { rows } = await client.query<{ name: string; setting: string }>(
    `SELECT name, setting FROM pg_settings WHERE context IN ('user', 'superuser') 
      AND name NOT LIKE 'transaction_%' AND name NOT LIKE 'plpgsql.%'`,
  )
  expect(rows.length).toBeGreaterThan(100)
  return Object.fromEntries(rows.map(({ name, setting }) => [name, setting]))
}

describe('wake-ups behind PgBouncer', () => {
  let database: FreshDatabase
  let pooler: Pgbouncer
  let pooled: string
  let observer: pg.Client
  beforeAll(async () => {
    database = await freshDatabase()
    pooler = await privatePgbouncer({ mode: 'transaction' })
    pooled = pooler.through(database.tcpUrl)
    observer = new pg.Client(database.url)
    await observer.connect()
  })
  afterAll(async () => {
    await observer.end()
    await pooler.stop()
    await database.leave()
  })

  const listeners = async () => {
    const listen = `LISTEN ${channelOf('ichido')}`
    // Other test files use other databases on the same server.
    const text = 'SELECT 1 FROM pg_stat_activity WHERE query = $1 AND datname = current_database()'
    return (await observer.query(text, [listen])).rowCount
  }

  test('wake-ups use DATABASE_DIRECT_URL, and the startup log has one line about it', async () => {
    const server = await serve({ DATABASE_URL: pooled, DATABASE_DIRECT_URL: database.tcpUrl })
    await expect
      .poll(server.stderr)
      .toMatch(/Connections +behind a connection pooler, .*; wake-ups over DATABASE_DIRECT_URL\n/)
    await until('the server to listen', listeners)
    await server.stop()
    await until('the listening connection to be gone', async () => (await listeners()) === 0)
  })

  test('without DATABASE_DIRECT_URL, polling brings a job to a worker of another node', async () => {
    const env = { DATABASE_URL: pooled }
    const worker = await serve(env, ['--local-worker'])
    await expect.poll(worker.stderr).toMatch(/wake-ups by polling, once a second\. Set DATABASE_DIRECT_URL to .*\n/)
    const other = await serveHere(env)
    const job = await ichidoJson(['demo'], { ICHIDO_URL: other.url })
    expect(job).toMatchObject({ state: 'SUCCEEDED' })
    expect(await listeners()).toBe(0)
    await other.kill9()
    await worker.stop()
  })

  test('the doctor reports a pooler, and a direct address that is wrong or missing', async () => {
    const doctor = async (env: Record<string, string>) => {
      const { code, stdout } = await ichido(['doctor', '--json'], { ICHIDO_URL: 'http://127.0.0.1:2', ...env })
      expect(code).toBe(0)
      const { checks } = JSON.parse(stdout) as { checks: { check: string; status: string; message: string }[] }
      return checks.filter(({ check }) => ['pooler', 'wake-ups'].includes(check))
    }
    expect(await doctor({ DATABASE_URL: database.url })).toEqual([
      { check: 'pooler', status: 'ok', message: expect.stringContaining('direct connections') },
    ])
    expect(await doctor({ DATABASE_URL: pooled })).toEqual([
      {
        check: 'pooler',
        status: 'warning',
        message: expect.stringContaining('by polling'),
        advice: expect.stringContaining('DATABASE_DIRECT_URL'),
      },
    ])
    expect(await doctor({ DATABASE_URL: pooled, DATABASE_DIRECT_URL: database.url })).toEqual([
      { check: 'pooler', status: 'ok', message: expect.stringContaining('over DATABASE_DIRECT_URL') },
    ])
    expect(await doctor({ DATABASE_URL: pooled, DATABASE_DIRECT_URL: pooled })).toMatchObject([
      { check: 'pooler', status: 'ok' },
      { check: 'wake-ups', status: 'warning', message: expect.stringContaining('it leads to a connection pooler') },
    ])
  })

  test('a refusal by PgBouncer is reported with advice', async () => {
    const statements = await privatePgbouncer({ mode: 'statement' })
    const migrate = async (url: string) => {
      const { code, stderr } = await ichido(['migrate'], { DATABASE_URL: url })
      expect(code).toBe(1)
      return stderr
    }
    const bare = await bareDatabase()
    expect(await migrate(statements.through(bare.tcpUrl))).toContain('Set pool_mode = transaction or session')
    expect(await migrate(`${pooled}?options=-cjit%3Doff`)).toContain('ignore_startup_parameters')
    await statements.stop()
    await bare.leave()
  })
})
