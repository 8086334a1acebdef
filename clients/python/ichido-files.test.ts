import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { ArtifactShape } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest'
import { type Chunk, type Link, TcpProxy } from '../../scripts/testing/proxy.ts'
import { INHERITED } from '../../sdk/src/worker/agent/process/inherited.ts'
import { killAll } from '../../server/src/cli/testing/cli.ts'
import { type Answer, openAnsweringProxy } from './testing/answering-proxy.ts'
import { openDroppingProxy } from './testing/dropping-proxy.ts'
import { enlist, stopped, WITHIN } from './testing/enlist.ts'
import { type Plane, startPlane } from './testing/plane.ts'
import { commandLine, findPython, killWorkers, script } from './testing/python.ts'

let python: string
let plane: Plane
beforeAll(async () => {
  ;[python, plane] = await Promise.all([findPython(), startPlane('sqlite')])
})
afterAll(async () => {
  await killWorkers()
  await plane.stop()
  await killAll()
})

const SIZE = 8 * 1024 * 1024
const CUT_AT = 3 * 1024 * 1024

/** A new folder with one file in it. */
function folderWith(name: string, content: Buffer | string): string {
  const folder = join(plane.folder, `files-${randomBytes(4).toString('hex')}`)
  mkdirSync(folder)
  writeFileSync(join(folder, name), content)
  return folder
}

/** The worker's variables. No handler may see them, except for its language. */
const WITHHELD = { ICHIDO_TOKEN: 'x', DATABASE_URL: 'x', REDIS_URL: 'x', SLURM_JWT: 'x', APP: 'x', LC_ALL: 'C.UTF-8' }

const HEAD = `
ichido.RETRY_FIRST_SECONDS = 0.01
client = ichido.Client(os.environ['URL'])
os.chdir(os.environ['FOLDER'])`

