import { spawn, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { appendFileSync, copyFileSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { delimiter, dirname, join } from 'node:path'
import type { RegisteredShape } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest'
import { selfSigned } from '../../../testing/http/certificate.ts'
import { type Ended, killAll, ichido as run, ichidoJson as runJson, serve } from '../../testing/cli.ts'

const folder = mkdtempSync(join(tmpdir(), 'ichido-workers-test-'))
let env = { ICHIDO_URL: '' }

beforeAll(async () => {
  env = { ICHIDO_URL: (await serve({ DATA_DIR: folder })).url }
})

afterAll(async () => {
  await killAll()
  rmSync(folder, { recursive: true })
})

const ichido = (...args: string[]): Promise<Ended> => run(['workers', ...args], env)
const json = (...args: string[]) => runJson(['workers', ...args], env)

/** A server with a public address does not start without one. */
const tokenIn = async (dataDir: string): Promise<string> =>
  String((await runJson(['token', 'create', '--user', 'me', '--role', 'admin'], { DATA_DIR: dataDir })).token)

/** Registers as the agent would that the line starts. */
async function register(line: string): Promise<RegisteredShape> {
  const [, enroll_token] = /--enroll (\S+)/.exec(line) ?? []
  const answer = await fetch(`${env.ICHIDO_URL}/v1/workers/register`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ enroll_token }),
  })
  expect(answer.status).toBe(201)
  return (await answer.json()) as RegisteredShape
}

