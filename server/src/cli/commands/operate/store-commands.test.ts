import { existsSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { bareDatabase, type FreshDatabase, privatePostgres } from '../../../../../scripts/testing/services.ts'
import { SCHEMA_VERSION } from '../../../store/migrations/index.ts'
import { begin, type Env, ichido, ichidoJson, killAll, serve } from '../../testing/cli.ts'

const folder = mkdtempSync(join(tmpdir(), 'ichido-store-test-'))
const newFolder = () => mkdtempSync(join(folder, 'd-'))
let database: FreshDatabase

beforeAll(async () => {
  database = await bareDatabase()
})
afterEach(killAll)
afterAll(async () => {
  await database.leave()
  rmSync(folder, { recursive: true })
})

type Finding = { check: string; status: string; message: string; advice?: string }

/** The report of the doctor; no server listens at this address. */
async function doctor(env: Env): Promise<{ code: number | null; ok: boolean; of: (check: string) => Finding }> {
  const { code, stdout } = await ichido(['doctor', '--json'], { ICHIDO_URL: 'http://127.0.0.1:2', ...env })
  const { ok, checks } = JSON.parse(stdout) as { ok: boolean; checks: Finding[] }
  const of = (check: string) => {
    const found = checks.find((finding) => finding.check === check)
    if (found === undefined) throw new Error(`No word on ${check}: ${stdout}`)
    return found
  }
  return { code, ok, of }
}

describe('migrate', () => {
  test('creates the schema, and then has nothing to do', async () => {
    for (const env of [{ DATA_DIR: newFolder() }, { DATABASE_URL: database.url, DATABASE_SCHEMA: 'made' }]) {
      expect(await ichidoJson(['migrate'], env)).toMatchObject({ from: null, to: SCHEMA_VERSION })
      expect((await ichido(['migrate'], env)).stderr).toContain('Nothing to do')
    }
  })
})

describe('doctor', () => {
  test('before the first start nothing is broken, and nothing is created', async () => {
    const dataDir = join(newFolder(), 'data')
    const { code, ok, of } = await doctor({ DATA_DIR: dataDir })
    expect([code, ok]).toEqual([0, true])
    expect(of('schema')).toMatchObject({ status: 'warning', advice: expect.stringContaining('npm start') })
    expect(of('server')).toMatchObject({ status: 'warning', advice: expect.stringContaining('ICHIDO_URL') })
    expect(existsSync(dataDir)).toBe(false)
  })

  test('a running server is healthy, and its store is not opened', async () => {
    const env = { DATA_DIR: newFolder() }
    const server = await serve(env)
    const { code, of } = await doctor({ ...env, ICHIDO_URL: server.url })
    expect(code).toBe(0)
    expect(of('store').message).toContain('in use by a running server')
    expect(of('schema').status).toBe('ok')
    for (const check of ['durability', 'clock', 'access']) {
      expect(of(check)).toEqual({ check, status: 'unchecked', message: 'not checked: in use by the server' })
    }
    const { stderr } = await ichido(['doctor'], { ...env, ICHIDO_URL: server.url })
    expect(stderr).toContain('– clock      not checked: in use by the server')
    expect(of('server')).toMatchObject({ status: 'ok', message: `${server.url} is ready and accepts this token` })
    const { code: wrongCode, of: wrong } = await doctor({ ...env, ICHIDO_URL: `${server.url}/elsewhere` })
    expect(wrongCode).toBe(1)
    expect(wrong('server').status).toBe('broken')
  })

  test('PostgreSQL is checked, too', async () => {
    const env = { DATABASE_URL: database.url, DATABASE_SCHEMA: 'examined' }
    expect((await doctor(env)).of('schema').status).toBe('warning')
    await ichido(['migrate'], env)
    const { code, of } = await doctor(env)
    expect(code).toBe(0)
    expect(of('store').message).toContain('PostgreSQL')
    for (const check of ['schema', 'durability', 'clock', 'access']) expect(of(check).status).toBe('ok')
  })

  test('broken checks come with advice, and the exit code is 1', async () => {
    const gone = await doctor({ DATABASE_URL: 'postgres://u:hunter2@127.0.0.1:2/x' })
    expect([gone.code, gone.ok]).toEqual([1, false])
    expect(gone.of('store')).toMatchObject({
      status: 'broken',
      advice: 'Start PostgreSQL, or set DATABASE_URL to its address.',
    })

    const wrong = await doctor({ PORT: 'x' })
    expect(wrong.code).toBe(1)
    expect(wrong.of('settings').message).toContain('PORT must be')

    const dataDir = newFolder()
    writeFileSync(join(dataDir, 'ichido.db'), 'this is no database, and long enough to tell')
    const damaged = await doctor({ DATA_DIR: dataDir })
    expect(damaged.code).toBe(1)
    expect(damaged.of('store').status).toBe('broken')

    const open = newFolder()
    await ichido(['migrate'], { DATA_DIR: open })
    const exposed = await doctor({ DATA_DIR: open, HOST: '0.0.0.0' })
    expect(exposed.code).toBe(1)
    expect(exposed.of('access')).toMatchObject({ status: 'broken', advice: expect.stringContaining('token create') })
  })

  test('a PostgreSQL that may lose acknowledged work is refused', async () => {
    const postgres = await privatePostgres({ settings: { fsync: 'off' } })
    try {
      const refused = await ichido(['serve'], { DATABASE_URL: postgres.url, PORT: '0' })
      expect(refused.code).toBe(1)
      expect(refused.stderr).toContain('fsync is off')
      await ichido(['migrate'], { DATABASE_URL: postgres.url, ALLOW_NO_FSYNC: '1' })
      const { code, of } = await doctor({ DATABASE_URL: postgres.url })
      expect(code).toBe(1)
      expect(of('store').message).toContain('fsync is off')
    } finally {
      await postgres.stop()
    }
  })

  test('without --json it prints marks and sentences', async () => {
    const { stderr, stdout } = await ichido(['doctor'], { DATA_DIR: newFolder(), ICHIDO_URL: 'http://127.0.0.1:2' })
    expect(stdout).toBe('')
    expect(stderr).toMatch(/✓ node +Node \d+/)
    expect(stderr).toMatch(/! schema/)
  })
})

describe('backup', () => {
  test('SQLite moves to PostgreSQL and back, and a running server keeps its folder', async () => {
    const env = { DATA_DIR: newFolder() }
    const file = join(folder, 'moved.backup')
    const server = await serve(env)
    const { job_id } = await ichidoJson(['submit', 'k', '--key', 'a/b'], { ICHIDO_URL: server.url })
    const busy = await ichido(['backup', file], { ...env, ICHIDO_URL: 'http://127.0.0.1:2' })
    expect(busy.code).toBe(1)
    expect(busy.stderr).toContain(`A running server uses the store in ${env.DATA_DIR}, and `)
    expect(busy.stderr).toContain('or stop the server for the backup')
    await server.stop()

    const made = await ichidoJson(['backup', file], env)
    expect(made).toMatchObject({ file, engine: 'sqlite' })
    expect((await ichido(['backup', file], env)).stderr).toContain('--force')

    const target = { DATABASE_URL: database.url, DATABASE_SCHEMA: 'restored' }
    const restored = await ichido(['backup', file, '--restore'], target)
    expect(restored.code).toBe(0)
    expect(restored.stderr).toContain('read back and compared')
    expect(restored.stderr).not.toContain('\u001b')
    const again = await ichido(['backup', file, '--restore'], target)
    expect(again.code).toBe(1)
    expect(again.stderr).toContain('The store is not empty')

    const second = `${file}.2`
    // The rows are compared before a node runs, because a node also writes counters.
    expect(await ichidoJson(['backup', second], target)).toMatchObject({ engine: 'postgres', rows: made.rows })
    const node = await serve(target)
    expect(await ichidoJson(['backup', second, '--force'], target)).toMatchObject({ engine: 'postgres' })
    const keys = await ichidoJson(['keys', 'show', 'a/b'], { ICHIDO_URL: node.url })
    expect(keys.data[0].job_id).toBe(job_id)
    await node.stop()

    const back = { DATA_DIR: newFolder() }
    const { engine, epoch } = await ichidoJson(['backup', second, '--restore'], back)
    expect(engine).toBe('postgres')
    expect(epoch).toBeGreaterThan(2_000)
  })

  test('a folder that cannot be written is a failure and leaves no file', async () => {
    const env = { DATA_DIR: newFolder() }
    await ichido(['migrate'], env)
    const { code, stderr } = await ichido(['backup', join(folder, 'no', 'such', 'folder')], env)
    expect(code).toBe(1)
    expect(stderr).toContain('ENOENT')
    expect(stderr).not.toContain('    at ')
  })
})

test('without a store nothing is backed up or created', async () => {
  const dataDir = join(newFolder(), 'wrong')
  const { code, stderr } = await ichido(['backup', join(folder, 'nothing')], { DATA_DIR: dataDir })
  expect(code).toBe(1)
  expect(stderr).toContain(`There is no store in ${dataDir}.`)
  expect(existsSync(dataDir) || existsSync(join(folder, 'nothing'))).toBe(false)
})

test('a token can be made before the first start of the server', async () => {
  const env = { DATA_DIR: newFolder() }
  const { code, stdout } = await ichido(['token', 'create', '--user', 'a', '--role', 'operator'], env)
  expect(code).toBe(0)
  const server = await serve(env)
  const client = { ICHIDO_URL: server.url, ICHIDO_TOKEN: stdout.trim() }
  expect((await ichidoJson(['jobs', 'list'], client)).data).toEqual([])
})

test('the named server makes the token if no store is named or found', async () => {
  const [dataDir, cwd] = [newFolder(), newFolder()]
  const args = ['token', 'create', '--user', 'a', '--role', 'admin']
  const server = await serve({ DATA_DIR: dataDir })
  const made = await begin(args, { ICHIDO_URL: server.url }, '', cwd).ended
  expect(made.stderr).toContain(`Made for a (admin) in the store of ${server.url}.`)
  const nobody = await begin(args, { ICHIDO_URL: 'http://127.0.0.1:2' }, '', cwd).ended
  expect(nobody.code).toBe(1)
  expect(nobody.stderr).toContain('Start it, or set DATA_DIR or DATABASE_URL to the store that the token is for.')
  expect(readdirSync(cwd)).toEqual([])
})

test('a first token that is not of an admin comes with a warning and a command', async () => {
  const args = ['token', 'create', '--user', 'a', '--role', 'submitter']
  const warning = 'warning: From now on every call needs a token, and this one cannot make others.'
  for (const served of [false, true]) {
    const dataDir = newFolder()
    const server = served ? await serve({ DATA_DIR: dataDir }) : null
    const { code, stderr } = await ichido(args, { DATA_DIR: dataDir, ...(server && { ICHIDO_URL: server.url }) })
    expect(code).toBe(0)
    expect(stderr).toContain(warning)
    const line = `DATA_DIR=${dataDir} npm run -s ichido -- token create --user admin --role admin`
    expect(stderr).toContain(line)
  }
})
