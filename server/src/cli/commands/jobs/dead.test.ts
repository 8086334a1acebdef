import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { LeaseShape } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { until } from '../../../testing/store/store.ts'
import {
  begin,
  type Ended,
  killAll,
  ichido as run,
  ichidoJson as runJson,
  type Serving,
  serve,
} from '../../testing/cli.ts'

const folder = mkdtempSync(join(tmpdir(), 'ichido-dead-test-'))
const QUEUES = ['listed', 'some', 'slow', 'killed', 'retried', 'missed']
let server: Serving
let env = { ICHIDO_URL: '' }
let workerToken = ''

beforeAll(async () => {
  server = await serve({ DATA_DIR: folder })
  env = { ICHIDO_URL: server.url }
  const { enroll_token } = await call('/v1/workers/enroll-tokens', { queues: QUEUES })
  workerToken = (await call('/v1/workers/register', { enroll_token })).worker_token
})

afterAll(async () => {
  await killAll()
  rmSync(folder, { recursive: true })
})

const ichido = (...args: string[]): Promise<Ended> => run(args, env)
const json = (...args: string[]) => runJson(args, env)

async function call(path: string, body: unknown) {
  const headers = {
    'content-type': 'application/json',
    ...(path.startsWith('/v1/leases') ? { authorization: `Bearer ${workerToken}` } : {}),
  }
  const response = await fetch(`${env.ICHIDO_URL}${path}`, { method: 'POST', headers, body: JSON.stringify(body) })
  if (!response.ok) throw new Error(`${path}: ${response.status} ${await response.text()}`)
  return JSON.parse((await response.text()) || '{}')
}

async function read(path: string) {
  return JSON.parse(await (await fetch(`${env.ICHIDO_URL}${path}`)).text())
}

/** Jobs of a queue that failed for good. */
async function dead(queue: string, count: number, message = 'The disk is full'): Promise<string[]> {
  await call('/v1/jobs/batch', {
    jobs: Array.from({ length: count }, (_, n) => ({ kind: 'sort', queue, payload: { n } })),
  })
  const { leases } = await call('/v1/leases', { queues: [queue], max: count, wait_seconds: 0, start: true })
  for (const { lease_id } of leases as LeaseShape[]) {
    const report = { error_code: 'DISK_FULL', error_message: message, retryable: false, traceback: 'at line 1' }
    await call(`/v1/leases/${encodeURIComponent(lease_id)}/failed`, report)
  }
  return (leases as LeaseShape[]).map(({ job_id }) => job_id)
}