test('enroll prints one line to paste; the worker is then listed, shown and revoked', async () => {
  expect(await ichido('list')).toMatchObject({ code: 0, stdout: '', stderr: 'No workers.\n' })

  const line = await ichido('enroll', 'lab pc', '--queue', 'a', '--queue', 'b', '--exec', "sh -c 'echo hi'")
  expect(line.code).toBe(0)
  const url = env.ICHIDO_URL
  expect(line.stdout).toMatch(
    /^curl -fsSo ichido-agent\.mjs \S+\/agent\.mjs && node -e '[^']+' && node ichido-agent\.mjs --url \S+ --enroll ichido_enroll_[\w-]{43} --name 'lab pc' --queue a --queue b --exec 'sh -c '\\''echo hi'\\'''\n$/,
  )
  expect(line.stdout).toContain(` ${url}/agent.mjs && `)
  expect(line.stdout).toContain(` --url ${url} `)
  expect(line.stderr).toMatch(/registers one machine, once,\nuntil 20\S+Z\. That machine can run it again\./)
  expect(line.stderr).toContain('Set PUBLIC_URL')
  expect(line.stderr).not.toContain('YOUR PROGRAM')

  const { worker_id } = await register(line.stdout)
  const listed = await ichido('list')
  expect(listed.stdout).toMatch(new RegExp(`^${worker_id}  lab pc  online +0 .* a, b$`, 'm'))
  const shown = await ichido('show', worker_id)
  expect(shown.stdout).toMatch(/^state +online$/m)
  expect(shown.stdout).not.toContain('revoked')
  expect(await json('show', worker_id)).toMatchObject({ worker_id, name: 'lab pc', queues: ['a', 'b'], live_leases: 0 })

  const revoked = await ichido('revoke', worker_id)
  expect(revoked).toMatchObject({ code: 0, stdout: '' })
  expect(revoked.stderr).toBe(`Worker ${worker_id} is revoked; 0 leases were taken away.\n`)
  expect((await ichido('show', worker_id)).stdout).toMatch(/^revoked +20/m)
  expect(await json('revoke', worker_id)).toMatchObject({ worker_id, fenced_leases: 0 })
  expect((await json('list')).data).toMatchObject([{ worker_id, state: 'revoked' }])
})

test('show takes the name of a worker; several with that name are listed', async () => {
  const enroll = async (name: string) =>
    (await register((await ichido('enroll', name, '--queue', 'a')).stdout)).worker_id
  const [only, one, two] = [await enroll('only'), await enroll('twin'), await enroll('twin')]
  expect(await json('show', 'only')).toMatchObject({ worker_id: only, name: 'only' })
  const twins = await ichido('show', 'twin')
  expect(twins).toMatchObject({ code: 1, stdout: '' })
  expect(twins.stderr).toMatch(
    /^error: 2 workers are named twin; give the id of one\nWORKER +STATE +REGISTERED +LAST SEEN\n/,
  )
  for (const id of [one, two]) expect(twins.stderr).toContain(`\n${id}  online `)
  const none = await ichido('show', 'nobody')
  expect(none.code).toBe(1)
  expect(none.stderr).toContain('There is no worker nobody')
})

test('drain and revoke take a name, and prefer the worker that is not revoked', async () => {
  const enroll = async () => register((await ichido('enroll', 'again', '--queue', 'a')).stdout)
  const [old, now] = [await enroll(), await enroll()]
  expect((await ichido('drain', 'again')).stderr).toContain('2 workers are named again')
  expect(await json('revoke', old.worker_id)).toMatchObject({ worker_id: old.worker_id })
  expect(await json('drain', 'again')).toMatchObject({ worker_id: now.worker_id, draining_since: expect.any(String) })
  expect((await ichido('list')).stdout).toMatch(new RegExp(`^${now.worker_id}  again +online, drained +0 `, 'm'))
  expect((await ichido('show', 'again')).stdout).toMatch(/^draining +since 20\S+Z$/m)
  expect(await ichido('resume', 'again')).toMatchObject({ code: 0, stderr: 'Worker again gets jobs again.\n' })
  expect(await json('revoke', 'again')).toMatchObject({ worker_id: now.worker_id })
  const refused = await ichido('drain', now.worker_id)
  expect(refused).toMatchObject({ code: 1, stderr: expect.stringContaining('This worker was revoked') })
})

test('drain waits until the worker holds no job, or until its time is up', async () => {
  const { worker_id, worker_token } = await register((await ichido('enroll', 'busy', '--queue', 'drained')).stdout)
  const post = async (path: string, body: object) => {
    const headers = { 'content-type': 'application/json', authorization: `Bearer ${worker_token}` }
    return fetch(`${env.ICHIDO_URL}${path}`, { method: 'POST', headers, body: JSON.stringify(body) })
  }
  const job = await runJson(['submit', 'work', '--queue', 'drained'], env)
  const leased = await post('/v1/leases', { queues: ['drained'], start: true })
  const [{ lease_id }] = ((await leased.json()) as { leases: [{ lease_id: string }] }).leases

  const drained = await ichido('drain', 'busy')
  expect(drained).toMatchObject({ code: 0, stdout: '' })
  expect(drained.stderr).toBe('Worker busy drains: it gets no new jobs, and goes on with 1 job.\n')
  expect((await ichido('show', 'busy')).stdout).toMatch(
    new RegExp(`^HOLDS +KIND +QUEUE +ATTEMPT +SINCE\n${job.job_id}  work  drained  1 +20\\S+Z$`, 'm'),
  )
  const late = await ichido('drain', 'busy', '--wait', '--timeout', '1s')
  expect(late).toMatchObject({ code: 3, stdout: '' })
  expect(late.stderr).toMatch(/^busy drains: 1 job left\nWorker busy still holds 1 job after 1 s; it drains on\.\n/)
  expect(late.stderr).toContain(`workers resume ${worker_id}`)

  const waiting = ichido('drain', 'busy', '--wait', '--json')
  expect((await post(`/v1/leases/${lease_id}/result`, { result: 1 })).status).toBe(200)
  const done = await waiting
  expect(done.code).toBe(0)
  expect(JSON.parse(done.stdout)).toMatchObject({ worker_id, live_leases: 0, draining_since: expect.any(String) })
  const again = await ichido('drain', 'busy', '--wait')
  expect(again.stderr).toBe('Worker busy is drained: it gets no new jobs, and holds none.\n')
})

test('enroll --json; without a program the line has a placeholder', async () => {
  const made = await json('enroll', 'pc', '--queue', 'a', '--ttl', '5m')
  expect(made).toMatchObject({ label: 'pc', queues: ['a'], ttl_seconds: 300, public_url: null })
  expect(made.command).toContain(`--enroll ${made.enroll_token} --name pc --queue a --exec <YOUR PROGRAM>`)
  expect((await ichido('enroll', 'pc', '--queue', 'a')).stderr).toContain('Replace <YOUR PROGRAM> with')
  // Nothing of it is run: not even what stands before the place.
  const pasted = spawnSync('sh', ['-c', `touch ${join(folder, 'ran')} && ${made.command}\n`], { cwd: folder })
  expect(pasted.status).not.toBe(0)
  expect(String(pasted.stderr)).toMatch(/syntax error/i)
  expect(existsSync(join(folder, 'ran'))).toBe(false)
})

test.each([
  ['python3 ./calc.py', './calc.py'],
  ['sh -c "../run.sh; true"', '../run.sh'],
  ["env A=1 './my run.sh'", './my'],
  ['./run.sh', null],
  ['../run.sh --to /tmp/./x', null],
  ['python3 "$ICHIDO_AGENT_DIR/calc.py"', null],
  ['cd "$ICHIDO_AGENT_DIR" && ./run.sh', null],
])('--exec %j: warns that programs do not find %j', async (exec, path) => {
  const warning = path && `warning: programs run in an empty folder, which has no ${path}. `
  // A worker that is told of an address that it must refuse ends at once.
  const worker = await run(['worker', '--queue', 'a', '--exec', exec], { ICHIDO_URL: 'http://192.0.2.1' })
  for (const { stderr } of [await ichido('enroll', 'pc', '--queue', 'a', '--exec', exec), worker]) {
    if (warning === null) expect(stderr).not.toContain('empty folder')
    else expect(stderr).toContain(warning)
  }
})

test('the line runs the agent only if its hash has not changed', async () => {
  const { command, agent_sha256 } = await json('enroll', 'pc', '--queue', 'a', '--exec', 'true')
  const elsewhere = mkdtempSync(join(folder, 'checked-'))
  const [, fetching = '', checking = ''] = /^(.*?) && (node -e .*?) && node /.exec(command) ?? []
  const { PATH = '' } = process.env
  const env = { PATH: [dirname(process.execPath), PATH].join(delimiter) }
  const inShell = (line: string) => spawnSync('sh', ['-c', line], { cwd: elsewhere, env, encoding: 'utf8' })
  expect(inShell(`${fetching} && ${checking}`)).toMatchObject({ status: 0, stderr: '' })
  const fetched = readFileSync(join(elsewhere, 'ichido-agent.mjs'))
  expect(createHash('sha256').update(fetched).digest('hex')).toBe(agent_sha256)
  appendFileSync(join(elsewhere, 'ichido-agent.mjs'), '\n')
  const refused = inShell(`${checking} && echo it runs`)
  expect(refused).toMatchObject({ status: 1, stdout: '' })
  expect(refused.stderr).toContain('ichido-agent.mjs has changed since this line was printed')
})

test('a worker that is enrolled again keeps its identity', async () => {
  const { worker_id } = await register((await ichido('enroll', 'pc', '--queue', 'a')).stdout)
  const line = await ichido('enroll', 'pc', '--queue', 'b', '--worker', worker_id)
  expect(await register(line.stdout)).toMatchObject({ worker_id, queues: ['b'] })
})

test('the line uses PUBLIC_URL if the server has it', async () => {
  const other = mkdtempSync(join(tmpdir(), 'ichido-workers-test-'))
  const settings = { DATA_DIR: other, PUBLIC_URL: 'https://jobs.example.org', BASE_PATH: '/ichido' }
  const ICHIDO_TOKEN = await tokenIn(other)
  const server = await serve(settings)
  const line = await run(['workers', 'enroll', 'pc', '--queue', 'a'], { ICHIDO_URL: server.url, ICHIDO_TOKEN })
  expect(line.stdout).toContain(' https://jobs.example.org/ichido/agent.mjs && ')
  expect(line.stdout).toContain(' --url https://jobs.example.org/ichido ')
  expect(line.stderr).not.toContain('PUBLIC_URL')
  await server.stop()
  rmSync(other, { recursive: true })
})

test('with NODE_EXTRA_CA_CERTS the line trusts a copy of that file', async () => {
  const [dir, elsewhere] = [mkdtempSync(join(folder, 'tls-')), mkdtempSync(join(folder, 'machine-'))]
  const { cert, key } = selfSigned()
  const [certFile, keyFile] = [join(dir, 'cert.pem'), join(dir, 'key.pem')]
  writeFileSync(certFile, cert)
  writeFileSync(keyFile, key)
  const tls = { TLS_CERT_FILE: certFile, TLS_KEY_FILE: keyFile }
  const server = await serve({ DATA_DIR: join(dir, 'data'), HOST: 'localhost', ...tls })
  const trusting = { ICHIDO_URL: server.url, NODE_EXTRA_CA_CERTS: certFile }
  const exec = ['--exec', 'echo "\\"$NODE_EXTRA_CA_CERTS\\"" > $ICHIDO_RESULT_FILE']
  const line = await run(['workers', 'enroll', 'pc', '--queue', 'a', ...exec], trusting)
  expect(line.stderr).toContain(`copy ${certFile} there as ichido-ca.pem`)

  copyFileSync(certFile, join(elsewhere, 'ichido-ca.pem'))
  const { PATH = '' } = process.env
  const env = { PATH: [dirname(process.execPath), PATH].join(delimiter), HOME: elsewhere }
  const machine = spawn('sh', ['-c', line.stdout.replace(/ && (?!.* && )/, ' && exec env ')], { cwd: elsewhere, env })
  onTestFinished(() => void machine.kill('SIGKILL'))
  let said = ''
  machine.stderr.setEncoding('utf8').on('data', (text: string) => (said += text))
  const ended = once(machine, 'close')
  const job = await run(['submit', 'k', '--queue', 'a', '--wait', '--timeout', '60s'], trusting)
  expect(job).toMatchObject({ code: 0, stdout: expect.stringContaining(join(elsewhere, 'ichido-ca.pem')) })
  machine.kill('SIGTERM')
  expect(await ended).toEqual([0, null])
  expect(said).not.toContain('Ignoring extra certs')
  await server.stop()
})

test('an address of another machine without TLS causes a warning', async () => {
  const other = mkdtempSync(join(tmpdir(), 'ichido-workers-test-'))
  const ICHIDO_TOKEN = await tokenIn(other)
  const server = await serve({ DATA_DIR: other, PUBLIC_URL: 'http://jobs.example.org' })
  const as = { ICHIDO_URL: server.url, ICHIDO_TOKEN }
  const line = await run(['workers', 'enroll', 'pc', '--queue', 'a', '--exec', 'true'], as)
  expect(line.stderr).toMatch(
    /warning: http:\/\/jobs\.example\.org is not https.*TLS_CERT_FILE[^.]*TLS_KEY_FILE.*PUBLIC_URL/s,
  )
  await server.stop()
  rmSync(other, { recursive: true })
})

test.each([
  { args: ['enroll', 'pc'], says: '--queue', code: 2 },
  { args: ['enroll', '--queue', 'a'], says: 'name', code: 2 },
  { args: ['enroll', 'pc', '--queue', 'a', '--ttl', 'soon'], says: 'a time like', code: 2 },
  { args: ['enroll', 'pc', '--queue', 'no spaces'], says: 'INVALID_PAYLOAD', code: 2 },
  { args: ['show', '01a1e12b-0000-7000-8000-000000000000'], says: 'NOT_FOUND', code: 1 },
  { args: ['revoke', 'nobody'], says: 'There is no worker nobody', code: 1 },
  { args: ['drain', 'nobody'], says: 'There is no worker nobody', code: 1 },
  { args: ['drain', 'nobody', '--timeout', '1s'], says: '--timeout goes with --wait', code: 2 },
  { args: ['resume', '01a1e12b-0000-7000-8000-000000000000'], says: 'NOT_FOUND', code: 1 },
])('ichido workers $args', async ({ args, says, code }) => {
  const ended = await ichido(...args)
  expect(ended).toMatchObject({ code, stdout: '' })
  expect(ended.stderr).toContain(says)
})
