import { globSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { jsonForTerminal } from '@ichido/sdk/terminal'
import type { Command } from 'commander'
import { afterAll, afterEach, beforeAll, expect, test, vi } from 'vitest'
import { createProgram } from '../program.ts'
import { ichido, killAll, serve } from '../testing/cli.ts'
import { paint, redraw, say } from './terminal.ts'

/** Sets the title of the window, colours, C1, the other direction, and what begins a line anew. */
const HOSTILE = 'x\u001b]0;owned\u0007\u001b[31m\u009b1m\u202edetrever\u2066\u200f\u061c\u007f\r'
const OBEYED = /[^\P{Cc}\n\t]|[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/u

const ID = '01a1e150-0f86-71de-92fc-23ac1bcde25e'
const folder = mkdtempSync(join(tmpdir(), 'ichido-terminal-test-'))
const DATA_DIR = join(folder, 'data')
let env: Record<string, string> = {}
const closing: (() => void)[] = []

/** Each text in what a server says becomes one that a terminal would obey. */
function poisoned(value: unknown): unknown {
  if (typeof value === 'string') return `${value}${HOSTILE}`
  if (Array.isArray(value)) return value.map(poisoned)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(
    // A list that goes on without end shows nothing more.
    Object.entries(value).map(([name, inner]) => [name, name === 'next_cursor' ? null : poisoned(inner)]),
  )
}

const poison = (json: string) => JSON.stringify(poisoned(JSON.parse(json)))

beforeAll(async () => {
  const token = (await ichido(['token', 'create', '--user', 'me', '--role', 'admin'], { DATA_DIR })).stdout.trim()
  const { url } = await serve({ DATA_DIR })
  const server = createServer(async (request, response) => {
    const { method = 'GET', url: path = '', headers } = request
    const body = method === 'GET' ? null : await text(request)
    const { authorization = '', accept = '', 'content-type': type } = headers
    const sent = { authorization, accept, ...(type === undefined ? {} : { 'content-type': type }) }
    const answer = await fetch(`${url}${path}`, { method, headers: sent, body })
    const said = await answer.text()
    const media = answer.headers.get('content-type') ?? ''
    response.writeHead(answer.status, { 'content-type': media })
    if (media.startsWith('text/event-stream')) response.end(said.replace(/(?<=^data: ).+$/gm, poison))
    else response.end(media.startsWith('application/json') ? poison(said) : said)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  closing.push(() => server.close())
  const through = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  env = { ICHIDO_URL: through, ICHIDO_TOKEN: token, HOME: folder, DATA_DIR }
  await fill(url, token)
})

afterEach(() => {
  vi.restoreAllMocks()
  vi.unstubAllEnvs()
})

afterAll(async () => {
  for (const close of closing) close()
  await killAll()
  rmSync(folder, { recursive: true })
})

/** Ids by the names that commands give them. */
const ids: Record<string, string> = {
  key: 'key-1',
  queue: 'q',
  user: 'me',
  name: 'nightly',
  cron: '@daily',
  topic: 't',
  setting: 'reap_batch_max',
  shell: 'bash',
  value: '5',
}

/** One of each: a job that failed with log, progress and key, one that waits, a worker, a definition, a hook, a trigger. */
async function fill(url: string, token: string): Promise<void> {
  const call = async (method: string, path: string, body?: unknown, bearer = token) => {
    const headers = { authorization: `Bearer ${bearer}`, 'content-type': 'application/json' }
    const answer = await fetch(`${url}/v1${path}`, { method, headers, body: JSON.stringify(body) })
    if (!answer.ok) throw new Error(`${method} ${path}: ${await answer.text()}`)
    return answer.status === 204 ? null : JSON.parse((await answer.text()) || 'null')
  }
  const job = { kind: 'k', queue: 'q', payload: 1, max_attempts: 1, labels: { a: 'b' } }
  ids['job-id'] = (await call('POST', '/jobs', { ...job, idempotency_key: 'key-1' })).job_id
  const { enroll_token } = await call('POST', '/workers/enroll-tokens', { label: 'pc', queues: ['q'] })
  const worker = await call('POST', '/workers/register', { enroll_token, meta: { host: HOSTILE } })
  ids['worker-id'] = worker.worker_id
  ids.worker = worker.worker_id
  const leased = await call('POST', '/leases', { queues: ['q'], max: 1 }, worker.worker_token)
  const lease = leased.leases[0].lease_id
  await call('POST', `/leases/${lease}/start`, { start_id: ID }, worker.worker_token)
  await call(
    'POST',
    `/leases/${lease}/logs`,
    { chunks: [{ n: 0, stream: 'stdout', text: HOSTILE }] },
    worker.worker_token,
  )
  const events = [{ stage: 'progress', seq: 1, data: { message: HOSTILE } }]
  await call('POST', `/leases/${lease}/events`, { events }, worker.worker_token)
  const failure = { error_code: HOSTILE, error_message: HOSTILE, traceback: HOSTILE, retryable: false }
  await call('POST', `/leases/${lease}/failed`, failure, worker.worker_token)
  await call('POST', '/jobs', job)
  await call('POST', '/definitions', { name: 'nightly', kind: 'k', queue: 'q' })
}

/** The environment of a command line besides its arguments. */
const MORE: Record<string, string[]> = {
  'keys extend': ['--ttl-hours', '1'],
  'definitions create': ['--kind', 'k'],
  'definitions backfill': ['--from', '2030-01-01T00:00:00Z', '--to', '2030-01-02T00:00:00Z'],
  'hooks put': ['--topic', 't', '--scheme', 'github'],
  'workers enroll': ['--queue', 'q'],
  'token create': ['--user', 'u', '--role', 'viewer'],
}
/** These go on until they are stopped, or end what the others show; they print by the same functions. */
const LEFT_OUT = ['serve', 'worker', 'demo', 'schedules', 'migrate', 'backup']

function linesOf(command: Command, path: string[] = []): string[][] {
  if (command.commands.length > 0) return command.commands.flatMap((inner) => linesOf(inner, [...path, inner.name()]))
  if (LEFT_OUT.includes(path.join(' '))) return []
  const given = command.registeredArguments.map((argument) => ids[argument.name()] ?? ID)
  return [[...path, ...given, ...(MORE[path.join(' ')] ?? [])]]
}

test('no command prints control characters, whatever the server sends', async () => {
  const lines = linesOf(createProgram())
  expect(lines.length).toBeGreaterThan(50)
  // Commands that end something come last.
  const ends = (line: string[]) => Number(/delete|revoke|clear|abort|drop|cancel|flush/.test(line[1] ?? ''))
  let shown = 0
  for (const line of lines.toSorted((a, b) => ends(a) - ends(b))) {
    const { stdout, stderr } = await ichido(line, env)
    expect(OBEYED.exec(stdout + stderr), line.join(' ')).toBe(null)
    if (stdout.includes('detrever') || stderr.includes('detrever')) shown++
  }
  expect(shown).toBeGreaterThan(30)
})

test('JSON of such text keeps its value and has no control characters', async () => {
  const { stdout } = await ichido(['jobs', 'show', ids['job-id'] ?? '', '--json'], env)
  expect(OBEYED.test(stdout)).toBe(false)
  expect(JSON.parse(stdout).kind).toBe(`k${HOSTILE}`)
  expect(JSON.parse(jsonForTerminal(JSON.stringify({ [HOSTILE]: HOSTILE })))).toEqual({ [HOSTILE]: HOSTILE })
})

test('own styles reach a terminal, and foreign ones do not', () => {
  const written = vi.spyOn(process.stderr, 'write').mockReturnValue(true)
  for (const name of ['NO_COLOR', 'FORCE_COLOR', 'TERM']) vi.stubEnv(name, '')
  const stream = { isTTY: true } as NodeJS.WriteStream
  say(`${paint('red', 'error:', stream)} \u001b[32mfine\u001b[39m ${paint('bold', '\u001b[8mhidden', stream)}`)
  expect(written.mock.calls).toEqual([['\u001b[31merror:\u001b[39m  [32mfine [39m \u001b[1m [8mhidden\u001b[22m\n']])
})

test.each<[Record<string, string>, boolean, boolean]>([
  [{}, true, true],
  [{}, false, false],
  [{ NO_COLOR: '1' }, true, false],
  [{ TERM: 'dumb' }, true, false],
  [{ FORCE_COLOR: '1' }, false, true],
  [{ FORCE_COLOR: '1', NO_COLOR: '1', TERM: 'dumb' }, true, true],
  [{ FORCE_COLOR: '0' }, true, false],
])('%j on a terminal (%s): coloured is %s', (given, isTTY, coloured) => {
  for (const name of ['NO_COLOR', 'FORCE_COLOR', 'TERM']) vi.stubEnv(name, given[name] ?? '')
  expect(paint('red', 'x', { isTTY } as NodeJS.WriteStream) !== 'x').toBe(coloured)
})

test('a redraw clears the terminal, and shows as many lines as it has', () => {
  const written = vi.spyOn(process.stdout, 'write').mockReturnValue(true)
  const rows = process.stdout.rows
  Object.assign(process.stdout, { rows: 3 })
  redraw('a\u001b[2J\nb\nc\nd')
  Object.assign(process.stdout, { rows })
  expect(written.mock.calls).toEqual([['\u001b[H\u001b[Ja [2J\nb\n']])
})

test('only terminal.ts writes to the terminal', () => {
  const folder = join(import.meta.dirname, '..')
  const names = globSync('**/*.ts', { cwd: folder }).filter((name) => !/\.test\.ts$|^testing/.test(name))
  const around = names.filter((name) => {
    const source = readFileSync(join(folder, name), 'utf8')
    return /process\.std(out|err)\.write|console\.|writeSync\(|\bfd: 1\b/.test(source)
  })
  // The line of agent-line.ts contains a program with its own output. bin.ts reports an old Node before anything is loaded.
  expect(around.toSorted()).toEqual(['bin.ts', 'output/agent-line.ts', 'output/terminal.ts'])
})
