import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Command } from 'commander'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { createProgram } from './program.ts'
import { ichido, killAll, serve } from './testing/cli.ts'

const folder = mkdtempSync(join(tmpdir(), 'ichido-bad-values-test-'))
const emptyModule = join(folder, 'empty.mjs')
const brokenModule = join(folder, 'broken.mjs')
let env = { ICHIDO_URL: '', DATA_DIR: join(folder, 'other'), HOME: folder }

beforeAll(async () => {
  writeFileSync(emptyModule, 'export default {}')
  writeFileSync(brokenModule, "import 'no-such-package'")
  env = { ...env, ICHIDO_URL: (await serve({ DATA_DIR: folder })).url }
  expect(await ichido(['definitions', 'create', 'n', '--kind', 'k'], env)).toMatchObject({ code: 0 })
})

afterAll(async () => {
  await killAll()
  rmSync(folder, { recursive: true })
})

const ID = '01a1e150-0f86-71de-92fc-23ac1bcde25e'
const NO_NAME = 'no name'

/** Where a command needs an argument or a flag, so that another one is what is wrong. */
const GOOD: Readonly<Record<string, string>> = {
  kind: 'k',
  key: 'key',
  queue: 'q',
  user: 'u',
  name: 'n',
  file: 'f',
  cron: '@daily',
  '--queue': 'q',
  '--user': 'u',
  '--role': 'viewer',
  '--from': '2030-01-01T00:00:00Z',
  '--to': '2030-01-02T00:00:00Z',
  '--ttl-hours': '1',
  topic: 't',
  id: ID,
  '--topic': 't',
  '--scheme': 'github',
  setting: 'reap_batch_max',
  value: '5',
}

/** Bad values. A flag with a parser or choices refuses `!`, unless another value stands here. */
const BAD: Readonly<Record<string, string>> = {
  kind: NO_NAME,
  queue: NO_NAME,
  user: NO_NAME,
  key: NO_NAME,
  cron: 'every day',
  name: NO_NAME,
  'definitions run --key': NO_NAME,
  '--kind': NO_NAME,
  '--queue': NO_NAME,
  '--user': NO_NAME,
  '--key': NO_NAME,
  '--domain': NO_NAME,
  '--label': '!',
  '--state': 'ASLEEP',
  '--cron': 'every day',
  '--time-zone': 'Mars/Olympus',
  '--cursor': '!',
  '--roles': 'king',
  '--handlers': 'nope.ts',
  '--worker': 'nobody',
  topic: NO_NAME,
  '--topic': NO_NAME,
  '--dedupe-key': NO_NAME,
  '--definition': NO_NAME,
  '--fatal-codes': 'X'.repeat(1_000),
  '--rule': 'too_many_mondays',
  setting: 'x'.repeat(101),
  shell: 'tcsh',
  value: 'many',
  '--actor': 'x'.repeat(257),
  '--action': 'x'.repeat(257),
  '--subject': 'x'.repeat(257),
  '--job': 'nope',
  '--stage': NO_NAME,
  url: 'nope',
  '--url': 'nope',
}

/** Any text may be meant: names of people, programs and places, and words to look for. */
const FREE: readonly string[] = [
  ...[
    'backup file',
    'workers enroll name',
    'workers show worker',
    '--exec',
    '--enroll',
    '--name',
    '--save',
    '--text',
    '--error-code',
    '--description',
  ],
  'worker --state',
  // Filters by which nothing is found.
  ...[
    'dead list --user',
    'dead redrive --user',
    'jobs list --user',
    'jobs cancel --user',
    'jobs retry --user',
    'quota reservations --user',
  ],
]

interface Leaf {
  path: string
  command: Command
}

function leaves(command: Command, path = ''): Leaf[] {
  const inner = command.commands.filter((one) => !isHidden(one))
  if (inner.length === 0) return [{ path, command }]
  return inner.flatMap((one) => leaves(one, `${path} ${one.name()}`.trim()))
}

const isHidden = (command: Command) => '_hidden' in command && command._hidden === true

/** The command line in which this flag or argument has a bad value and all else is good. */
function lineOf({ path, command }: Leaf, what: string, bad: string): string[] {
  const of = (name: string) => (name === what ? bad : /(^|-)id$/.test(name) ? ID : (GOOD[name] ?? 'x'))
  const args = command.registeredArguments.map((argument) => of(argument.name()))
  const needed = command.options.filter(({ long, mandatory }) => mandatory || long === what)
  return [...path.split(' '), ...args, ...needed.flatMap(({ long }) => (long == null ? [] : [long, of(long)]))]
}

const commands = leaves(createProgram())
const cases = commands.flatMap((leaf) => {
  const { path, command } = leaf
  const flags = command.options.flatMap(({ long, required, parseArg, argChoices }) =>
    required && long != null
      ? [{ what: long, fallback: parseArg === undefined && argChoices === undefined ? null : '!' }]
      : [],
  )
  const args = command.registeredArguments.map((argument) => ({
    what: argument.name(),
    fallback: /(^|-)id$/.test(argument.name()) ? 'nope' : null,
  }))
  return [...flags, ...args].map(({ what, fallback }) => {
    const bad = BAD[`${path} ${what}`] ?? BAD[what] ?? fallback
    return { name: `${path} ${what}`, free: FREE.includes(what) || FREE.includes(`${path} ${what}`), bad, leaf, what }
  })
})

test('every flag and argument has a bad value here, or takes any text', () => {
  const unknown = cases.filter(({ bad, free }) => bad === null && !free)
  expect(unknown.map(({ name }) => name)).toEqual([])
  expect(cases.length).toBeGreaterThan(100)
})