describe('dead', () => {
  test('dead letters are listed and shown', async () => {
    const [one = '', two = ''] = await dead('listed', 2)
    const [listed, found, none, grouped, shown] = await Promise.all([
      ichido('dead', 'list', '--queue', 'listed'),
      json('dead', 'list', '--queue', 'listed', '--text', 'DISK is'),
      ichido('dead', 'list', '--error-code', 'NONE'),
      ichido('dead', 'list', '--queue', 'listed', '--group'),
      ichido('dead', 'show', two),
    ])
    expect(listed.stdout).toContain(one)
    expect(listed.stdout).toContain('DISK_FULL: The disk is full')
    expect(listed.stderr).toContain('dead redrive JOB')
    expect(found.data).toHaveLength(2)
    expect(none.stderr).toBe('No dead letters.\n')
    expect(grouped.stdout).toMatch(/2 +listed +sort +DISK_FULL .* The disk is full/)
    expect(shown.stdout).toContain('stderr or traceback of the last run\nat line 1')
    expect(shown.stdout).toContain('{"n":1}')
    expect(shown.stderr).toContain(`dead redrive ${two}`)
  })

  test('one dead letter is redriven, then all that match, after a dry run', async () => {
    const [one = ''] = await dead('some', 3)
    const first = await ichido('dead', 'redrive', one)
    expect(first).toMatchObject({ code: 0, stdout: '' })
    expect(first.stderr).toMatch(/is done: 1 of 1 redriven\n$/)
    const again = await ichido('dead', 'redrive', one)
    expect([again.code, again.stderr]).toEqual([1, expect.stringContaining('None of these jobs is a dead letter.')])
    const matching = ['dead', 'redrive', '--all-matching', '--queue', 'some']
    expect((await ichido(...matching, '--dry-run')).stderr).toBe('2 dead letters would be redriven.\n')
    expect(await json(...matching)).toMatchObject({ state: 'done', matched: 2, redriven: 2 })
    const [pending, redrives] = await Promise.all([
      json('jobs', 'list', '--queue', 'some', '--state', 'PENDING'),
      ichido('dead', 'redrives'),
    ])
    expect(pending.data).toHaveLength(3)
    expect(redrives.stdout).toContain('2 of 2 redriven')
  })

  test('redrive shows its progress; Ctrl-C leaves it running, and it can be aborted', async () => {
    await dead('slow', 30)
    const slow = begin(['dead', 'redrive', '--all-matching', '--queue', 'slow', '--per-second', '2'], env)
    await until('progress', async () => /[1-9]\d* of 30 redriven/.test(slow.stderr()))
    slow.signal('SIGINT')
    const { code, stderr } = await slow.ended
    expect(code).toBe(130)
    const [, redriveId = ''] = /Redrive (\S+) continues without this command\./.exec(stderr) ?? []
    expect(stderr).toContain(`dead progress ${redriveId}`)
    expect(stderr).toContain(`dead abort ${redriveId}`)
    const { redriven } = await json('dead', 'abort', redriveId)
    expect(redriven).toBeGreaterThan(0)
    expect((await ichido('dead', 'progress', redriveId)).stderr).toContain('is aborted')
    expect((await json('dead', 'list', '--queue', 'slow', '--limit', '200')).data).toHaveLength(30 - redriven)
  })

  test('after a kill of the server a redrive continues, each dead letter once', async () => {
    const ids = await dead('killed', 20)
    const { redrive_id } = await call('/v1/dead-letters/redrive', { filter: { queue: 'killed' }, per_second: 10 })
    const redriven = async () => (await read(`/v1/dead-letters/redrives/${redrive_id}`)).redriven
    await until('some to be redriven', redriven)
    await server.kill9()
    server = await serve({ DATA_DIR: folder })
    env = { ICHIDO_URL: server.url }
    expect(await redriven()).toBeLessThan(20)
    await until('the rest', async () => (await redriven()) === 20)
    for (const id of ids) expect((await read(`/v1/jobs/${id}`)).runs).toHaveLength(2)
  })

  test('redrive without jobs or --all-matching is a usage error', async () => {
    const wrong = [[], ['--queue', 'q'], ['00000000-0000-7000-8000-000000000000', '--all-matching']]
    const ended = await Promise.all(wrong.map((args) => ichido('dead', 'redrive', ...args)))
    expect(ended.map(({ code }) => code)).toEqual([2, 2, 2])
  })
})

const NO_JOB = '01a1e150-0f86-71de-92fc-23ac1bcde25e'

