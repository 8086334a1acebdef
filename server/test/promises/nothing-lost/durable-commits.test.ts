import { type ChildProcess, spawn } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Postgres } from '../../../../scripts/services/postgres.ts'
import { nodeArgs, privatePostgres } from '../../../../scripts/testing/services.ts'
import { findStrace, traceProcess, withoutStrace } from '../../../../scripts/testing/strace.ts'
import type { PostgresStore } from '../../../src/store/engines/postgres/postgres.ts'
import { openSqlite } from '../../../src/store/engines/sqlite/sqlite.ts'
import { command, commandIn } from '../../../src/store/port.ts'
import { queryText } from '../../../src/store/statement.ts'
import { submitAndLease } from '../../../src/store/submission/submit-and-lease.ts'
import { renderForTest, Scene } from '../../../src/testing/store/scene.ts'
import { openNode, sql, until } from '../../../src/testing/store/store.ts'

/** Hazard 18: acknowledged work is on the disk. The tests read the settings back and watch the system calls. */

const strace = await findStrace()
const folder = mkdtempSync(join(tmpdir(), 'ichido-h18-'))
let server: Postgres
let admin: pg.Client

beforeAll(async () => {
  server = await privatePostgres({ settings: { fsync: 'off' } })
  admin = new pg.Client(server.url)
  await admin.connect()
})

afterAll(async () => {
  await admin.end()
  await server.stop()
  rmSync(folder, { recursive: true })
})

async function reload(name: string, value: string): Promise<void> {
  await admin.query(`ALTER SYSTEM SET ${name} = ${value}`)
  await admin.query('SELECT pg_reload_conf()')
  await until(`${name} to be ${value}`, async () => (await admin.query(`SHOW ${name}`)).rows[0][name] === value)
}

describe('PostgreSQL', () => {
  test('PostgreSQL without fsync or full_page_writes is refused unless allowed', async () => {
    await expect(openNode(server.url)).rejects.toThrow(
      'This PostgreSQL may lose acknowledged work: fsync is off, full_page_writes is on. Turn both on, or set ALLOW_NO_FSYNC=1',
    )
    const allowed = await openNode(server.url, { allowNoFsync: true })
    expect(await allowed.health()).toMatchObject({ durable: false, durability: { fsync: 'off' } })
    await allowed.close()
    await reload('fsync', 'on')
    await reload('full_page_writes', 'off')
    await expect(openNode(server.url)).rejects.toThrow('fsync is on, full_page_writes is off')
    await reload('full_page_writes', 'on')
    const durable = await openNode(server.url)
    expect(await durable.health()).toMatchObject({ durable: true, durability: { fsync: 'on', full_page_writes: 'on' } })
    await durable.close()
  })

  test('every command runs with our settings, whatever the defaults of the database', async () => {
    const url = await server.createDatabase('defaults')
    for (const [name, value] of Object.entries({
      synchronous_commit: 'off',
      default_transaction_isolation: "'repeatable read'",
      default_transaction_read_only: 'on',
      lock_timeout: '0',
      enable_seqscan: 'on',
      statement_timeout: '1000',
      client_min_messages: 'error',
      idle_session_timeout: '60000',
      search_path: 'public, pg_catalog',
    })) {
      await admin.query(`ALTER DATABASE defaults SET ${name} = ${value}`)
    }
    const node = await openNode(url)
    const read = [
      'transaction_isolation',
      'statement_timeout',
      'client_min_messages',
      'search_path',
      'idle_session_timeout',
    ]
    const names = [...read, 'synchronous_commit', 'transaction_read_only', 'lock_timeout', 'fsync']
    const ask = (asked: string[]) => `SELECT ${asked.map((name) => `current_setting('${name}') AS ${name}`).join()}`
    const reading = {
      transaction_isolation: 'read committed',
      statement_timeout: '0',
      client_min_messages: 'warning',
      search_path: 'pg_catalog, pg_temp',
      idle_session_timeout: '0',
    }
    expect(await node.read(command('ask', () => queryText(ask(read))))).toEqual([reading])
    expect(await sql(node, ask(names))).toEqual([
      { ...reading, synchronous_commit: 'on', transaction_read_only: 'off', lock_timeout: '2s', fsync: 'on' },
    ])
    expect(await new Scene(node).submit({ key: 'k' })).toMatchObject({ kind: 'created' })
    await node.close()
  })
})

describe('SQLite', () => {
  test('a store in a folder uses WAL and syncs every commit', async () => {
    const store = openSqlite({ dataDir: join(folder, 'settings'), now: () => Date.now() })
    expect(await store.health()).toMatchObject({
      durable: true,
      durability: { journal_mode: 'wal', synchronous: '2' },
      location: join(folder, 'settings', 'ichido.db'),
    })
    await store.close()
  })
})

