import { existsSync } from 'node:fs'
import type { JobDetail, JobState, Page, RunLogShape, SubmitRequest, WorkerShape } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest'
import { alive } from '../../scripts/services/process-tree.ts'
import { TcpProxy } from '../../scripts/testing/proxy.ts'
import { killAll } from '../../server/src/cli/testing/cli.ts'
import { openAnsweringProxy } from './testing/answering-proxy.ts'
import { openDroppingProxy } from './testing/dropping-proxy.ts'
import { enlist, firstNote, gone, kept, stopped, WITHIN } from './testing/enlist.ts'
import { ENGINES, type Plane, type Planes, startPlanes } from './testing/plane.ts'
import { childrenOf, findPython, killWorkers, script, startWorker } from './testing/python.ts'

let python: string
let planes: Planes
beforeAll(async () => {
  ;[python, planes] = await Promise.all([findPython(), startPlanes()])
})
afterAll(async () => {
  await killWorkers()
  await planes.stop()
  await killAll()
})

// The tests run concurrently, because they mostly wait.
describe.concurrent.each(ENGINES)('on %s', (engine) => {
  let plane: Plane
  beforeAll(() => {
    plane = planes.on(engine)
  })

  const logsOf = async (jobId: string) =>
    (await plane.call<Page<RunLogShape>>('GET', `/v1/jobs/${jobId}/logs`)).data.map(({ stream, text }) => [
      stream,
      text,
    ])

  test('a proxy loses each answer once, and every attempt stays 1', async () => {
    const proxy = await openDroppingProxy(plane.urls[0] ?? '')
    const { queue, worker, options } = await enlist(python, plane, ['talk'], { url: proxy.url, concurrency: 5 })
    const ids = await Promise.all(
      [1, 2, 3, 4, 5].map((n) => plane.submit({ kind: 'talk', queue, payload: n, max_attempts: 1 })),
    )
    for (const id of ids) {
      expect(await plane.jobIn(id, 'SUCCEEDED')).toMatchObject({ attempt: 1, runs: [{ attempt: 1 }] })
    }
    const [id = ''] = ids
    const events = `print(json.dumps([[e.stage, e.data] for e in ichido.Client(os.environ['URL']).watch('${id}')]))`
    expect(await script(python, events, { URL: proxy.url })).toEqual([
      [
        ['run', { state: 'PENDING' }],
        ['run', { state: 'ASSIGNED', attempt: 1 }],
        ['run', { state: 'RUNNING', attempt: 1 }],
        ['progress', { percent: 50 }],
        ['vision', { found: true }],
        ['run', { state: 'SUCCEEDED', attempt: 1 }],
      ],
    ])
    expect(await logsOf(id)).toEqual([
      ['stdout', 'to stdout 1\n'],
      ['stderr', 'to stderr: 一度\n'],
    ])
    expect((await stopped(worker)).code).toBe(0)
    proxy.close()
    const lost = [
      '/v1/workers/register',
      '/v1/leases',
      ...['start', 'heartbeat', 'events', 'logs', 'result'].map(perLease),
    ]
    expect(proxy.dropped).toEqual(expect.arrayContaining(lost))
    expect(
      (await workersSeen()).filter(({ worker_id }) => worker_id === kept(options.tokenFile).worker_id),
    ).toHaveLength(1)
  })
  const perLease = (verb: string) => `/v1/leases/…/${verb}`
  const workersSeen = async () => (await plane.call<Page<WorkerShape>>('GET', '/v1/workers')).data

  test('a token that is unknown for a moment loses no output of a run', async () => {
    const refused = new Map([
      ['logs', 3],
      ['events', 3],
    ])
    const proxy = await openAnsweringProxy(plane.urls[0] ?? '', (call) => {
      const what = call.replace(/.*\//, '')
      const left = refused.get(what) ?? 0
      refused.set(what, left - 1)
      return left > 0 ? { status: 401, code: 'UNAUTHENTICATED' } : undefined
    })
    const { queue, worker } = await enlist(python, plane, ['talk'], { url: proxy.url })
    const id = await plane.submit({ kind: 'talk', queue, payload: 1, max_attempts: 1 })
    await plane.jobIn(id, 'SUCCEEDED')
    const stages = `print(json.dumps([e.stage for e in ichido.Client(os.environ['URL']).watch('${id}')]))`
    const [said] = await script(python, stages, { URL: plane.urls[0] ?? '' })
    expect(said).toEqual(['run', 'run', 'run', 'progress', 'vision', 'run'])
    expect(await logsOf(id)).toEqual([
      ['stdout', 'to stdout 1\n'],
      ['stderr', 'to stderr: 一度\n'],
    ])
    await stopped(worker)
    proxy.close()
  })

  test('a handler gets its environment, and can fail in several ways', async () => {
    const { queue, worker } = await enlist(python, plane, ['talk', 'fail'], { concurrency: 3 })
    const talking = await plane.submit({ kind: 'talk', queue, payload: 'x' })
    const failing = ['fatal', 'error', 'exit', 'signal', 'not json', 'too large', 1.5, null]
    const ids = await Promise.all(
      failing.map((payload) => plane.submit({ kind: 'fail', queue, payload, max_attempts: 1 })),
    )
    await plane.jobIn(talking, 'SUCCEEDED')
    const code = `print(json.dumps(ichido.Client(os.environ['URL']).result('${talking}')))`
    const [{ environment }] = (await script(python, code, { URL: plane.urls[0] ?? '' })) as [{ environment: string[] }]
    expect(environment).toEqual([talking, '1', expect.stringContaining('.'), expect.stringMatching(/^[012]$/)])
    const ended = await Promise.all(
      ids.map((id, i) => plane.jobIn(id, typeof failing[i] === 'string' ? 'FAILED' : 'SUCCEEDED')),
    )
    expect(ended.map(({ error }) => error && [error.code, error.message])).toEqual([
      ['BAD_IMAGE', 'There is no image'],
      ['LookupError', expect.stringContaining('not there: \ufffd')],
      ['EXITED', '3'],
      ['HANDLER_DIED', expect.stringContaining('SIGKILL')],
      ['INVALID_RESULT', expect.stringContaining('not JSON')],
      ['PAYLOAD_TOO_LARGE', expect.any(String)],
      null,
      null,
    ])
    expect(ended[1]?.error?.traceback).toContain('in fail')
    await stopped(worker)
  })

  test('the last reported cost replaces the estimate, and an invalid cost is refused', async () => {
    const { queue, worker } = await enlist(python, plane, ['spend'])
    const submit = (payload: string, estimated_cost: number) =>
      plane.submit({ kind: 'spend', queue, payload, estimated_cost, max_attempts: 1 })
    const id = await submit('3.25', 50)
    await plane.jobIn(id, 'SUCCEEDED')
    expect(await plane.call('GET', `/v1/jobs/${id}/result`)).toMatchObject({ result: null, cost: 3.25 })
    for (const amount of ['-0.01', 'nan', 'Infinity', '1000000000.5']) {
      expect(await plane.jobIn(await submit(amount, 0.5), 'FAILED')).toMatchObject({
        error: { code: 'ValueError', message: expect.stringContaining('cost must be a number from 0 to 1000000000') },
      })
    }
    // No other job of this file has an estimate.
    expect(await plane.call('GET', '/v1/quotas/local')).toMatchObject({ spent: 3.25 + 4 * 0.5 })
    await stopped(worker)
  })

  test('a handler is stopped with the reason: canceled, timeout or shutdown', async () => {
    const { queue, worker, notes } = await enlist(python, plane, ['wait'], { concurrency: 3 })
    const submit = (changes: object) => plane.submit({ kind: 'wait', queue, lease_ttl_seconds: 2, ...changes })
    // Heartbeats are too rare to deliver the cancel request in time.
    const canceled = await submit({ lease_ttl_seconds: 3600, continuation_seconds: 3600 })
    const late = await submit({ timeout_seconds: 1, max_attempts: 1 })
    const shutDown = await submit({})
    await vi.waitFor(() => expect(new Set(notes().map(({ job }) => job)).size).toBe(3), WITHIN)
    await plane.call('POST', `/v1/jobs/${canceled}/cancel`)
    await plane.jobIn(canceled, 'CANCELED')
    expect(await plane.jobIn(late, 'FAILED')).toMatchObject({ error: { code: 'TIMEOUT' } })
    expect((await stopped(worker)).code).toBe(0)
    const given = await plane.jobIn(shutDown, 'PENDING')
    expect(given).toMatchObject({ retry_count: 0, runs: [{ state: 'FAILED', error: { code: 'RELEASED' } }, {}] })
    for (const [id, reason] of [
      [canceled, 'CANCELED'],
      [late, 'TIMEOUT'],
      [shutDown, 'STOPPED'],
    ] as const) {
      expect(await logsOf(id)).toEqual([['stdout', `stopped because of ${reason} True\n`]])
    }
    await gone(...notes().map(({ pid }) => pid))
  })

  test('a stopping worker lets its runs finish first', async () => {
    const { queue, worker, notes } = await enlist(python, plane, ['tick'], { drainSeconds: 30 })
    const id = await plane.submit({ kind: 'tick', queue, payload: { seconds: 1 } })
    const next = await plane.submit({ kind: 'tick', queue, payload: { seconds: 1 } })
    await firstNote(notes)
    expect((await stopped(worker)).code).toBe(0)
    expect(await plane.job(id)).toMatchObject({ state: 'SUCCEEDED', attempt: 1 })
    expect(await plane.job(next)).toMatchObject({ state: 'PENDING', attempt: 0 })
  })
})

describe.concurrent('the processes of a worker', () => {
  let plane: Plane
  beforeAll(() => {
    plane = planes.on('sqlite')
  })

  const POLICY = { lease_ttl_seconds: 1, continuation_seconds: 2, backoff: { base_seconds: 0 } }

  async function hanging(kind: 'hang' | 'busy', times: Partial<SubmitRequest> = {}) {
    const enlisted = await enlist(python, plane, [kind])
    const id = await plane.submit({ kind, queue: enlisted.queue, ...POLICY, ...times })
    const note = await firstNote(enlisted.notes)
    return { ...enlisted, id, pids: [note.pid, note.away] }
  }

  function attempts(job: JobDetail): [JobState, string | undefined][] {
    return job.runs.map(({ state, error }) => [state, error?.code])
  }

  /** The leader does not retry the job while a test waits. */
  const LONG = { lease_ttl_seconds: 3600, continuation_seconds: 3600 }
  const DIED = [
    ['FAILED', 'AGENT_DIED'],
    ['SUCCEEDED', undefined],
  ]

  test('a killed worker takes its handlers along, and reports them after a restart', async () => {
    const { worker, id, pids, options } = await hanging('hang', LONG)
    worker.kill('SIGKILL')
    await gone(...pids)
    // The token file alone makes it the same worker again.
    const { enroll: _, ...again } = options
    const next = startWorker(python, again)
    const job = await plane.jobIn(id, 'SUCCEEDED')
    expect(attempts(job)).toEqual(DIED)
    expect(new Set(job.runs.map(({ assigned_worker_id }) => assigned_worker_id)).size).toBe(1)
    const { stderr } = await stopped(next)
    expect(stderr).toContain(`delivered what was left of job ${id}: it failed with AGENT_DIED`)
    expect(existsSync(`${options.tokenFile}.runs`)).toBe(false)
  })

  test("after a kill with its supervisor, a worker first kills the handler's processes", async () => {
    const { worker, id, pids, options } = await hanging('hang', LONG)
    const [supervisor = 0] = childrenOf(worker.pid)
    process.kill(supervisor, 'SIGSTOP')
    worker.kill('SIGKILL')
    process.kill(supervisor, 'SIGKILL')
    const { enroll: _, ...again } = options
    const next = startWorker(python, again)
    expect(attempts(await plane.jobIn(id, 'SUCCEEDED'))).toEqual(DIED)
    expect(pids.filter((pid) => pid !== undefined && alive(pid))).toEqual([])
    await stopped(next)
  })

  test('a second process of a worker does not report a live run as dead', async () => {
    const { worker, id, pids, options } = await hanging('hang', LONG)
    const { enroll: _, ...again } = options
    const second = startWorker(python, again)
    await vi.waitFor(() => expect(second.said()).toContain(' takes '), WITHIN)
    // A live supervisor counts, too, because it has not yet ended its handlers.
    const [supervisor = 0] = childrenOf(worker.pid)
    process.kill(supervisor, 'SIGSTOP')
    worker.kill('SIGKILL')
    // By this time the second process has checked several times.
    await plane.jobIn(await plane.submit({ kind: 'hang', queue: options.queue }), 'SUCCEEDED')
    expect(attempts(await plane.job(id))).toEqual([['RUNNING', undefined]])
    process.kill(supervisor, 'SIGCONT')
    expect(attempts(await plane.jobIn(id, 'SUCCEEDED'))).toEqual(DIED)
    expect(pids.filter((pid) => pid !== undefined && alive(pid))).toEqual([])
    await stopped(second)
  })

  test.each(['hang', 'busy'] as const)('a stopped worker does not keep its handler running: %s', async (kind) => {
    const { worker, id, pids } = await hanging(kind)
    worker.kill('SIGSTOP')
    await gone(...pids)
    // No other worker has the job yet: the control plane waits longer than the handler lives.
    expect((await plane.job(id)).runs).toHaveLength(1)
    await vi.waitFor(async () => expect((await plane.job(id)).runs).toHaveLength(2), WITHIN)
    if (kind === 'hang') {
      worker.kill('SIGCONT')
      expect(attempts(await plane.jobIn(id, 'SUCCEEDED'))).toEqual([
        ['TIMED_OUT', expect.any(String)],
        ['SUCCEEDED', undefined],
      ])
      await stopped(worker)
    } else worker.kill('SIGKILL')
  })

  test('a worker that is stopped for a moment continues its run', async () => {
    const { queue, worker, notes } = await enlist(python, plane, ['tick'])
    const id = await plane.submit({ kind: 'tick', queue, payload: { seconds: 4 }, ...POLICY, continuation_seconds: 20 })
    await firstNote(notes)
    worker.kill('SIGSTOP')
    await vi.waitFor(async () => expect((await plane.job(id)).runs[0]?.continuation_state).toBe('CONFIRMING'), WITHIN)
    worker.kill('SIGCONT')
    const { attempt, runs } = await plane.jobIn(id, 'SUCCEEDED')
    expect(runs).toHaveLength(1)
    expect(new Set(notes().map((note) => note.attempt))).toEqual(new Set([attempt]))
    await stopped(worker)
  })

  test('the outcome of a handler is not lost while its worker is stopped', async () => {
    const { queue, worker, notes } = await enlist(python, plane, ['tick'])
    const id = await plane.submit({ kind: 'tick', queue, payload: { seconds: 1 }, ...POLICY, continuation_seconds: 20 })
    const { pid } = await firstNote(notes)
    worker.kill('SIGSTOP')
    await gone(pid)
    worker.kill('SIGCONT')
    expect((await plane.jobIn(id, 'SUCCEEDED')).runs).toHaveLength(1)
    await stopped(worker)
  })

  test('a worker that is cut off stops its run, and reports that later', async () => {
    const { proxy, url } = await TcpProxy.before(plane.urls[0] ?? '')
    const { queue, worker, notes } = await enlist(python, plane, ['wait'], { url })
    const times = { lease_ttl_seconds: 30, continuation_seconds: 4 }
    const id = await plane.submit({ kind: 'wait', queue, max_attempts: 1, ...times })
    const { pid } = await firstNote(notes)
    proxy.rule = () => 'cut'
    proxy.cutAll()
    await gone(pid)
    proxy.rule = () => 'pass'
    expect(await plane.jobIn(id, 'FAILED')).toMatchObject({ error: { code: 'CONTINUATION_LOST' } })
    await stopped(worker)
    await proxy.close()
  })

  test('without its supervisor a worker releases its runs and ends', async () => {
    const { queue, worker, notes } = await enlist(python, plane, ['wait'])
    const id = await plane.submit({ kind: 'wait', queue, ...POLICY, max_attempts: 1 })
    const { pid } = await firstNote(notes)
    const [supervisor = 0] = childrenOf(worker.pid)
    expect(supervisor).toBeGreaterThan(0)
    process.kill(supervisor, 'SIGKILL')
    const { code, stderr } = await worker.ended
    expect(code).toBe(1)
    expect(stderr).toContain('The supervisor process has ended')
    await gone(pid, supervisor)
    // ORPHANED means that a running poll got the next run, too, and released it.
    const ends = [
      ['FAILED', 'RELEASED'],
      [expect.stringMatching(/^(PENDING|ORPHANED)$/), undefined],
    ]
    await vi.waitFor(async () => expect(attempts(await plane.job(id))).toEqual(ends), WITHIN)
  })
})
