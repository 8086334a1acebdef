import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { begin, type Ended, killAll, ichido as run, ichidoJson as runJson, serve } from '../testing/cli.ts'

const folder = mkdtempSync(join(tmpdir(), 'ichido-commands-test-'))
let env = { ICHIDO_URL: '' }

beforeAll(async () => {
  env = { ICHIDO_URL: (await serve({ DATA_DIR: folder }, ['--local-worker'])).url }
})

afterAll(async () => {
  await killAll()
  rmSync(folder, { recursive: true })
})

const ichido = (args: string[], input?: string): Promise<Ended> => run(args, env, input)
const json = (args: string[]) => runJson(args, env)

describe('demo and submit', () => {
  test('demo runs a job to its end and shows its progress', async () => {
    const { code, stdout, stderr } = await ichido(['demo'])
    expect(code).toBe(0)
    expect(JSON.parse(stdout)).toEqual({ greeting: 'Hello, world!', counted_to: 5 })
    expect(stderr).toContain('RUNNING attempt 1')
    expect(stderr).toContain('40 % counting: 2 of 5')
    const [, jobId] = /^Submitted job (\S+)/m.exec(stderr) ?? []
    expect(stderr).toContain(`See it in a browser: ${env.ICHIDO_URL}/jobs/${jobId}\n`)
    expect(stdout + stderr).not.toContain('\u001b')
  })

  test('submit prints the id; the same key prints the same id', async () => {
    const args = ['submit', 'sort', '--key', 'ci/main/17', '--payload', '{"n":1}', '--label', 'env=a=b']
    const first = await ichido(args)
    const again = await ichido(args)
    expect(first.code).toBe(0)
    expect(first.stdout.trim()).toMatch(/^[0-9a-f-]{36}$/)
    expect(again.stdout).toBe(first.stdout)
    expect(again.stderr).toContain('The key was used before')

    const other = await ichido([...args, '--payload', '{"n":2}'])
    expect(other.code).toBe(1)
    expect(other.stderr).toContain('IDEMPOTENCY_KEY_REUSED')

    const keys = await ichido(['keys', 'show', 'ci/main/17'])
    expect(keys.stdout).toContain(first.stdout.trim())
    const extended = await json(['keys', 'extend', 'ci/main/17', '--ttl-hours', '100'])
    expect(Date.parse(extended.data[0].expires_at) - Date.now()).toBeGreaterThan(99 * 3_600_000)
    const { data } = await json(['jobs', 'list', '--label', 'env=a=b'])
    expect(data).toHaveLength(1)
  })

  test('every option of submit reaches the server', async () => {
    const file = join(folder, 'payload.json')
    writeFileSync(file, '{"from":"file"}')
    const options = ['--queue', 'q', '--priority', '-3', '--max-attempts', '2', '--timeout-seconds', '60']
    const backoff = ['--backoff-base', '5s', '--backoff-cap', '1m', '--backoff-jitter', '0']
    const args = [
      'submit',
      'k',
      '--payload',
      `@${file}`,
      '--delay',
      '1h',
      '--estimated-cost',
      '0.5',
      ...options,
      ...backoff,
    ]
    const { job_id } = await json(args)
    const job = await json(['jobs', 'show', job_id])
    expect(job).toMatchObject({ kind: 'k', queue: 'q', priority: -3, payload: { from: 'file' }, estimated_cost: 0.5 })
    expect(job.policy).toMatchObject({
      max_attempts: 2,
      timeout_seconds: 60,
      backoff: { base_seconds: 5, cap_seconds: 60, jitter: 0 },
    })
    expect(Date.parse(job.run_at) - Date.parse(job.created_at)).toBe(3_600_000)

    const shown = await ichido(['jobs', 'show', job_id])
    expect(shown.stdout).toContain('{"from":"file"}')
  })

  test('the payload can come from standard input', async () => {
    const { code, stdout } = await ichido(['submit', 'k', '--payload', '-', '--json'], '{"from":"stdin"}')
    expect(code).toBe(0)
    const job = await json(['jobs', 'show', JSON.parse(stdout).job_id])
    expect(job.payload).toEqual({ from: 'stdin' })
  })

  test('--wait prints the result; as JSON it is one document', async () => {
    const args = ['submit', 'demo.hello', '--queue', 'demo', '--payload', '{"name":"you"}', '--wait']
    const job = await json(args)
    expect(job).toMatchObject({ state: 'SUCCEEDED', result: { greeting: 'Hello, you!' } })
  })

  test('--wait ends with 1 when the job fails, and with 3 when the time is up', async () => {
    const [failed, late] = await Promise.all([
      ichido(['submit', 'demo.fail', '--queue', 'demo', '--wait']),
      ichido(['submit', 'nobody.takes.this', '--wait', '--timeout', '300ms']),
    ])
    expect(failed.code).toBe(1)
    expect(failed.stderr).toContain('\nFAILED attempt 1: DEMO: Jobs of this kind always fail\n')
    expect(failed.stderr).toContain('ended FAILED: DEMO: Jobs of this kind always fail')
    const [, failedId = ''] = /^Job (\S+)$/m.exec(failed.stderr) ?? []
    const canceled = await ichido(['jobs', 'cancel', failedId])
    expect(canceled.code).toBe(1)
    expect(canceled.stderr).toContain('has ended: FAILED (ALREADY_ENDED)')
    expect(late.code).toBe(3)
    expect(late.stderr).toContain('it continues')
    expect(late.stderr).toContain('jobs show')
  })

  test('Ctrl-C while waiting says that the job continues, and how to see it', async () => {
    const waiting = begin(['submit', 'nobody.takes.this', '--wait'], env)
    await expect.poll(waiting.stderr, { timeout: 20_000 }).toContain('PENDING')
    waiting.signal('SIGINT')
    const { code, stderr } = await waiting.ended
    expect(code).toBe(130)
    const [, jobId = ''] = /^Job (\S+) continues without this command\.$/m.exec(stderr) ?? []
    expect(stderr).toContain(`watch ${jobId}`)
    expect((await json(['jobs', 'show', jobId])).state).toBe('PENDING')
  })

  test('watch shows all events from the beginning, with --json as lines of JSON', async () => {
    const { job_id } = await json(['submit', 'demo.hello', '--queue', 'demo'])
    const { code, stdout } = await ichido(['watch', job_id, '--json'])
    expect(code).toBe(0)
    const lines = stdout
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line))
    expect(lines.slice(0, -1).map((event) => event.cursor)).toEqual(lines.slice(0, -1).map((_, i) => i + 1))
    expect(lines.filter((event) => event.stage === 'progress')).toHaveLength(5)
    expect(lines.at(-1)).toMatchObject({ job_id, state: 'SUCCEEDED', result: { counted_to: 5 } })
  })
})