// Kill loops cannot see a missing sync: the page cache outlives the process.
if (strace !== undefined) {
  describe('system calls', () => {
    test('SQLite syncs between every request and its answer', async () => {
      const child = spawnSubmitter(join(folder, 'traced'))
      const lines = createInterface({ input: child.stdout ?? process.stdin })[Symbol.asyncIterator]()
      expect((await lines.next()).value).toBe('ready')
      const trace = await traceProcess(
        strace,
        child.pid ?? 0,
        'write,writev,fdatasync,fsync',
        join(folder, 'sqlite.trace'),
      )
      for (let i = 0; i < 20; i++) {
        child.stdin?.write(`${i}\n`)
        expect((await lines.next()).value).toBe(`answered ${i}`)
      }
      const seen = await trace.stop()
      child.stdin?.end()
      expect(syncedBetween(seen, /"requested \d/, /"answered \d/)).toEqual({ answers: 20, unsynced: 0 })
    })

    async function submittedAndLeased(scene: Scene): Promise<void> {
      const item = scene.item({ queue: 'quiet' })
      const submission = submitAndLease([item], { polls: [scene.leaseItem()], from: null }, renderForTest)
      expect(await scene.store.write(submission)).toMatchObject({ kind: 'leased' })
    }

    /** Turns synchronous_commit off in the sessions of the pool. Each call sleeps, so that the calls use different sessions. */
    async function weaken({ write }: PostgresStore): Promise<void> {
      const off = `SELECT set_config('synchronous_commit', 'off', false), pg_sleep(0.2)::text`
      await Promise.all(Array.from({ length: 5 }, () => write(commandIn('batches', 'submit', () => queryText(off)))))
    }

    async function leasedAlone(scene: Scene): Promise<void> {
      await scene.submitted()
      await scene.leased()
    }

    test.each<[string, (scene: Scene) => Promise<unknown>, RegExp, RegExp]>([
      ['COMMIT', (scene) => scene.submitted({ labels: { a: 'b' } }), /recvfrom\(.*COMMIT\\0/, /sendto\(.*COMMIT\\0/],
      ['plain submission', (scene) => scene.submitted(), /recvfrom\(.*submit_plain\\0/, /sendto\(.*SELECT 1\\0/],
      ['plain lease', leasedAlone, /recvfrom\(.*lease_plain\\0/, /sendto\(/],
      ['plain report', async (scene) => scene.finish(await scene.running()), /recvfrom\(.*finish_plain\\0/, /sendto\(/],
      ['submit and lease', submittedAndLeased, /recvfrom\(.*submit_and_lease\\0/, /sendto\(.*lease_ttl_ms\\0/],
    ])('PostgreSQL syncs between every %s and its answer', async (name, submit, request, answer) => {
      const database = `traced_${name.replaceAll(' ', '_').toLowerCase()}`
      const url = await server.createDatabase(database)
      await admin.query(`ALTER DATABASE ${database} SET synchronous_commit = off`)
      const node = await openNode(url)
      const scene = new Scene(node)
      await scene.submitted()
      await weaken(node)
      await submit(scene)
      const { rows } = await admin.query(
        `SELECT pid FROM pg_stat_activity WHERE datname = '${database}' ORDER BY query_start DESC LIMIT 1`,
      )
      const trace = await traceProcess(
        strace,
        rows[0].pid,
        'recvfrom,sendto,fdatasync,fsync',
        join(folder, `${database}.trace`),
      )
      for (let i = 0; i < 20; i++) await submit(scene)
      const seen = await trace.stop()
      await node.close()
      expect(syncedBetween(seen, request, answer)).toEqual({ answers: 20, unsynced: 0 })
    })
  })
} else withoutStrace('both engines sync before they answer')

/** A child process that submits one job for each line of its input. */
function spawnSubmitter(dataDir: string): ChildProcess {
  const script = new URL('../../../src/testing/store/submit-on-request.ts', import.meta.url).pathname
  return spawn(process.execPath, [...nodeArgs, script, dataDir], { stdio: ['pipe', 'pipe', 'ignore'] })
}

function syncedBetween(
  lines: readonly string[],
  request: RegExp,
  answer: RegExp,
): { answers: number; unsynced: number } {
  let [answers, unsynced, synced, asked] = [0, 0, false, false]
  for (const line of lines) {
    if (request.test(line)) [asked, synced] = [true, false]
    else if (/\bf(data)?sync\(.* = 0|f(data)?sync resumed.* = 0/.test(line)) synced = true
    else if (asked && answer.test(line)) {
      answers++
      if (!synced) unsynced++
      asked = false
    }
  }
  return { answers, unsynced }
}
