import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type FreshDatabase, freshDatabase, nodeArgs } from '../../scripts/testing/services.ts'
import { defineKind } from './index.ts'
import { type Embedded, embedded } from './testing/embedded.ts'
import { unique } from './testing/store.ts'

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
    import { defineKind, open } from ${JSON.stringify(INDEX)}
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
])('a handler that holds up its event loop keeps its job, opened by %s', async (_, storage) => {
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
  expect(lines.filter((line) => line.startsWith('trouble: A handler held up the event loop for'))).toHaveLength(1)
})
