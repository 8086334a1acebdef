import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { globSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { cacheDir, root } from './boot/fetch-packages.mjs'
import { withLock } from './boot/lock.mjs'
import { runNpm } from './boot/npm.mjs'
import { freshDatabase } from './testing/services.ts'

const run = promisify(execFile)
const INSTALL_WITHIN_MS = 300_000
/** In the order of publishing: each package depends on those before it. */
const PACKAGES = ['sdk', 'library', 'server']

/** The limits of an `npm install ichido`. */
const LIBRARY_MAX = { packages: 30, bytes: 15_000_000, modules: 60 }
const IMPORTS = 10

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

/** An application without a control plane. */
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

/** Prints the files that an import loads, and its duration. */
const IMPORT = `
import { registerHooks } from 'node:module'
const files = []
registerHooks({ load: (url, context, next) => (files.push(url), next(url, context)) })
const began = performance.now()
await import(process.argv[2])
console.log(JSON.stringify({ ms: performance.now() - began, files: files.filter((url) => url.startsWith('file:')) }))
`

/** A handler that blocks its event loop, which only the thread can report. */
const BLOCKED = `
import { defineKind, open } from 'ichido'
const told = Promise.withResolvers()
const ichido = await open({ databaseUrl: process.argv[2], onTrouble: (_, error) => told.resolve(error.message) })
const kind = defineKind('blocked')
ichido.handle(kind, () => void Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 2_500))
await ichido.submit(kind, null)
console.log(await told.promise)
await ichido.close()
`

const TSCONFIG = {
  compilerOptions: { strict: true, target: 'es2024', module: 'nodenext', types: ['node'], noEmit: true },
  files: ['app.ts', 'orders.ts'],
}

const FILES = {
  'tsconfig.json': JSON.stringify(TSCONFIG),
  'app.ts': APP,
  'orders.ts': ORDERS,
  'import.mjs': IMPORT,
  'blocked.mjs': BLOCKED,
}

let folder: string
/** An application that uses the library. */
let app: string
/** A folder with the server. */
let program: string
let installed: { packages: string[]; bytes: number }

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'ichido-pack-'))
  app = join(folder, 'app')
  program = join(folder, 'program')
  for (const each of [app, program]) {
    mkdirSync(each)
    writeFileSync(join(each, 'package.json'), '{"private":true,"type":"module"}')
  }
  for (const [name, text] of Object.entries(FILES)) writeFileSync(join(app, name), text)
  // The packages are built in place, so two runs on one clone must not build at the same time.
  await withLock(
    join(cacheDir, 'pack.lock'),
    () => {},
    async () => {
      // This does what a release does, including the build, but publishes nothing.
      for (const name of PACKAGES) await runNpm(['publish', '--dry-run', '--offline'], join(root, name))
      const folders = PACKAGES.map((name) => join(root, name))
      await runNpm(['pack', '--ignore-scripts', '--pack-destination', folder, ...folders], root)
    },
  )
  const tarballs = readdirSync(folder).filter((name) => name.endsWith('.tgz'))
  expect(tarballs).toHaveLength(PACKAGES.length)
  const local = (wanted: RegExp) => tarballs.filter((name) => wanted.test(name)).map((name) => join(folder, name))
  const install = (into: string, ...specs: string[]) =>
    runNpm(['install', '--ignore-scripts', '--prefer-offline', ...specs], into)
  const installApp = async () => {
    await install(app, ...local(/^ichido-(sdk-)?\d/))
    installed = weigh(join(app, 'node_modules'))
    await install(app, 'zod@4', '@types/node@24')
  }
  await Promise.all([installApp(), install(program, ...local(/^ichido-(sdk|server)-/))])
}, INSTALL_WITHIN_MS)

afterAll(() => rmSync(folder, { recursive: true, force: true }))