describe('jobs, quota and tokens', () => {
  test('jobs can be listed page by page, shown and canceled', async () => {
    const ids: string[] = []
    for (let n = 0; n < 3; n++) ids.push((await json(['submit', 'paged', '--queue', 'paged'])).job_id)
    const first = await json(['jobs', 'list', '--queue', 'paged', '--limit', '2'])
    const second = await json(['jobs', 'list', '--queue', 'paged', '--limit', '2', '--cursor', first.next_cursor])
    expect([...first.data, ...second.data].map((job) => job.job_id)).toEqual(ids.toReversed())

    const [id = ''] = ids
    expect((await ichido(['jobs', 'cancel', id])).stderr).toContain(`Job ${id} is canceled.`)
    expect((await json(['jobs', 'cancel', id])).state).toBe('CANCELED')
    const { stdout } = await ichido(['jobs', 'list', '--state', 'canceled', '--queue', 'paged'])
    expect(stdout.trim().split('\n')).toHaveLength(2)
    expect(stdout).toContain(id)
    const watched = await ichido(['watch', id])
    expect(watched).toMatchObject({ code: 1, stderr: expect.stringContaining(`error: Job ${id} was canceled\n`) })
  })

  test('a job that was canceled while it ran shows each state once', async () => {
    // A program that never ends by itself: on a busy machine a demo job ends before it is canceled.
    const state = join(folder, 'held')
    const worker = begin(['worker', '--queue', 'held', '--state', state, '--exec', 'sleep 600'], env)
    const { job_id: id } = await json(['submit', 'held', '--queue', 'held'])
    const watching = begin(['watch', id], env)
    await expect.poll(watching.stderr, { timeout: 20_000 }).toContain('RUNNING')
    await ichido(['jobs', 'cancel', id])
    const { stderr } = await watching.ended
    worker.signal('SIGTERM')
    await worker.ended
    const shown = await ichido(['jobs', 'show', id])
    expect(shown.stdout).toMatch(/^1 +CANCELED +1 .* -$/m)
    expect(stderr).toContain(`Job ${id} was canceled\n`)
    for (const text of [stderr, shown.stdout, shown.stderr]) expect(text).not.toMatch(/CANCELED\W+CANCELED|CANCELED:/)
  })

  test('an ended job shows its result, its worker and how to read its log', async () => {
    const { job_id } = await json(['submit', 'demo.hello', '--queue', 'demo', '--wait'])
    const { stdout, stderr } = await ichido(['jobs', 'show', job_id])
    expect(stdout).toMatch(/^result +\{.*"counted_to":5.*\}$/m)
    expect(stderr).toContain(`jobs logs ${job_id}`)
    expect(await ichido(['jobs', 'logs', job_id])).toMatchObject({
      code: 0,
      stdout: '',
      stderr: 'The log of the job is empty.\n',
    })
  })

  test('an unknown job is reported as a failure', async () => {
    const { code, stdout, stderr } = await ichido(['jobs', 'show', '01a1e150-0f86-71de-92fc-23ac1bcde25e', '--json'])
    expect(code).toBe(1)
    expect(stdout).toBe('')
    expect(stderr).toContain('There is no job 01a1e150-0f86-71de-92fc-23ac1bcde25e (NOT_FOUND)')
    expect((await ichido(['jobs', 'show', 'hello'])).stderr).toMatch(
      /There is no job "hello": ids look like [0-9a-f-]{36} /,
    )
  })

  test('a quota is set, changed in part, enforced and cleared', async () => {
    await json(['quota', 'set', 'local', '--cost-limit', '100', '--period', 'day'])
    const quota = await json(['quota', 'set', 'local', '--max-concurrent', '0'])
    expect(quota).toMatchObject({ custom: true, max_concurrent: 0, cost_limit: 100, period: 'day' })
    const refused = await ichido(['submit', 'k'])
    expect(refused.code).toBe(1)
    expect(refused.stderr).toContain('Quota exceeded: Maximum 0 concurrent jobs allowed (QUOTA_EXCEEDED)')
    expect(refused.stderr).toContain('quota show')
    expect((await ichido(['quota', 'show', 'local'])).stdout).toMatch(/max concurrent +0\n/)
    const freed = await json(['quota', 'set', 'local', '--max-concurrent', 'none'])
    expect(freed).toMatchObject({ custom: true, max_concurrent: null, cost_limit: 100 })
    expect(await json(['quota', 'clear', 'local'])).toMatchObject({ custom: false, max_concurrent: null })
    expect((await ichido(['quota', 'set', 'local'])).code).toBe(2)
    expect(await json(['quota', 'reservations'])).toEqual({ data: [], next_cursor: null })
  })

  test('users are listed with their limits and their use', async () => {
    await json(['quota', 'set', 'zoe', '--max-concurrent', '3', '--cost-limit', '1.5', '--period', 'day'])
    const { stdout } = await ichido(['quota', 'list'])
    expect(stdout).toMatch(/^USER +LIMITS +JOBS +RESERVED +LIMIT +SPENT +COST LIMIT +BYTES +MAX BYTES\n/)
    expect(stdout).toMatch(/^local +of '\*' +\d+ +0 +- +[\d.]+ +- +- +-$/m)
    expect(stdout).toMatch(/^zoe +own +0 +0 +3 +0 +1\.5 a day +- +-$/m)
    const first = await json(['quota', 'list', '--limit', '1'])
    const second = await json(['quota', 'list', '--limit', '1', '--cursor', first.next_cursor])
    expect([...first.data, ...second.data]).toMatchObject([{ user_id: 'local' }, { user_id: 'zoe', max_concurrent: 3 }])
    expect((await ichido(['quota', 'list', '--limit', '1'])).stderr).toContain(`--cursor ${first.next_cursor}`)
  })
})

