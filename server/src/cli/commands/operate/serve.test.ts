import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import pg from 'pg'
import { afterAll, afterEach, describe, expect, onTestFinished, test, vi } from 'vitest'
import { freshDatabase } from '../../../../../scripts/testing/services.ts'
import { selfSigned } from '../../../testing/http/certificate.ts'
import { begin, type Ended, ichido, ichidoJson, killAll, type Serving, serve } from '../../testing/cli.ts'
import { onStopSignals, STOP_SIGNALS } from './serve.ts'

const folder = mkdtempSync(join(tmpdir(), 'ichido-serve-test-'))
const newFolder = () => mkdtempSync(join(folder, 'd-'))

afterEach(killAll)
afterAll(() => rmSync(folder, { recursive: true }))

const STOP_MS = 2_000

/** How long the server took to end, from the signal on, and how it ended. */
async function timed(server: Serving, signal: NodeJS.Signals): Promise<Ended & { ms: number }> {
  const startedMs = performance.now()
  server.signal(signal)
  const ended = await server.ended
  return { ...ended, ms: performance.now() - startedMs }
}

async function get({ url }: Serving, path: string) {
  return (await fetch(`${url}${path}`)).json()
}

async function post({ url }: Serving, job: object) {
  const headers = { 'content-type': 'application/json' }
  const response = await fetch(`${url}/v1/jobs`, { method: 'POST', headers, body: JSON.stringify(job) })
  expect(response.status).toBe(201)
  return response.json()
}

