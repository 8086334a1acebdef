import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Pgbouncer, startPgbouncer } from '../../../../scripts/services/pgbouncer.ts'
import type { Postgres, Replica } from '../../../../scripts/services/postgres.ts'
import { TcpProxy } from '../../../../scripts/testing/proxy.ts'
import { privatePostgres } from '../../../../scripts/testing/services.ts'
import { size } from '../../../../scripts/testing/size.ts'
import { ichido, ichidoJson, killAll, serve } from '../../../src/cli/testing/cli.ts'
import { check, keptIn, Submitters } from '../../../src/cli/testing/submitters.ts'
import { StoreUnavailable } from '../../../src/core/node/store-errors.ts'
import { defineKind, open } from '../../../src/library/index.ts'
import { openPostgres } from '../../../src/store/engines/postgres/postgres.ts'
import { readClock } from '../../../src/store/system/leadership.ts'
import { sql, until } from '../../../src/testing/store/store.ts'

/** Acknowledged submits before the failover, and again after it. */
const ACKNOWLEDGED = size(100, 500)
const BACK_WITHIN_MS = 15_000

let primary: Postgres
let replica: Replica

beforeAll(async () => {
  primary = await privatePostgres({ tcp: true })
  replica = await primary.startReplica()
})
afterAll(async () => {
  await killAll()
  await primary.stop()
  await replica.stop()
})

/** One address that names both servers, as libpq allows. */
function both(first: Postgres, second: Postgres): string {
  const address = new URL(first.tcpUrl ?? '')
  const { username, password, pathname } = address
  const hosts = [first, second].map(({ port }) => `127.0.0.1:${port}`)
  return `postgres://${username}:${password}@${hosts}${pathname}?target_session_attrs=read-write`
}

async function countIn({ url }: Pick<Postgres, 'url'>, sql: string): Promise<number> {
  const client = new pg.Client(url)
  client.on('error', () => {})
  await client.connect()
  try {
    return (await client.query<{ n: number }>(sql)).rows[0]?.n ?? 0
  } finally {
    await client.end()
  }
}

const LED_EPOCH = 'SELECT epoch::int AS n FROM ichido.leadership WHERE holder IS NOT NULL'
const UNDONE = `SELECT count(*)::int AS n FROM ichido.jobs j
  WHERE NOT EXISTS (SELECT FROM ichido.ended r WHERE r.job_id = j.id AND r.state = 'SUCCEEDED')`

test('an unreachable server is reported without its password', async () => {
  for (const hosts of ['127.0.0.1:1,127.0.0.1:2', 'a b,c:port']) {
    const { code, stderr } = await ichido(['migrate'], { DATABASE_URL: `postgres://u:hunter2@${hosts}/x` })
    expect(code).toBe(1)
    expect(stderr).toContain('PostgreSQL cannot be used: ')
    expect(stderr).not.toContain('hunter2')
  }
})

test('connecting to a standby alone fails with advice', async () => {
  const { code, stderr } = await ichido(['migrate'], { DATABASE_URL: replica.url })
  expect(code).toBe(1)
  expect(stderr).toContain('target_session_attrs=read-write')
})

test('commands find the primary if the address names a standby first', async () => {
  const env = { DATABASE_URL: both(replica, primary) }
  expect(await ichidoJson(['migrate'], env)).toMatchObject({ from: null })
  const { checks } = await ichidoJson(['doctor'], { ICHIDO_URL: 'http://127.0.0.1:2', ...env })
  expect(checks).toContainEqual({ check: 'store', status: 'ok', message: expect.stringContaining('PostgreSQL') })
})

describe('the server behind the address becomes a standby', () => {
  let proxy: TcpProxy
  let proxied: string
  let pooler: Pgbouncer
  beforeAll(async () => {
    const before = await TcpProxy.before(primary.tcpUrl ?? '')
    proxy = before.proxy
    proxied = before.url
    // PgBouncer retries a failed login immediately.
    const settings = { server_login_retry: '0' }
    pooler = await startPgbouncer({ target: proxied, mode: 'transaction', poolSize: 2, settings })
  })
  afterAll(async () => {
    await pooler.stop()
    await proxy.close()
  })

  test.each(['direct', 'pooled'])(
    'writes and reads fail until the primary is back, over %s connections',
    async (how) => {
      let passedMs = 0
      const url = how === 'pooled' ? pooler.through(proxied) : proxied
      const store = await openPostgres({
        url,
        now: Date.now,
        monotonic: () => passedMs,
        async sleep(ms) {
          passedMs += ms
        },
      })
      const write = () => sql(store, `UPDATE ichido.leadership SET epoch = epoch`)
      const read = () => store.read(readClock())
      const moveTo = async ({ port }: Postgres) => {
        proxy.targetPort = port
        proxy.cutAll()
        const arrived = () => countIn({ url }, `SELECT (current_setting('port')::int = ${port})::int AS n`)
        await until('connections to the other server', () => arrived().catch(() => 0))
      }
      expect(await store.health()).toMatchObject({ pooled: how === 'pooled' })
      await Promise.all([write(), read()])
      await moveTo(replica)
      await expect(write()).rejects.toThrow(StoreUnavailable)
      await expect(read()).rejects.toThrow(StoreUnavailable)
      await expect(store.health()).rejects.toThrow('standby')
      await moveTo(primary)
      await Promise.all([write(), read()])
      await store.close()
    },
  )
})

test('promoting a replica under load loses nothing acknowledged and raises the epoch', async () => {
  const databaseUrl = both(primary, replica)
  const server = await serve({ DATABASE_URL: databaseUrl })
  const worker = await open({ databaseUrl, onTrouble() {} })
  worker.handle(defineKind('k'), () => null, { concurrency: 16 })
  const submitters = new Submitters(server.url)
  void server.ended.then(({ stderr }) => submitters.fail(new Error(`The server ended: ${stderr}`)))
  try {
    await submitters.more(ACKNOWLEDGED)
    const epoch = await until('a leader', () => countIn(primary, LED_EPOCH))
    await primary.kill9()
    await replica.promote()
    const promotedMs = performance.now()
    await submitters.more(1)
    expect(performance.now() - promotedMs).toBeLessThan(BACK_WITHIN_MS)
    await submitters.more(ACKNOWLEDGED)
    await until('a later epoch', async () => (await countIn(replica, LED_EPOCH)) > epoch)
    await submitters.stop()
    await until('every job to be done', async () => (await countIn(replica, UNDONE)) === 0)
  } finally {
    await submitters.stop()
    await worker.close()
  }
  expect((await server.stop()).stderr).not.toMatch(/"level":50|a request failed/)
  check(submitters, await keptIn(replica.url))
})