/** The packages that npm lists, and the sum of the file sizes. */
function weigh(modules: string): { packages: string[]; bytes: number } {
  const { packages } = JSON.parse(readFileSync(join(modules, '.package-lock.json'), 'utf8'))
  const sizes = globSync('**/*', { cwd: modules }).map((path) => statSync(join(modules, path)))
  const bytes = sizes.filter((found) => found.isFile()).reduce((sum, { size }) => sum + size, 0)
  return { packages: Object.keys(packages).map((path) => path.replace(/^node_modules\//, '')), bytes }
}

const filesIn = (at: string, name: string) =>
  globSync('**/*.*', { cwd: join(at, 'node_modules', name) }).filter((path) => !path.startsWith('node_modules/'))

describe('the packages', () => {
  test('the packages contain the built files, and neither sources nor tests', () => {
    const library = filesIn(app, 'ichido')
    const sdk = filesIn(app, '@ichido/sdk')
    const server = filesIn(program, '@ichido/server')
    const foreign = /(?<!\.d)\.ts$|\.test\.|\/testing\/|\/conformance/
    expect([...library, ...sdk, ...server].filter((path) => foreign.test(path))).toEqual([])
    expect(library).toContain('dist/library/index.js')
    expect(library).toContain('dist/library/spare-heart-thread.js')
    expect(library).toContain('dist/idempotency/index.js')
    expect(library).toContain('dist/store/backup/backup-thread.js')
    expect(library).toContain('dist/THIRD-PARTY.txt')
    expect(sdk).toContain('dist/index.d.ts')
    expect(server).toContain('dist/bus/lua/publish.lua')
    expect(server).toContain('dist/bus/lua/route.lua')
    expect(server).toContain('dist/agent.mjs')
  })

  test.each(PACKAGES)('the manifest of %s has what npm and users need', (name) => {
    const manifest = JSON.parse(readFileSync(join(root, name, 'package.json'), 'utf8'))
    const { version } = JSON.parse(readFileSync(join(root, 'sdk', 'package.json'), 'utf8'))
    expect(manifest).toMatchObject({
      // All three have the same version: they are released together, and each needs the SDK of its release.
      version,
      ...(name === 'sdk' ? {} : { dependencies: { '@ichido/sdk': version } }),
      license: 'MIT',
      files: ['dist'],
      publishConfig: { access: 'public', provenance: true },
      engines: { node: expect.stringMatching(/^>=/) },
      description: expect.stringMatching(/\w{3}/),
    })
    const at = join(name === 'server' ? program : app, 'node_modules', manifest.name)
    expect(readFileSync(join(at, 'LICENSE'), 'utf8')).toBe(readFileSync(join(root, 'LICENSE'), 'utf8'))
    expect(readFileSync(join(at, 'README.md'), 'utf8')).toContain(`npm install ${manifest.name}`)
  })
})

describe('an application', () => {
  test('an application installs few and small packages', () => {
    const { packages, bytes } = installed
    console.log(`npm install ichido: ${packages.length} packages, ${(bytes / 1e6).toFixed(1)} MB`)
    const heavy = /fastify|swagger|helmet|commander|pino|redis|prometheus|close-with-grace/
    expect(packages.filter((name) => heavy.test(name))).toEqual([])
    expect(packages.length).toBeLessThanOrEqual(LIBRARY_MAX.packages)
    expect(bytes).toBeLessThanOrEqual(LIBRARY_MAX.bytes)
  })

  test.each(['ichido', 'ichido/idempotency'])('importing %s loads few files', async (name) => {
    const times: number[] = []
    let files: string[] = []
    for (let i = 0; i < IMPORTS; i++) {
      const { stdout } = await run(process.execPath, ['import.mjs', name], { cwd: app })
      const found = JSON.parse(stdout)
      times.push(found.ms)
      files = found.files
    }
    const median = times.sort((a, b) => a - b)[IMPORTS / 2]?.toFixed(0)
    console.log(`import of ${name}: ${files.length} files, ${median} ms in the middle of ${IMPORTS}`)
    const packages = files.map((url) => /node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(url)?.[1])
    // Before a store is opened, neither the engine nor PostgreSQL's client is loaded.
    expect(new Set(packages)).toEqual(
      new Set(packages.filter((each) => /^(@?ichido.*|eventsource-parser)$/.test(`${each}`))),
    )
    expect(files.filter((url) => url.includes('embed'))).toEqual([])
    expect(files.length).toBeLessThanOrEqual(LIBRARY_MAX.modules)
  })

  test('an application type-checks against the packages', async () => {
    const compiler = join(root, 'node_modules', 'typescript', 'bin', 'tsc')
    const { stdout } = await run(process.execPath, [compiler, '--project', app]).catch((error) => error)
    expect(stdout).toBe('')
  })

  test('an application submits, handles, watches and closes on SQLite', async () => {
    const { stdout } = await run(process.execPath, ['app.ts', join(app, 'data')], { cwd: app })
    const { stages, ...rest } = JSON.parse(stdout)
    expect(rest).toEqual({ typed: 160, same: true, calls: 1, unused: 2 })
    expect(stages).toContain('progress')
  })

  test('a thread keeps the lease of a handler that blocks its event loop', async () => {
    const database = await freshDatabase()
    const { stdout } = await run(process.execPath, ['blocked.mjs', database.url], { cwd: app })
    expect(stdout).toContain('A handler blocked the event loop for')
    await database.leave()
  })

  test('an application puts idempotency keys in front of a handler', async () => {
    const { stdout } = await run(process.execPath, ['orders.ts'], { cwd: app })
    expect(JSON.parse(stdout)).toEqual(['201 null {"item":"tea"}', '201 true {"item":"tea"}', 1, 'function'])
  })
})

test('the program serves the API and the page', async () => {
  const env = {
    ...process.env,
    PATH: `${join(process.execPath, '..')}:${process.env.PATH}`,
    PORT: '0',
    DATA_DIR: join(program, 'served'),
  }
  const server = spawn(join(program, 'node_modules', '.bin', 'ichido'), ['serve', '--json'], { env })
  try {
    const [line] = await once(createInterface(server.stdout), 'line')
    const { url } = JSON.parse(line)
    expect((await fetch(`${url}/readyz`)).status).toBe(200)
    const page = await (await fetch(url)).text()
    expect(page).toContain('<title>')
    const [, script = ''] = /src="\.\/(assets\/[^"]+\.js)"/.exec(page) ?? []
    expect((await fetch(`${url}/${script}`)).headers.get('content-type')).toBe('text/javascript; charset=utf-8')
    expect(await (await fetch(`${url}/agent.mjs`)).text()).toContain('from "node:worker_threads"')
    server.kill('SIGTERM')
    expect((await once(server, 'exit'))[0]).toBe(0)
  } finally {
    server.kill('SIGKILL')
  }
})
