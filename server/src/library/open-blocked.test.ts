import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { bundled } from '../../../scripts/testing/programs.ts'
import { type FreshDatabase, freshDatabase, nodeArgs } from '../../../scripts/testing/services.ts'
import { postgresText } from '../store/engines/postgres/migrate.ts'
import { heartbeatWorkers } from '../store/leasing/heartbeat-runs.ts'
import { endHeld } from '../store/runs/leader.sql.ts'
import { type Embedded, embedded } from '../testing/services/embedded.ts'
import { unique, until } from '../testing/store/store.ts'
import { defineKind } from './index.ts'

const SECONDS = { lease: 2, continuation: 7, blocked: 12 }
const TIMES = { leaseTtlSeconds: SECONDS.lease, continuationSeconds: SECONDS.continuation, maxAttempts: 2 }
const INDEX = join(import.meta.dirname, 'index.ts')

let database: FreshDatabase
/** It leads, and would take over whatever the other process is believed to have lost. */
let here: Embedded
const children: ChildProcess[] = []
beforeAll(async () => {
  database = await freshDatabase()
  here = await embedded({ databaseUrl: database.url })
})
afterAll(async () => {
  for (const child of children) child.kill('SIGKILL')
  await here.close()
  await database.leave()
})

/** A process with a handler that holds up its event loop, without a busy core. */
async function blocking(name: string, storage: string) {
  const script = `
    import { defineKind, open } from ${JSON.stringify(bundled(INDEX))}
    import pg from 'pg'
    const url = ${JSON.stringify(database.url)}
    const given = ${storage}
    const ichido = await open({ ...given, onTrouble: (where, error) => console.log('trouble: ' + error.message) })
    const kind = defineKind(${JSON.stringify(name)}, ${JSON.stringify(TIMES)})
    const done = Promise.withResolvers()
    ichido.handle(kind, async ({ progress, signal }) => {
      process.stdout.write('began\\n')
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ${SECONDS.blocked * 1000})
      await progress('still here')
      setTimeout(done.resolve, 1_000)
      return { by: 'the first', aborted: signal.aborted }
    })
    console.log('ready')
    await done.promise
    await ichido.close()
    await given.pool?.end()`
  const args = [...nodeArgs, '--input-type=module', '--eval', script]
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'], cwd: import.meta.dirname })
  children.push(child)
  const lines: string[] = []
  const waiting = new Map<string, () => void>()
  createInterface(child.stdout).on('line', (line) => {
    lines.push(line)
    waiting.get(line)?.()
  })
  const said = (line: string) =>
    lines.includes(line) ? undefined : new Promise<void>((resolve) => waiting.set(line, resolve))
  const exited = once(child, 'exit')
  await said('ready')
  return { lines, said, exited }
}

test.concurrent.each([
  ['an address', '{ databaseUrl: url }'],
  [
    'a pool whose password is a function',
    `(() => {
      const { host, port, user, database, password } = new pg.Client(url)
      return { pool: new pg.Pool({ host, port, user, database, password: async () => password }) }
    })()`,
  ],
])('a handler that blocks the event loop keeps its job, opened by %s', async (_, storage) => {
  const kind = defineKind(unique('blocked'), TIMES)
  const { lines, said, exited } = await blocking(kind.name, storage)
  const job = await here.submit(kind, null)
  await said('began')
  const taken: number[] = []
  here.handle(kind, ({ job: { attempt } }) => {
    taken.push(attempt)
    return { by: 'the second', aborted: false }
  })
  // Longer than lease and continuation time together.
  expect(await job.result()).toEqual({ by: 'the first', aborted: false })
  expect(taken).toEqual([])
  expect((await job.get()).runs).toHaveLength(1)
  // Its thread does not keep it alive.
  expect((await exited)[0]).toBe(0)
  expect(lines.filter((line) => line.startsWith('trouble: A handler blocked the event loop for'))).toHaveLength(1)
})

test('a run that ends while the thread extends its lease stays ended', async () => {
  const kind = defineKind(unique('raced'), { leaseTtlSeconds: 3600, continuationSeconds: 3600 })
  const began = Promise.withResolvers<void>()
  const end = Promise.withResolvers<string>()
  here.handle(kind, () => {
    began.resolve()
    return end.promise
  })
  const job = await here.submit(kind, null)
  await began.promise
  const [leader, thread] = [new pg.Client(database.url), new pg.Client(database.url)]
  await Promise.all([leader.connect(), thread.connect()])
  const held = await leader.query('SELECT worker_id FROM ichido.held WHERE job_id = $1', [job.id])
  const workerId: string = held.rows[0].worker_id
  const extend = async () => {
    const text = postgresText(heartbeatWorkers.postgres, 'ichido')
    return (await thread.query(text, [[workerId, 'another']])).rowCount
  }
  expect(await extend()).toBe(1)
  await leader.query('BEGIN')
  await leader.query(postgresText(endHeld.postgres, 'ichido'), [[job.id], ['TIMED_OUT'], [null]])
  const extending = extend()
  await until('the thread to wait for the row', async () => {
    const { rows } = await leader.query(
      "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()",
    )
    return rows.length > 0
  })
  await leader.query('COMMIT')
  expect(await extending).toBe(0)
  end.resolve('unheard')
  await Promise.all([leader.end(), thread.end()])
})