describe('a bad value is a usage error in one sentence', () => {
  test.each(cases.filter(({ free }) => !free))('$name', async ({ leaf, what, bad }) => {
    const { code, stdout, stderr } = await ichido(lineOf(leaf, what, bad ?? ''), env)
    expect({ code, stdout, stderr }).toEqual({ code: 2, stdout: '', stderr: expect.stringContaining('error: ') })
    expect(stderr).not.toMatch(/\n {4}at |unexpected/)
  })

  test.each<[string, string[]]>([
    ['--max-attempts', ['submit', 'k', '--max-attempts', '0']],
    ['--max-attempts', ['submit', 'k', '--max-attempts', '-1', '--offline']],
    ['--priority', ['submit', 'k', '--priority', '5000']],
    ['--timeout-seconds', ['submit', 'k', '--timeout-seconds', '0']],
    ['--backoff-jitter', ['submit', 'k', '--backoff-jitter', '2']],
    ['--backoff-cap', ['submit', 'k', '--backoff-cap', '9999d']],
    ['--delay', ['submit', 'k', '--delay', '9999d']],
    ['--key-ttl-hours', ['submit', 'k', '--key-ttl-hours', '0']],
    ['--estimated-cost', ['submit', 'k', '--estimated-cost', '-1']],
    ['--label', ['submit', 'k', '--label', 'a b=1']],
    ['--payload', ['submit', 'k', '--payload', '{"a": 1, "a": 2}']],
    ['--key', ['submit', 'k', '--key', '']],
    ['at most 36500d', ['watch', ID, '--timeout', '99999999d']],
    ['limit', ['jobs', 'list', '--limit', '0']],
    ['tail', ['jobs', 'logs', ID, '--tail', '-1']],
    ['--concurrency must be at least 1', ['worker', '--queue', 'q', '--exec', 'ls', '--concurrency', '0']],
    ['--exec and --handlers exclude each other', ['worker', '--queue', 'q', '--exec', 'ls', '--handlers', emptyModule]],
    ['--exec COMMAND or --handlers FILE', ['worker', '--queue', 'q']],
    [`there is no file ${join(process.cwd(), 'nope.ts')}`, ['worker', '--queue', 'q', '--handlers', 'nope.ts']],
    ['must export an object of functions', ['worker', '--queue', 'q', '--handlers', emptyModule]],
    [
      "could not be loaded: Cannot find package 'no-such-package'",
      ['worker', '--queue', 'q', '--handlers', brokenModule],
    ],
    ['max_concurrent', ['queues', 'set', 'q', '--max-concurrent', '0']],
    ['max_concurrent', ['quota', 'set', 'u', '--max-concurrent', '1.5']],
    ['per_second', ['jobs', 'cancel', '--all-matching', '--yes', '--per-second', '0']],
    ['error: state must name', ['jobs', 'retry', '--all-matching', '--state', 'PENDING', '--dry-run']],
    ['one or more of PENDING', ['jobs', 'cancel', '--all-matching', '--state', 'ASLEEP', '--dry-run']],
    ['It must be name=value', ['webhooks', 'create', 'https://example.com', '--label', 'nope']],
    ['jobs list', ['events', '--job', '0199']],
    ['Or how long ago: 2h', ['audit', '--from', 'yesterday']],
    ['Name jobs, or use --all-matching', ['jobs', 'cancel', '--queue', 'q']],
    ['Name jobs, or use --all-matching', ['jobs', 'retry']],
    ['--payload takes one job', ['jobs', 'retry', ID, ID, '--payload', '1']],
    ['per_second', ['dead', 'redrive', '--all-matching', '--per-second', '0']],
    ['ttl_seconds', ['workers', 'enroll', 'pc', '--queue', 'q', '--ttl', '0']],
    ['--ttl-days', ['token', 'create', '--user', 'u', '--role', 'viewer', '--ttl-days', '-1']],
    ['backoff.jitter', ['definitions', 'create', 'n', '--kind', 'k', '--backoff-jitter', '7']],
    ['like 30s, 10m, 2h or 7d', ['settings', 'set', 'reap_interval_seconds', 'soon']],
    ['whole number from 1 to 10000', ['settings', 'set', 'reap_batch_max', '1.5']],
    ['--limit goes without --follow', ['events', '--follow', '--limit', '5']],
    ['schedule', ['definitions', 'create', 'n', '--kind', 'k', '--time-zone', 'UTC']],
  ])('%s: %j', async (says, args) => {
    const { code, stdout, stderr } = await ichido(args, env)
    expect({ code, stdout }).toEqual({ code: 2, stdout: '' })
    expect(stderr).toContain(says)
    expect(stderr).not.toMatch(/\n {4}at |unexpected/)
  })

  test.each<[string, Record<string, string>, string[]]>([
    ['ICHIDO_URL', { ICHIDO_URL: 'nowhere' }, ['jobs', 'list']],
    ['ICHIDO_TOKEN', { ICHIDO_TOKEN: 'a\nb' }, ['jobs', 'list']],
    ['PORT', { PORT: 'http' }, ['serve']],
    ['DATABASE_URL', { DATABASE_URL: 'nowhere' }, ['migrate']],
  ])('%s in the environment: %j', async (says, wrong, args) => {
    const { code, stderr } = await ichido(args, { ...env, ...wrong })
    expect(code).toBe(2)
    expect(stderr).toContain(says)
  })
})