describe('starting', () => {
  test('it prints its address, open mode, the store and a first command', async () => {
    const dataDir = newFolder()
    const server = await serve({ DATA_DIR: dataDir, ALLOWED_ORIGINS: 'https://app.example.org' }, ['--local-worker'])
    expect(server.url).toMatch(/^http:\/\/127\.0\.0\.1:\d+$/)
    await expect.poll(server.stderr, { timeout: 10_000 }).toContain('Ctrl-C stops it.')
    const text = server.stderr()
    expect(text).toContain(`is running at ${server.url}`)
    expect(text).toContain('OPEN MODE')
    expect(text).toContain('ALLOWED_ORIGINS has no effect until then.')
    expect(text).toContain(join(dataDir, 'ichido.db'))
    expect(text).toContain(`ICHIDO_URL=${server.url} npm run -s ichido -- demo`)
    expect(text).not.toMatch(/Public|Listens/)
    expect(text).not.toContain('\u001b')
    expect((await fetch(`${server.url}/v1/jobs`)).status).toBe(200)
  })

  test('with a token it prints that tokens are required', async () => {
    const env = { DATA_DIR: newFolder() }
    await ichidoJson(['token', 'create', '--user', 'me', '--role', 'admin'], env)
    const server = await serve(env)
    await expect.poll(server.stderr, { timeout: 10_000 }).toContain('tokens are required')
    expect((await fetch(`${server.url}/v1/jobs`)).status).toBe(401)
  })

  test('behind a proxy it refuses to start without a token, and prints the command', async () => {
    const env = { DATA_DIR: newFolder(), PORT: '0', BASE_PATH: '/ichido' }
    const refused = await ichido(['serve'], env)
    expect(refused.code).toBe(1)
    expect(refused.stderr).toContain('BASE_PATH is set, so a proxy may bring requests from other machines')
    const line = `DATA_DIR=${env.DATA_DIR} npm run -s ichido -- token create --user admin --role admin`
    expect(refused.stderr).toContain(line)
  })

  test('on a network address it refuses to start without a token, and prints the command', async () => {
    const env = { DATA_DIR: newFolder(), HOST: '0.0.0.0', PORT: '0' }
    const refused = await ichido(['serve'], env)
    expect(refused.code).toBe(1)
    const line = `DATA_DIR=${env.DATA_DIR} npm run -s ichido -- token create --user admin --role admin`
    expect(refused.stderr).toContain(line)

    const { token } = await ichidoJson(['token', 'create', '--user', 'admin', '--role', 'admin'], env)
    const server = await serve({ ...env, PUBLIC_URL: 'https://jobs.example.org/', BASE_PATH: '/ichido' })
    const headers = { authorization: `Bearer ${token}` }
    expect((await fetch(`${server.url}/v1/jobs`, { headers })).status).toBe(200)
    expect((await fetch(`${server.url}/v1/jobs`)).status).toBe(401)
    await expect.poll(server.stderr, { timeout: 10_000 }).toContain('Ctrl-C stops it.')
    const { port } = new URL(server.url)
    expect(server.stderr()).toContain(`is running at http://localhost:${port}/ichido\n`)
    expect(server.stderr()).toMatch(/^ +Public +https:\/\/jobs\.example\.org\/ichido$/m)
    expect(server.stderr()).toContain(`on every address of this machine, port ${port}\n`)
  })

  test('a second server on the same folder is refused', async () => {
    const env = { DATA_DIR: newFolder() }
    const server = await serve(env)
    const second = await ichido(['serve'], { ...env, PORT: '0' })
    expect(second.code).toBe(1)
    expect(second.stderr).toContain(`Another process, or another open() in this one, is using ${env.DATA_DIR}`)
    expect((await fetch(`${server.url}/readyz`)).status).toBe(200)
  })

  test('a used port is reported with advice', async () => {
    const other = createServer().listen(0, '127.0.0.1')
    await expect.poll(() => other.listening).toBe(true)
    const address = other.address()
    const port = typeof address === 'object' && address !== null ? address.port : 0
    const { code, stderr } = await ichido(['serve'], { DATA_DIR: newFolder(), PORT: String(port) })
    other.close()
    expect(code).toBe(1)
    expect(stderr).toContain(`Port ${port} on 127.0.0.1 is in use`)
    expect(stderr).toContain('PORT=0')
  })

  test('wrong settings are named in a usage error', async () => {
    const { code, stderr } = await ichido(['serve'], { PORT: 'many', LOG_LEVEL: 'loud', REAP_INTERVAL_SECONDS: '99' })
    expect(code).toBe(2)
    expect(stderr).toContain('REAP_INTERVAL_SECONDS must be a number from 0.05 to 30, not "99"')
    expect(stderr).toContain('PORT must be')
    expect(stderr).toContain('LOG_LEVEL must be')
  })

  test('a setting of the environment applies and cannot be changed', async () => {
    const server = await serve({ DATA_DIR: newFolder(), REAP_INTERVAL_SECONDS: '0.5' })
    const path = '/v1/settings/reap_interval_seconds'
    expect(await get(server, path)).toMatchObject({ value: 0.5, source: 'environment', default: 5 })
    const headers = { 'content-type': 'application/json' }
    const put = await fetch(`${server.url}${path}`, { method: 'PUT', headers, body: '{"value":1}' })
    expect(put.status).toBe(409)
    expect(await put.json()).toMatchObject({ error: { code: 'SETTING_FIXED' } })
  })

  test('an unreachable database is reported without its password', async () => {
    const { code, stderr } = await ichido(['serve'], { DATABASE_URL: 'postgres://u:hunter2@127.0.0.1:1/x', PORT: '0' })
    expect(code).toBe(1)
    expect(stderr).toContain('PostgreSQL cannot be used: connect ECONNREFUSED 127.0.0.1:1')
    expect(stderr).toContain('DATABASE_URL')
    expect(stderr).not.toContain('hunter2')
  })

  test('two servers share a PostgreSQL database, and the demo runs there', async () => {
    const database = await freshDatabase()
    const env = { DATABASE_URL: database.url, DATABASE_SCHEMA: 'mine' }
    const one = await serve(env, ['--local-worker'])
    const other = await serve(env)
    const job = await ichidoJson(['demo'], { ICHIDO_URL: other.url })
    expect(job).toMatchObject({ state: 'SUCCEEDED', result: { greeting: 'Hello, world!' } })
    await Promise.all([one.stop(), other.stop()])
    await database.leave()
  })

  test('a start error is one sentence without a stack', async () => {
    const database = await freshDatabase()
    try {
      const env = { DATABASE_URL: database.url, PORT: '0' }
      const server = await serve({ ...env, ARTIFACTS_DIR: newFolder() })
      await server.stop()
      const starting = async (changes: Record<string, string>) => {
        const { code, stderr } = await ichido(['serve'], { ...env, ...changes })
        expect(code).toBe(1)
        expect(stderr).not.toMatch(/unexpected|\n +at /)
        return stderr
      }
      const elsewhere = newFolder()
      expect(await starting({ ARTIFACTS_DIR: elsewhere })).toMatch(
        new RegExp(`^error: ${elsewhere} does not hold the artifacts of this database`),
      )
      const file = join(elsewhere, 'file')
      writeFileSync(file, '')
      expect(await starting({ ARTIFACTS_DIR: file })).toMatch(
        new RegExp(`^error: ${file} cannot hold artifacts: EEXIST`),
      )
      const client = new pg.Client(database.url)
      await client.connect()
      await client.query(`INSERT INTO ichido.schema_migrations VALUES (99, 'of the future', 0)`)
      await client.end()
      expect(await starting({})).toMatch(/^error: The database is at schema version 99; .* or restore a backup .*\n$/)
    } finally {
      await database.leave()
    }
  })

  test('it serves TLS from files under a base path', async () => {
    const { cert, key } = selfSigned()
    const dir = newFolder()
    writeFileSync(join(dir, 'cert.pem'), cert)
    writeFileSync(join(dir, 'key.pem'), key)
    const tls = { TLS_CERT_FILE: join(dir, 'cert.pem'), TLS_KEY_FILE: join(dir, 'key.pem') }
    const { token } = await ichidoJson(['token', 'create', '--user', 'admin', '--role', 'admin'], { DATA_DIR: dir })
    const server = await serve({ DATA_DIR: dir, HOST: 'localhost', BASE_PATH: '/jobs', ...tls })
    expect(server.url).toMatch(/^https:\/\/localhost:\d+\/jobs$/)

    const trusting = { ICHIDO_URL: server.url, ICHIDO_TOKEN: String(token), NODE_EXTRA_CA_CERTS: join(dir, 'cert.pem') }
    expect(await ichidoJson(['jobs', 'list'], trusting)).toEqual({ data: [], next_cursor: null })
    const doubtful = await ichido(['jobs', 'list'], { ICHIDO_URL: server.url })
    expect(doubtful.code).toBe(1)
    expect(doubtful.stderr).toContain('NODE_EXTRA_CA_CERTS')
    const plain = await ichido(['jobs', 'list'], { ICHIDO_URL: server.url.replace('https', 'http') })
    expect(plain.code).toBe(1)
    expect(plain.stderr).toContain(`Perhaps it speaks https: set ICHIDO_URL to ${server.url}\n`)
  })
})