describe('jobs, many at once', () => {
  const submitted = async (queue: string, count: number): Promise<string[]> => {
    const jobs = Array.from({ length: count }, () => ({ kind: 'sort', queue }))
    const { data } = await call('/v1/jobs/batch', { jobs })
    return (data as { body: { job_id: string } }[]).map(({ body }) => body.job_id)
  }

  test('are counted, canceled and retried by a filter, and nothing without --yes', async () => {
    await submitted('bulk', 3)
    const all = ['--all-matching', '--queue', 'bulk']
    expect((await ichido('jobs', 'cancel', ...all, '--dry-run')).stderr).toBe('This would cancel 3 jobs.\n')
    expect(await ichido('jobs', 'cancel', ...all)).toMatchObject({
      code: 2,
      stderr: expect.stringContaining('This would cancel 3 jobs. Add --yes'),
    })
    const canceled = await ichido('jobs', 'cancel', ...all, '--yes')
    expect(canceled).toMatchObject({ code: 0, stderr: expect.stringContaining('is done: 3 of 3 canceled') })
    expect(await json('jobs', 'retry', ...all, '--yes')).toMatchObject({ action: 'retry', state: 'done', done: 3 })
    const listed = await ichido('jobs', 'operations')
    expect(listed.stdout).toMatch(/retry +done +local .* 3 of 3 retried/)
    expect((await json('jobs', 'list', '--queue', 'bulk', '--text', 'SOR')).data).toHaveLength(3)
    expect((await json('jobs', 'list', '--queue', 'bulk', '--waiting-longer-than', '1h')).data).toEqual([])
  })

  test('are named, and those that cannot be canceled fail the command', async () => {
    const [one = '', two = '', three = ''] = await submitted('named', 3)
    expect(await ichido('jobs', 'cancel', one, two)).toMatchObject({ code: 0 })
    const again = await ichido('jobs', 'cancel', two, three)
    expect(again).toMatchObject({ code: 0, stderr: expect.stringMatching(/The others were canceled before\.\n$/) })
    const [failed = ''] = await dead('missed', 1)
    const missed = await ichido('jobs', 'cancel', two, failed, NO_JOB)
    expect(missed.code).toBe(1)
    expect(missed.stderr).toContain(
      '2 of these jobs could not be canceled. A cancel changes only jobs that have not ended.\nTheir states now:\nJOB ',
    )
    expect(missed.stderr.split('\n').slice(-3, -1)).toEqual([`${failed}  FAILED`, `${NO_JOB}  not found`])
    const retried = await ichido('jobs', 'retry', failed, NO_JOB)
    expect(retried).toMatchObject({ code: 1, stderr: expect.stringContaining(`1 of these jobs could not be retried.`) })
  })

  test('are changed without waiting, watched and aborted', async () => {
    await submitted('paced', 8)
    const begun = await ichido(
      'jobs',
      'cancel',
      '--all-matching',
      '--queue',
      'paced',
      '-y',
      '--per-second',
      '1',
      '--no-wait',
    )
    const id = begun.stdout.trim()
    expect((await ichido('jobs', 'abort', id)).stderr).toMatch(/is aborted: \d of 8 canceled/)
    expect((await ichido('jobs', 'progress', id)).stderr).toMatch(/is aborted/)
  })
})

describe('jobs', () => {
  test('retry gives the job another run, or makes a new job with another payload', async () => {
    const [one = '', two = ''] = await dead('retried', 2)
    expect((await ichido('jobs', 'retry', one)).stderr).toBe(`Job ${one} is PENDING again.\n`)
    const again = await ichido('jobs', 'retry', one)
    expect(again.code).toBe(1)
    expect(again.stderr).toContain('NOT_ENDED')
    const replaced = await ichido('jobs', 'retry', two, '--payload', '{"n":9}')
    expect(await json('jobs', 'show', replaced.stdout.trim())).toMatchObject({
      replaces_job_id: two,
      payload: { n: 9 },
    })
  })

  test('show and submit --wait say what a job waits for', async () => {
    const waiting = begin(['submit', 'sort', '--queue', 'nobody', '--wait', '--timeout', '20s'], env)
    await until('a word', async () => waiting.stderr().includes('workers enroll NAME --queue nobody'))
    expect(waiting.stderr()).toContain('No worker that takes jobs of kind sort from the queue nobody')
    waiting.signal('SIGINT')
    await waiting.ended
    const { data } = await json('jobs', 'list', '--queue', 'nobody')
    const { stdout } = await ichido('jobs', 'show', data[0].job_id)
    expect(stdout).toMatch(/waiting for +No worker/)
  })
})