describe('usage', () => {
  test.each([
    [['build'], "unknown command 'build'"],
    [['build'], 'See `npm run -s ichido -- --help`'],
    [['job', 'list'], 'Did you mean jobs?'],
    [['schedules', 'list', '--json'], 'definitions --help'],
    [['jobs', 'list', '--sate', 'x'], 'See `npm run -s ichido -- jobs list --help`'],
    [['jobs', 'lst'], 'Did you mean list?'],
    [['submit'], "missing required argument 'kind'"],
    [['submit', 'k', '--payload', '{'], 'It must be JSON, @file or -'],
    [['submit', 'k', '--delay', 'soon'], 'It must be a time like 30s, 10m, 2h or 7d.'],
    [['submit', 'k', '--delay', '1s', '--run-at', '2030-01-01T00:00:00Z'], 'cannot be used with'],
    [['submit', 'k', '--timeout', '1s'], '--timeout goes with --wait.'],
    [['token', 'create', '--user', 'u', '--role', 'king'], 'Allowed choices are viewer, submitter, operator, admin.'],
    [['token', 'create', '--user', 'a b', '--role', 'viewer'], '--user must be'],
  ])('%j is a usage error', async (args, text) => {
    const { code, stdout, stderr } = await ichido(args)
    expect(code).toBe(2)
    expect(stdout).toBe('')
    expect(stderr).toContain(text)
  })

  test('help and version exit with 0', async () => {
    expect(await ichido(['--version'])).toMatchObject({ code: 0, stdout: expect.stringMatching(/^\d+\.\d+\.\d+\n$/) })
    const { code, stdout } = await ichido(['submit', '--help'])
    expect(code).toBe(0)
    expect(stdout).toContain('--payload')
  })

  test('an unreachable server is reported with advice', async () => {
    const { code, stderr } = await run(['jobs', 'list'], { ICHIDO_URL: 'http://127.0.0.1:2' })
    expect(code).toBe(1)
    expect(stderr).toContain('No server answers at http://127.0.0.1:2: connect ECONNREFUSED')
    expect(stderr).toContain('Start it with `npm start`, or set ICHIDO_URL')
  })

  test('a nearly correct URL is reported with advice', async () => {
    const secure = env.ICHIDO_URL.replace('http:', 'https:')
    const { code, stderr } = await run(['jobs', 'list'], { ICHIDO_URL: secure })
    expect(code).toBe(1)
    expect(stderr).toBe(`error: ${secure} does not speak HTTPS; try ${env.ICHIDO_URL}\n`)
    const elsewhere = await run(['jobs', 'list'], { ICHIDO_URL: `${env.ICHIDO_URL}/docs` })
    expect(elsewhere.stderr).toContain('There is no GET /docs/v1/jobs')
    expect(elsewhere.stderr).toContain('Check the path in ICHIDO_URL.')
  })
})