describe('stopping', () => {
  test.each(['SIGTERM', 'SIGINT'] as const)('%s ends an idle server within 2 s, with 0', async (signal) => {
    const server = await serve({ DATA_DIR: newFolder() }, ['--local-worker'])
    const { code, ms, stderr } = await timed(server, signal)
    expect(code).toBe(0)
    expect(ms).toBeLessThan(STOP_MS)
    expect(stderr).toMatch(/\nStopped\.\n$/)
  })

  test('the log at info shows that it leads, and that it resigns', async () => {
    const server = await serve({ DATA_DIR: newFolder(), LOG_LEVEL: 'info' })
    await expect.poll(server.stderr, { timeout: 10_000 }).toMatch(/"epoch":2,"msg":"this node leads"/)
    const { stderr } = await timed(server, 'SIGTERM')
    expect(stderr).toMatch(/"level":30.*"epoch":2,"why":"resigned","msg":"this node no longer leads"/)
  })

  test('readyz turns 503 first, while waiting requests are answered', async () => {
    const server = await serve({ DATA_DIR: newFolder() })
    const { job_id } = await post(server, { kind: 'k' })
    const waiting = fetch(`${server.url}/v1/jobs/${job_id}/result?wait_seconds=30`)
    await fetch(`${server.url}/healthz`)
    const ready = async () => (await fetch(`${server.url}/readyz`)).status
    expect(await ready()).toBe(200)
    server.signal('SIGTERM')
    await expect.poll(ready, { interval: 5, timeout: 5_000 }).toBe(503)
    expect((await waiting).status).toBe(409)
    expect((await server.ended).code).toBe(0)
  })

  test('a running job of the local worker does not delay the stop', async () => {
    const server = await serve({ DATA_DIR: newFolder() }, ['--local-worker'])
    const { job_id } = await post(server, { kind: 'demo.hello', queue: 'demo' })
    const state = async () => (await get(server, `/v1/jobs/${job_id}`)).state
    await expect.poll(state, { interval: 10, timeout: 10_000 }).toBe('RUNNING')
    const { code, ms } = await timed(server, 'SIGTERM')
    expect(code).toBe(0)
    expect(ms).toBeLessThan(STOP_MS)
  })

  test('a signal to the group that the parents repeat counts once', async () => {
    const dataDir = newFolder()
    const { PATH = '', HOME = '' } = process.env
    const env = { PATH, HOME, DATA_DIR: dataDir, PORT: '0', npm_lifecycle_event: 'start' }
    const boot = fileURLToPath(new URL('../../../../../scripts/boot.mjs', import.meta.url))
    const child = spawn(process.execPath, [boot, 'start'], { env, detached: true, stdio: ['ignore', 'ignore', 'pipe'] })
    const ended = once(child, 'close')
    onTestFinished(() => void (child.exitCode ?? process.kill(-Number(child.pid), 'SIGKILL')))
    let stderr = ''
    child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr += text))
    await expect.poll(() => stderr, { timeout: 30_000 }).toContain('Ctrl-C stops it.')
    process.kill(-Number(child.pid), 'SIGTERM')
    expect(await ended).toEqual([0, null])
    expect(stderr).toMatch(/\nStopped\.\n$/)
    expect(readdirSync(dataDir)).not.toContain('ichido.db-wal')
  })

  test('submit --wait continues through a restart', async () => {
    const env = { DATA_DIR: newFolder() }
    const server = await serve(env)
    const waiting = begin(['submit', 'demo.hello', '--queue', 'demo', '--wait'], { ICHIDO_URL: server.url })
    await expect.poll(waiting.stderr, { timeout: 20_000 }).toContain('PENDING')
    await server.kill9()
    await expect.poll(waiting.stderr, { timeout: 20_000 }).toContain('the server does not answer, retrying')
    await serve({ ...env, PORT: new URL(server.url).port }, ['--local-worker'])
    const { code, stdout } = await waiting.ended
    expect(code).toBe(0)
    expect(JSON.parse(stdout).greeting).toBe('Hello, world!')
  })

  test('acknowledged jobs survive kill -9', async () => {
    const env = { DATA_DIR: newFolder() }
    const server = await serve(env)
    const { job_id } = await post(server, { kind: 'k', idempotency_key: 'a/b' })
    await server.kill9()
    const again = await serve(env)
    expect((await get(again, '/v1/idempotency-keys/a%2Fb')).data[0].job_id).toBe(job_id)
    expect((await post(again, { kind: 'k', idempotency_key: 'a/b' })).job_id).toBe(job_id)
  })
})

test('a signal that repeats within a second counts once; a later one ends at once', () => {
  const nowMs = vi.spyOn(performance, 'now').mockReturnValue(5_000)
  const before = new Set(STOP_SIGNALS.flatMap((name) => process.listeners(name)))
  onTestFinished(() => {
    nowMs.mockRestore()
    for (const name of STOP_SIGNALS) {
      for (const listener of process.listeners(name)) if (!before.has(listener)) process.removeListener(name, listener)
    }
  })
  const [stop, stopAtOnce] = [vi.fn(), vi.fn()]
  onStopSignals(stop, stopAtOnce)
  const signal = (name: (typeof STOP_SIGNALS)[number]) => {
    for (const listener of process.listeners(name)) if (!before.has(listener)) listener(name)
  }
  signal('SIGINT')
  nowMs.mockReturnValue(5_999)
  signal('SIGINT')
  // As the script that npm runs does when npm ends before it.
  signal('SIGTERM')
  expect([stop.mock.calls.length, stopAtOnce.mock.calls.length]).toEqual([1, 0])
  nowMs.mockReturnValue(6_000)
  signal('SIGTERM')
  expect([stop.mock.calls.length, stopAtOnce.mock.calls.length]).toEqual([1, 1])
})
