import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { globSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { promisify } from 'node:util'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { cacheDir, root } from './boot/fetch-packages.mjs'
import { withLock } from './boot/lock.mjs'
import { runNpm } from './boot/npm.mjs'

const run = promisify(execFile)
const INSTALL_WITHIN_MS = 300_000

const APP = `
import { defineKind, Fatal, open } from 'ichido'
import { z } from 'zod'

const resize = defineKind('resize', {
  payload: z.object({ url: z.url(), width: z.int() }),
  result: z.object({ bytes: z.int() }),
  queue: 'media',
  maxAttempts: 5,
})
const ichido = await open({ dataDir: process.argv[2] ?? 'data' })
let calls = 0
ichido.handle(
  resize,
  async ({ payload, signal, progress }) => {
    if (payload.width > 1000) throw new Fatal('TOO_WIDE')
    calls += 1
    await progress({ percent: 40 })
    signal.throwIfAborted()
    return { bytes: payload.width * 2 }
  },
  { concurrency: 8 },
)
const job = await ichido.submit(resize, { url: 'https://example.com/a.png', width: 80 }, { key: 'thumb-1' })
const again = await ichido.submit(resize, { url: 'https://example.com/a.png', width: 80 }, { key: 'thumb-1' })
const stages: string[] = []
for await (const event of job.watch()) stages.push(event.stage)
const { bytes } = await job.result()
const typed: number = bytes
// @ts-expect-error the result has the type that its kind declares
const wrong: string = bytes
// @ts-expect-error so has the payload
const refused = () => ichido.submit(resize, { url: 'https://example.com/a.png', width: '80' })
await ichido.close()
console.log(JSON.stringify({ typed, same: job.id === again.id, calls, stages, unused: [wrong, refused].length }))
`

/** Without a control plane. */
const ORDERS = `
import { DatabaseSync } from 'node:sqlite'
import { createIdempotency, sqliteKeys } from 'ichido/idempotency'

const database = new DatabaseSync(':memory:')
database.exec('CREATE TABLE orders (item TEXT NOT NULL)')
const once = createIdempotency({ keys: sqliteKeys(database) })
async function post(): Promise<string> {
  const request = new Request('http://shop/orders', { method: 'POST', headers: { 'idempotency-key': 'k1' } })
  const response = await once.fetch(request, { route: 'POST /orders', user: 'ann' }, (call) =>
    call.withKey((tx) => {
      tx.prepare('INSERT INTO orders VALUES (?)').run('tea')
      return { status: 201, body: { item: 'tea' } }
    }),
  )
  return response.status + ' ' + response.headers.get('idempotent-replayed') + ' ' + (await response.text())
}
// @ts-expect-error on SQLite a section may not await
const refused = () => once.fetch(new Request('http://shop'), { route: 'r', user: 'u' }, (call) => call.withKey(async () => ({ status: 200 })))
console.log(JSON.stringify([await post(), await post(), database.prepare('SELECT * FROM orders').all().length, typeof refused]))
`

const TSCONFIG = {
  compilerOptions: { strict: true, target: 'es2024', module: 'nodenext', types: ['node'], noEmit: true },
  files: ['app.ts', 'orders.ts'],
}

let app: string
beforeAll(async () => {
  app = mkdtempSync(join(tmpdir(), 'ichido-app-'))
  writeFileSync(join(app, 'package.json'), '{"private":true,"type":"module"}')
  writeFileSync(join(app, 'tsconfig.json'), JSON.stringify(TSCONFIG))
  writeFileSync(join(app, 'app.ts'), APP)
  writeFileSync(join(app, 'orders.ts'), ORDERS)
  // Both packages are built in place: two runs on one clone must not do it at the same time.
  await withLock(
    join(cacheDir, 'pack.lock'),
    () => {},
    async () => {
      // The server's build has built the SDK.
      await runNpm(['pack', '--pack-destination', app], join(root, 'server'))
      await runNpm(['pack', '--ignore-scripts', '--pack-destination', app], join(root, 'sdk'))
    },
  )
  const tarballs = readdirSync(app).filter((name) => name.endsWith('.tgz'))
  expect(tarballs).toHaveLength(2)
  const local = tarballs.map((name) => `./${name}`)
  await runNpm(['install', '--ignore-scripts', '--prefer-offline', ...local, 'zod@4', '@types/node@24'], app)
}, INSTALL_WITHIN_MS)

afterAll(() => rmSync(app, { recursive: true, force: true }))

test('the packages hold what runs, and neither sources nor tests', () => {
  const files = globSync('node_modules/{ichido,@ichido/sdk}/**/*', { cwd: app }).filter((path) =>
    /\.[a-z]+$/.test(path),
  )
  expect(files.filter((path) => /(?<!\.d)\.ts$|\.test\.|\/testing\/|\/conformance/.test(path))).toEqual([])
  expect(files).toContain('node_modules/ichido/dist/index.js')
  expect(files).toContain('node_modules/ichido/dist/idempotency/index.js')
  expect(files).toContain('node_modules/ichido/dist/bus/lua/publish.lua')
  expect(files).toContain('node_modules/ichido/dist/bus/lua/route.lua')
  expect(files).toContain('node_modules/@ichido/sdk/dist/index.d.ts')
})

test('an application type-checks against them', async () => {
  const compiler = join(root, 'node_modules', 'typescript', 'bin', 'tsc')
  const { stdout } = await run(process.execPath, [compiler, '--project', app]).catch((error) => error)
  expect(stdout).toBe('')
})

test('it submits, handles, watches and closes on SQLite', async () => {
  const { stdout } = await run(process.execPath, ['app.ts', join(app, 'data')], { cwd: app })
  const { stages, ...rest } = JSON.parse(stdout)
  expect(rest).toEqual({ typed: 160, same: true, calls: 1, unused: 2 })
  expect(stages).toContain('progress')
})

test('idempotency keys in front of a handler', async () => {
  const { stdout } = await run(process.execPath, ['orders.ts'], { cwd: app })
  expect(JSON.parse(stdout)).toEqual(['201 null {"item":"tea"}', '201 true {"item":"tea"}', 1, 'function'])
})

test('the program serves the API and the page', async () => {
  const env = {
    ...process.env,
    PATH: `${join(process.execPath, '..')}:${process.env.PATH}`,
    PORT: '0',
    DATA_DIR: join(app, 'served'),
  }
  const server = spawn(join(app, 'node_modules', '.bin', 'ichido'), ['serve', '--json'], { env })
  try {
    const [line] = await once(createInterface(server.stdout), 'line')
    const { url } = JSON.parse(line)
    expect((await fetch(`${url}/readyz`)).status).toBe(200)
    expect(await (await fetch(url)).text()).toContain('<title>')
    expect(await (await fetch(`${url}/agent.mjs`)).text()).toContain('from "node:worker_threads"')
    server.kill('SIGTERM')
    expect((await once(server, 'exit'))[0]).toBe(0)
  } finally {
    server.kill('SIGKILL')
  }
})