// The last one: from the first token on, every other command would need it too.
test('the running server makes the first token, and then every call needs one', async () => {
  const created = await run(['token', 'create', '--user', 'boss', '--role', 'admin'], { ...env, DATA_DIR: folder })
  expect(created.code).toBe(0)
  expect(created.stdout).toMatch(/^ichido_\S+\n$/)
  expect(created.stderr).not.toContain('warning')
  const another = await run(['token', 'create', '--user', 'me', '--role', 'viewer'], { ...env, DATA_DIR: folder })
  expect(another.code).toBe(1)
  expect(another.stderr).toContain("Set ICHIDO_TOKEN to an admin's token, or stop the server and run this again.")

  const refused = await ichido(['jobs', 'list'])
  expect(refused.code).toBe(1)
  expect(refused.stderr).toContain('Set ICHIDO_TOKEN')

  const admin = { ...env, ICHIDO_TOKEN: created.stdout.trim() }
  const args = ['token', 'create', '--user', 'v', '--role', 'viewer', '--name', 'n', '--ttl-days', '1']
  const { token, token_id } = await runJson(args, { ...admin, DATA_DIR: folder })
  const listed = await run(['token', 'list'], admin)
  expect(listed.stdout).toContain(token_id)
  expect(listed.stdout).not.toContain(token)
  expect((await run(['submit', 'k'], { ...env, ICHIDO_TOKEN: token })).stderr).toContain('(FORBIDDEN)')
  expect((await run(['token', 'revoke', token_id], admin)).code).toBe(0)
})
