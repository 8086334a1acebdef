import { once } from 'node:events'
import { createServer, type IncomingHttpHeaders, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { text } from 'node:stream/consumers'
import type { JobShape, Page } from '@ichido/sdk/protocol'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { killAll } from '../../server/src/cli/testing/cli.ts'
import { openDroppingProxy } from './testing/dropping-proxy.ts'
import { ENGINES, type Plane, type Planes, startPlanes } from './testing/plane.ts'
import { commandLine, findPython, script } from './testing/python.ts'

let python: string
let planes: Planes
beforeAll(async () => {
  ;[python, planes] = await Promise.all([findPython(), startPlanes()])
})
afterAll(async () => {
  await planes.stop()
  await killAll()
})

const FAKE_JOB = { job_id: 'j', kind: 'k', queue: 'default', state: 'PENDING', created_at: '', run_at: '' }

describe('answers to a call', () => {
  let server: Server
  let requests: { path: string; body: { idempotency_key?: string }; headers: IncomingHttpHeaders }[]
  let answers: { status: number; code?: string; headers?: Record<string, string>; body?: string }[]
  let url: string

  beforeAll(async () => {
    server = createServer(async (request, response) => {
      const body = JSON.parse((await text(request)) || '{}') as { idempotency_key?: string }
      requests.push({ path: request.url ?? '', body, headers: request.headers })
      const { status, code, headers = {}, body: raw } = answers.shift() ?? { status: 201 }
      if (status === 0) return void request.socket.destroy()
      const error = { code, message: 'so it is', details: { state: 'X' }, request_id: 'r' }
      response.writeHead(status, headers).end(raw ?? JSON.stringify(code === undefined ? FAKE_JOB : { error }))
    })
    await once(server.listen(0, '127.0.0.1'), 'listening')
    url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  })
  afterAll(() => server.close())
  afterEach(() => expect(answers).toEqual([]))

  async function submit(given: typeof answers, { patience = 60, times = 1 } = {}): Promise<unknown[]> {
    answers = given
    requests = []
    const code = `
ichido.RETRY_FIRST_SECONDS = 0.01
client = ichido.Client(os.environ['URL'], 'secret', patience=${patience})
for _ in range(${times}):
    try:
        print(json.dumps(client.submit('k', {'n': 1}).id))
    except ichido.IchidoError as error:
        print(json.dumps([type(error).__name__, error.code, error.retryable, getattr(error, 'status', None)]))`
    return script(python, code, { URL: url })
  }

  test('temporary errors are retried with the same generated key', async () => {
    const passing = [
      { status: 0 },
      { status: 408, body: 'too slow' },
      { status: 502, body: '<html>' },
      { status: 200, body: 'a page of somebody else' },
      { status: 500, code: 'INTERNAL' },
      { status: 503, code: 'UNAVAILABLE', headers: { 'retry-after': '0.1' } },
      { status: 409, code: 'IDEMPOTENCY_IN_PROGRESS' },
    ]
    expect(await submit([...passing])).toEqual(['j'])
    expect(requests).toHaveLength(passing.length + 1)
    expect(new Set(requests.map(({ body }) => body.idempotency_key)).size).toBe(1)
    expect(requests[0]?.body.idempotency_key).toMatch(/^python-[0-9a-f-]{36}$/)
    expect(requests.every(({ headers }) => headers.authorization === 'Bearer secret')).toBe(true)
  })

  test('the client waits for Retry-After', async () => {
    const beganMs = performance.now()
    expect(await submit([{ status: 429, code: 'RATE_LIMITED', headers: { 'retry-after': '1' } }])).toEqual(['j'])
    expect(performance.now() - beganMs).toBeGreaterThanOrEqual(1_000)
  })

  test('the client does not wait for a Retry-After beyond its patience', async () => {
    const limited = { status: 429, code: 'RATE_LIMITED', headers: { 'retry-after': '30' } }
    expect(await submit([limited], { patience: 5 })).toEqual([['Refused', 'RATE_LIMITED', true, 429]])
    expect(requests).toHaveLength(1)
  })

  test('refusals are not retried, and raise the matching exception', async () => {
    const refusals: [number, string, string][] = [
      [400, 'INVALID_PAYLOAD', 'Refused'],
      [401, 'UNAUTHENTICATED', 'Unauthenticated'],
      [403, 'FORBIDDEN', 'Forbidden'],
      [404, 'NOT_FOUND', 'NotFound'],
      [409, 'IDEMPOTENCY_KEY_REUSED', 'KeyReused'],
      [422, 'IDEMPOTENCY_KEY_REUSED', 'KeyReused'],
      [409, 'QUOTA_EXCEEDED', 'QuotaExceeded'],
    ]
    const said = await submit(
      refusals.map(([status, code]) => ({ status, code })),
      { times: refusals.length },
    )
    expect(said).toEqual(refusals.map(([status, code, type]) => [type, code, false, status]))
    expect(requests).toHaveLength(refusals.length)
  })

  test('retry() has no key, so it is not repeated after a lost answer', async () => {
    answers = [{ status: 0 }]
    requests = []
    const code = `
try:
    ichido.Client(os.environ['URL']).retry('j')
except ichido.Unreachable as error:
    print(json.dumps(error.code))`
    expect(await script(python, code, { URL: url })).toEqual(['UNREACHABLE'])
    expect(requests.map(({ path }) => path)).toEqual(['/v1/jobs/j/retry'])
  })
})

test('a token in the URL is sent, but appears in no message', async () => {
  const headers: unknown[] = []
  const server = createServer((request, response) => {
    headers.push(request.headers.authorization)
    response.writeHead(201).end(JSON.stringify(FAKE_JOB))
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  const { port } = server.address() as AddressInfo
  const code = `
ichido.Client(os.environ['URL']).submit('k')
ichido.Client(os.environ['URL'], 'given').submit('k')
try:
    ichido.Client('http://ci:in-url@127.0.0.1:1', patience=0).submit('k')
except ichido.Unreachable as error:
    print(json.dumps(error.message))
try:
    ichido.Client('http://ci:in-url@example.org')
except ValueError as error:
    print(json.dumps(str(error)))`
  try {
    const said = await script(python, code, { URL: `http://ci:in-url@127.0.0.1:${port}` })
    expect(headers).toEqual(['Bearer in-url', 'Bearer given'])
    expect(said).toEqual([
      expect.stringMatching(/^No answer from http:\/\/127\.0\.0\.1:1: .*refused/),
      expect.stringMatching(/^http:\/\/example\.org would show/),
    ])
  } finally {
    server.close()
  }
})

test('plain http to another machine is refused unless it is allowed', async () => {
  const code = `
def tried(url, **options):
    try:
        ichido.Client(url, 'secret', **options)
        return 'taken'
    except ValueError as error:
        return str(error)
hosts = ['http://10.0.0.1', 'http://example.org:8001', 'http://127.0.0.1.example.org', 'ftp://localhost', 'nonsense']
good = ['http://localhost:1', 'http://127.0.0.2', 'http://[::1]:8001', 'https://example.org']
print(json.dumps([tried(url) for url in hosts]))
print(json.dumps([tried(url) for url in good] + [tried('http://10.0.0.1', insecure=True)]))
def worker(**options):
    return ichido.Worker('http://10.0.0.1', 'x', queues=['q'], handlers={'k': print}, **options)
try:
    worker()
except ValueError:
    worker(insecure=True)
    print('"refused"')`
  const [refused, taken, worker] = await script(python, code)
  expect(refused).toEqual([
    expect.stringContaining('use https'),
    expect.stringContaining('use https'),
    expect.stringContaining('use https'),
    expect.stringContaining('is not an http or https address'),
    expect.stringContaining('is not an http or https address'),
  ])
  expect(taken).toEqual(Array(5).fill('taken'))
  expect(worker).toBe('refused')
})

test('an unreachable server gives exit code 1 and a reason, wrong usage gives 2', async () => {
  const nobody = ['submit', 'k', '1', '--url', 'http://127.0.0.1:1']
  const cut = `import ichido, sys; ichido.Client.__init__.__kwdefaults__['patience'] = 0.1; sys.exit(ichido.main(${JSON.stringify(nobody)}))`
  await expect(script(python, cut)).rejects.toThrow(/ended with 1: UNREACHABLE: .*refused/)
  for (const args of [
    ['submit', 'k', '{'],
    ['submit', 'k', '--wait', '1w'],
    ['submit'],
    ['dance'],
    ['work', '--queue', 'q', 'k=nowhere:f'],
  ]) {
    expect(await commandLine(python, args)).toMatchObject({ code: 2, stdout: '' })
  }
})

describe.concurrent.each(ENGINES)('on %s', (engine) => {
  let plane: Plane
  beforeAll(() => {
    plane = planes.on(engine)
  })

  const jobsOf = async (queue: string) => (await plane.call<Page<JobShape>>('GET', `/v1/jobs?queue=${queue}`)).data

  test('a proxy loses answers, but one submit gives one job, and each of many does, too', async () => {
    const proxy = await openDroppingProxy(plane.urls[0] ?? '')
    const code = `
client = ichido.Client(os.environ['URL'])
job = client.submit('k', {'n': 0}, queue='lossy', labels={'n': '0'}, delay_seconds=3600)
again = client.submit('k', {'n': 0}, queue='lossy', labels={'n': '0'}, delay_seconds=3600, key=client.get(job.id)['idempotency_key'])
print(json.dumps([job.replayed, again.replayed, job.id == again.id, job.state]))
many = [ichido.Submission('k', {'n': n}, queue='lossy', delay_seconds=3600) for n in range(1, 20)]
many.append(ichido.Submission('not a name', queue='lossy'))
jobs = client.submit_many(many)
print(json.dumps([job.replayed for job in jobs[:-1]]))
print(json.dumps([type(jobs[-1]).__name__, jobs[-1].code, jobs[-1].status]))
print(json.dumps(client.cancel(job.id)['state']))
try:
    client.result(job.id)
except ichido.JobFailed as error:
    print(json.dumps(type(error).__name__))`
    const [first, many, bad, canceled, ended] = await script(python, code, { URL: proxy.url })
    proxy.close()
    expect(first).toEqual([true, true, true, 'PENDING'])
    expect(many).toEqual(Array(19).fill(true))
    expect(bad).toEqual(['Refused', 'INVALID_PAYLOAD', 400])
    expect([canceled, ended]).toEqual(['CANCELED', 'JobCanceled'])
    expect(await jobsOf('lossy')).toHaveLength(20)
    expect(proxy.dropped).toEqual(expect.arrayContaining(['/v1/jobs', '/v1/jobs/batch', '/v1/jobs/…/cancel']))
  })

  test('the command line submits with a key, and waits as long as it should', async () => {
    const env = { ICHIDO_URL: plane.urls[0] ?? '' }
    const args = ['submit', 'k', '{"a": 1}', '--queue', 'line', '--key', 'once']
    const first = await commandLine(python, args, env)
    expect(first).toMatchObject({ code: 0, stderr: '' })
    expect(JSON.parse(first.stdout)).toMatchObject({ kind: 'k', queue: 'line', state: 'PENDING', replayed: false })
    const waited = await commandLine(python, [...args, '--wait', '0.1'], env)
    expect(waited).toMatchObject({ code: 3, stdout: '', stderr: expect.stringContaining('RESULT_NOT_READY') })
    expect(await commandLine(python, [...args, '--wait', '100ms'], env)).toMatchObject({ code: 3 })
    const other = await commandLine(python, args.with(2, '{"a": 2}'), env)
    expect(other).toMatchObject({ code: 1, stderr: expect.stringContaining('IDEMPOTENCY_KEY_REUSED') })
    expect(await jobsOf('line')).toHaveLength(1)
  })
})