describe.concurrent('files', () => {
  test('files reach a job and come back although each answer is lost once', async () => {
    const proxy = await openDroppingProxy(plane.urls[0] ?? '')
    const folder = folderWith('in.bin', randomBytes(100_000))
    writeFileSync(join(folder, 'empty'), '')
    const code = `${HEAD}
job = client.submit('k', files=['in.bin', 'empty'], artifacts=[{'name': 'more.txt'}], queue='files')
print(json.dumps(sorted([artifact['name'], artifact['state']] for artifact in client.artifacts(job.id))))
sent = client.upload('in.bin', job_id=job.id, name='more.txt')
assert client.upload('in.bin', job_id=job.id, name='more.txt') == sent
print(json.dumps([sent['job_id'] == job.id, sent['name'], sent['state']]))
print(json.dumps(client.get(job.id)['awaits_artifacts']))
for artifact in client.artifacts(job.id):
    client.download(artifact['artifact_id'], 'back-' + artifact['name'])
try:
    client.download(sent['artifact_id'], 'no/where')
except ichido.IchidoError as error:
    print(json.dumps([error.code, error.retryable]))
try:
    client.upload('in.bin', job_id=job.id, name='never.txt')
except ichido.NotFound as error:
    print(json.dumps(error.code))`
    const said = await script(python, code, { URL: proxy.url, FOLDER: folder })
    proxy.close()
    expect(said).toEqual([
      [
        ['empty', 'ready'],
        ['in.bin', 'ready'],
        ['more.txt', 'awaited'],
      ],
      [true, 'more.txt', 'ready'],
      false,
      ['FILE_ERROR', false],
      'NOT_FOUND',
    ])
    expect(readdirSync(folder).sort()).toEqual(['back-empty', 'back-in.bin', 'back-more.txt', 'empty', 'in.bin'])
    const content = readFileSync(join(folder, 'in.bin'))
    for (const name of ['back-in.bin', 'back-more.txt'])
      expect(readFileSync(join(folder, name)).equals(content)).toBe(true)
  })

  test.each([
    ['up', "client.upload('large')", 'large'],
    ['down', "client.download(os.environ['ID'], 'back')", 'back'],
  ] as const)('transfers continue after an interruption: %s', async (way, call, result) => {
    const content = randomBytes(SIZE)
    const folder = folderWith('large', content)
    const sent = `${HEAD}\nprint(json.dumps(client.upload('large', name='sent')['artifact_id']))`
    const URL = plane.urls[0] ?? ''
    const [id] = way === 'down' ? ((await script(python, sent, { URL, FOLDER: folder })) as [string]) : ['']
    if (way === 'up') writeFileSync(join(folder, 'large'), randomBytes(SIZE))
    const { proxy, url } = await TcpProxy.before(URL)
    let passed = 0
    const cut = new Set<Link>()
    let isOver: Promise<unknown> = Promise.resolve()
    proxy.rule = async ({ direction, data, link }: Chunk) => {
      // Data that the proxy had read before the cut also arrives here.
      if (cut.has(link)) return 'hold'
      // The data of the last connection must arrive before the next connection asks for the offset.
      await isOver
      if (direction !== way) return 'pass'
      passed += data.length
      if (passed < CUT_AT * (cut.size + 1) || cut.size === 2) return 'pass'
      cut.add(link)
      // The passed data arrives at the server, which then sees the end of the connection.
      const server = link.vanish()
      isOver = once(server, 'close')
      server.end()
      return 'hold'
    }
    await script(python, `${HEAD}\n${call}`, { URL: url, FOLDER: folder, ID: id })
    await proxy.close()
    expect(cut.size).toBe(2)
    // Without resuming it would have been 3 + 3 + 8 MiB.
    expect(passed).toBeLessThan(SIZE + CUT_AT)
    expect(passed).toBeGreaterThan(SIZE)
    if (way === 'down') expect(readFileSync(join(folder, result)).equals(content)).toBe(true)
    expect(readdirSync(folder).filter((name) => name.startsWith('.'))).toEqual([])
  })

  test('an unfinished upload of other content does not block a new one of the same name', async () => {
    const folder = folderWith('new', randomBytes(50_000))
    const base = plane.urls[0] ?? ''
    const url = `${base}/v1/artifacts?name=new&size_bytes=50000`
    const headers = { 'content-type': 'application/octet-stream', 'upload-offset': '0' }
    const begun = await fetch(url, { method: 'POST', headers, body: randomBytes(1_000) })
    expect(begun.status).toBe(202)
    const { artifact_id: left } = (await begun.json()) as ArtifactShape
    const code = `${HEAD}
sent = client.upload('new')
client.download(sent['artifact_id'], 'back')
print(json.dumps(sent['artifact_id']))`
    const [id] = await script(python, code, { URL: base, FOLDER: folder })
    expect(readFileSync(join(folder, 'back')).equals(readFileSync(join(folder, 'new')))).toBe(true)
    expect(id).toBe(left)
  })

  test('the command line transfers files, and shows the log', async () => {
    const env = { ICHIDO_URL: plane.urls[0] ?? '' }
    const { queue, worker } = await enlist(python, plane, ['talk'])
    const folder = folderWith('in.txt', 'input')
    const file = join(folder, 'in.txt')
    const line = ['submit', 'talk', '1', '--queue', queue, '--key', 'with-file', '--file', file]
    const job = JSON.parse((await commandLine(python, line, env)).stdout) as { id: string }
    await plane.jobIn(job.id, 'SUCCEEDED')
    const again = await commandLine(python, line, env)
    expect(JSON.parse(again.stdout)).toMatchObject({ id: job.id, replayed: true })
    expect((await commandLine(python, ['logs', job.id], env)).stdout).toBe('to stdout 1\nto stderr: 一度\n')
    const listed = await commandLine(python, ['artifacts', job.id], env)
    const artifact = JSON.parse(listed.stdout) as ArtifactShape
    expect(artifact).toMatchObject({ name: 'in.txt', state: 'ready', size_bytes: 5 })
    const back = join(folder, 'back.txt')
    expect(await commandLine(python, ['download', artifact.artifact_id, back], env)).toMatchObject({ code: 0 })
    expect(readFileSync(back, 'utf8')).toBe('input')
    const sent = await commandLine(python, ['upload', file, '--name', 'other.txt'], env)
    expect(JSON.parse(sent.stdout)).toMatchObject({ name: 'other.txt', state: 'ready', job_id: null })
    expect(await commandLine(python, ['upload', join(folder, 'none')], env)).toMatchObject({ code: 1 })
    await stopped(worker)
  })

  test('a run has a temporary folder with its inputs, and its outputs are stored', async () => {
    const proxy = await openDroppingProxy(plane.urls[0] ?? '')
    const { queue, worker, options } = await enlist(python, plane, ['folder'], { url: proxy.url, concurrency: 4 })
    const folder = folderWith('in.txt', 'input')
    const code = `${HEAD}
def submit(**payload):
    return client.submit('folder', {'outputs': ['out.txt'], **payload}, files=['in.txt'], queue='${queue}', max_attempts=1).id
good = [submit(), submit(outputs=['out.txt', '.hidden'])]
bad = [submit(fail=True), submit(outputs=['so?'])]
results = [client.result(job) for job in good]
made = [[a for a in client.artifacts(job) if a['run_id']] for job in good]
client.download(made[0][0]['artifact_id'], 'back')
print(json.dumps([results, [[a['name'] for a in artifacts] for artifacts in made], open('back').read()]))
for job in bad:
    try:
        client.result(job)
    except ichido.JobFailed as error:
        print(json.dumps([error.details['error']['code'], [a['name'] for a in client.artifacts(job) if a['run_id']]]))`
    const [good, ...bad] = await script(python, code, { URL: plane.urls[0] ?? '', FOLDER: folder })
    const [results, made, back] = good as [{ found: string[]; folder: string; agent: string }[], string[][], string]
    expect(results.map(({ found }) => found)).toEqual(Array(2).fill(['in.txt', 'outputs']))
    expect(new Set(results.map((result) => result.folder)).size).toBe(2)
    expect(results[0]?.agent).toBe(join(import.meta.dirname, 'testing'))
    expect(made).toEqual(Array(2).fill(['out.txt']))
    expect(back).toBe('input')
    expect(bad).toEqual([
      ['LookupError', []],
      ['INVALID_PAYLOAD', []],
    ])
    // Some answers to results were lost. The folders of those runs exist until the retry is answered.
    const left = () => expect(results.filter((result) => existsSync(result.folder))).toEqual([])
    await vi.waitFor(left, WITHIN)
    await stopped(worker)
    proxy.close()
    expect(existsSync(`${options.tokenFile}.runs`)).toBe(false)
  })

  test("links and pipes in the place of a handler's files fail the run for good", async () => {
    const { queue, worker } = await enlist(python, plane, ['trick', 'surroundings'], { concurrency: 4, env: WITHHELD })
    const tricks = {
      'outputs is not a folder of its own': 'rmdir outputs && ln -s /etc outputs',
      'work is not a folder of its own': 'cd .. && rm -r work && mkdir -p aside/outputs && ln -s aside work',
      'outputs/link is a symbolic link': 'touch outputs/z && ln -s /etc/passwd outputs/link',
      'outputs/pipe is not a regular file': 'mkfifo outputs/pipe',
    }
    const ids = await Promise.all(
      Object.values(tricks).map((payload) => plane.submit({ kind: 'trick', queue, payload, max_attempts: 3 })),
    )
    const failed = await Promise.all(ids.map((id) => plane.jobIn(id, 'FAILED')))
    expect(failed.map(({ error, runs }) => [error?.code, error?.message, runs.length])).toEqual(
      Object.keys(tricks).map((message) => ['FILE_REFUSED', message, 1]),
    )
    const asked = await plane.submit({ kind: 'surroundings', queue, payload: null })
    await plane.jobIn(asked, 'SUCCEEDED')
    const code = `print(json.dumps(ichido.Client(os.environ['URL']).result('${asked}')))
print(json.dumps(ichido._INHERITED))`
    const [inherited, listed] = await script(python, code, { URL: plane.urls[0] ?? '' })
    const ours = ['ICHIDO_AGENT_DIR', 'ICHIDO_ATTEMPT', 'ICHIDO_JOB_ID', 'ICHIDO_LEASE_ID', 'ICHIDO_SLOT', 'LEDGER']
    const own = ['HOME', 'LC_ALL', 'PATH', 'PYTHONPATH', 'PYTHONPYCACHEPREFIX', 'TMPDIR']
    // Python itself sets LC_CTYPE in some locales, and a shell sets PWD.
    for (const names of inherited as string[][]) {
      expect(names.filter((name) => !['LC_CTYPE', 'PWD'].includes(name))).toEqual([...ours, ...own].toSorted())
    }
    expect(listed).toEqual(INHERITED)
    await stopped(worker)
  })

  /** A worker whose file transfers get this answer, and the number of those answers. */
  async function meeting(call: RegExp, answer: (n: number) => Answer | undefined) {
    let met = 0
    const url = plane.urls[0] ?? ''
    const proxy = await openAnsweringProxy(url, (made) => (call.test(made) ? answer(++met) : undefined))
    const enlisted = await enlist(python, plane, ['folder'], { url: proxy.url })
    const folder = folderWith('in.txt', 'input')
    const submit = async (payload: object, files: readonly string[] = []) => {
      const made = `client.submit('folder', json.loads('${JSON.stringify(payload)}'), queue='${enlisted.queue}', max_attempts=1`
      const code = `${HEAD}\nprint(json.dumps(${made}, files=${JSON.stringify(files)}).id))`
      return (await script(python, code, { URL: url, FOLDER: folder }))[0] as string
    }
    return { ...enlisted, submit, met: () => met, proxy }
  }
  const UP = /^POST .v1.artifacts/
  const DOWN = /^GET .v1.artifacts/

  test.each([
    [503, 'ARTIFACTS_OFF'],
    [500, 'INTERNAL'],
  ])('outputs that the control plane cannot store fail the run: %d %s', async (status, code) => {
    const { submit, met, worker, proxy } = await meeting(UP, () => ({ status, code }))
    const id = await submit({ outputs: ['out.txt'] })
    const message = 'The control plane did not accept outputs/out.txt: Not now'
    expect(await plane.jobIn(id, 'FAILED')).toMatchObject({ error: { code, message } })
    expect(met()).toBe(6)
    // This run has already failed with another error.
    const failed = await submit({ outputs: ['out.txt'], fail: true })
    expect(await plane.jobIn(failed, 'FAILED')).toMatchObject({ error: { code: 'LookupError' } })
    const { stderr } = await stopped(worker)
    expect(stderr).not.toContain('cannot be reached')
    proxy.close()
  })

  test.each([
    [{ status: 502 }],
    [{ status: 503, code: 'UNAVAILABLE' }],
    [{ status: 429, code: 'RATE_LIMITED' }],
    [{ status: 401, code: 'UNAUTHENTICATED' }],
  ])('outputs are retried throughout an outage: %j', async (answer) => {
    const { submit, met, worker, proxy } = await meeting(UP, (n) => (n <= 10 ? answer : undefined))
    await plane.jobIn(await submit({ outputs: ['out.txt'] }), 'SUCCEEDED')
    expect(met()).toBeGreaterThan(10)
    await stopped(worker)
    proxy.close()
  })

  test.each([
    [{ status: 502 }, 'HTTP_502'],
    [{ status: 500, code: 'INTERNAL' }, 'INTERNAL'],
  ])('inputs that cannot be fetched fail the run: %j', async (answer, code) => {
    const { submit, met, worker, proxy } = await meeting(DOWN, () => answer)
    const id = await submit({ outputs: [] }, ['in.txt'])
    const message = expect.stringContaining('in.txt could not be fetched')
    expect(await plane.jobIn(id, 'FAILED')).toMatchObject({ error: { code, message } })
    expect(met()).toBe(6)
    await stopped(worker)
    proxy.close()
  })

  test.each([
    ['inputs', DOWN],
    ['outputs', UP],
  ])('a canceled or stopping worker does not wait for %s', async (_, call) => {
    const { submit, met, worker, proxy } = await meeting(call, () => ({ status: 502, retryAfter: 300 }))
    const metTimes = (times: number) => vi.waitFor(() => expect(met()).toBe(times), WITHIN)
    const canceled = await submit({ outputs: ['out.txt'] }, ['in.txt'])
    await metTimes(1)
    await plane.call('POST', `/v1/jobs/${canceled}/cancel`)
    await plane.jobIn(canceled, 'CANCELED')
    const given = await submit({ outputs: ['out.txt'] }, ['in.txt'])
    await metTimes(2)
    expect((await stopped(worker)).code).toBe(0)
    expect(await plane.job(given)).toMatchObject({ state: 'PENDING', retry_count: 0 })
    proxy.close()
  })
})
