import {
  existsSync,
  globSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import { afterAll, beforeAll, expect, test, vi } from 'vitest'
import { agentProgram } from '../../../../../scripts/testing/programs.ts'
import { selfSigned } from '../../../testing/http/certificate.ts'
import {
  type AgentGiven,
  ask,
  enrollToken,
  killAgents,
  NOTE,
  NOTE_ON,
  overlaps,
  readLedger,
  seen,
  startAgent,
  WITHIN,
} from '../../testing/agent.ts'
import { begin, ichido, ichidoJson, killAll, type Serving, serve } from '../../testing/cli.ts'

const folder = mkdtempSync(join(tmpdir(), 'ichido-agent-test-'))
let server: Serving
let names = 0
const unique = (name: string) => `${name}-${++names}`

beforeAll(async () => {
  server = await serve({ DATA_DIR: join(folder, 'data') })
})
afterAll(async () => {
  await killAgents()
  await killAll()
  rmSync(folder, { recursive: true })
})

/** The machine's own Node, which is older than ours, where there is one; else ours. */
const oldNode = existsSync('/usr/bin/node') ? '/usr/bin/node' : process.execPath

const submit = (queue: string, payload: unknown, more: object = {}) =>
  ask<{ job_id: string }>(server.url, 'POST', '/v1/jobs', { kind: 'k', queue, payload, ...more })
const result = (jobId: string) =>
  ask<{ state: string; result: unknown }>(server.url, 'GET', `/v1/jobs/${jobId}/result?wait_seconds=50`)

interface Job {
  state: string
  retry_count: number
  runs: { state: string; attempt: number; error: { code: string; message: string; traceback?: string } | null }[]
}
const job = (jobId: string) => ask<Job>(server.url, 'GET', `/v1/jobs/${jobId}`)

async function agent(queue: string, work: readonly [string, string], args: readonly string[] = []) {
  const enroll = await enrollToken(server.url, queue)
  const state = join(folder, unique('state'))
  return startAgent({ url: server.url, queue, work, state, args: ['--enroll', enroll, ...args] })
}

test.concurrent('the server serves the agent as one file without a database driver', async () => {
  const response = await fetch(`${server.url}/agent.mjs`)
  expect(response.headers.get('content-type')).toBe('text/javascript; charset=utf-8')
  const text = await response.text()
  expect(text).toBe(readFileSync(agentProgram(), 'utf8'))
  const imported = [...text.matchAll(/(?:^import .*? from |\bimport\(|\brequire\()\s*["']([^"']+)["']/gm)]
  expect(imported.length).toBeGreaterThan(5)
  expect(imported.map(([, name = '']) => name).filter((name) => !name.startsWith('node:'))).toEqual([])
  expect(text).not.toMatch(/node:sqlite|postgres|\bpg\b|redis|kysely/i)
  const again = await fetch(`${server.url}/agent.mjs`, {
    headers: { 'if-none-match': response.headers.get('etag') ?? '' },
  })
  expect(again.status).toBe(304)
})

test.concurrent('on an older Node over TLS, the line of `workers enroll` leads to a result', async () => {
  const { cert, key } = selfSigned()
  const [certFile, keyFile] = [join(folder, 'tls.crt'), join(folder, 'tls.key')]
  writeFileSync(certFile, cert)
  writeFileSync(keyFile, key)
  const tls = { TLS_CERT_FILE: certFile, TLS_KEY_FILE: keyFile }
  const own = await serve({ DATA_DIR: join(folder, 'tls'), HOST: 'localhost', ...tls })
  const trust = { NODE_EXTRA_CA_CERTS: certFile }
  const env = { ICHIDO_URL: own.url, ...trust }
  const { command, enroll_token: token } = await ichidoJson(['workers', 'enroll', 'pc', '--queue', 'q'], env)
  expect(command).toContain(`--url ${own.url} --enroll ${token} --name pc --queue q`)
  const state = join(folder, unique('state'))
  const work = ['--exec', 'echo "{\\"slot\\": $ICHIDO_SLOT}" > $ICHIDO_RESULT_FILE'] as const
  const args = ['--enroll', token]
  const given = { url: own.url, queue: 'q', work, state, node: oldNode, args }
  const doubtful = await startAgent(given)
  expect(await doubtful.ended).toBe(1)
  expect(doubtful.stderr()).toMatch(
    /^ichido-agent: The certificate .* is not trusted: .* Set NODE_EXTRA_CA_CERTS to .*\n$/,
  )
  const started = await startAgent({ ...given, env: trust })
  const submitted = await ichido(['submit', 'k', '--queue', 'q', '--wait'], env)
  expect(submitted).toMatchObject({ code: 0, stdout: expect.stringContaining('"slot": 0') })
  expect(await started.drain()).toBe(0)
  await own.stop()
})

test.concurrent('on an older Node over HTTP, the same line again is the same worker', async () => {
  const queue = unique('again')
  const state = join(folder, unique('state'))
  const args = ['--enroll', await enrollToken(server.url, queue), '--name', 'pc']
  const given = { url: server.url, queue, work: ['--exec', 'true'] as const, state, node: oldNode, args }
  const identities: unknown[] = []
  for (const n of [1, 2]) {
    const started = await startAgent(given)
    expect(await result((await submit(queue, n)).job_id)).toMatchObject({ state: 'SUCCEEDED', result: null })
    expect(await started.drain()).toBe(0)
    identities.push(JSON.parse(readFileSync(join(state, 'identity.json'), 'utf8')))
  }
  expect(statSync(join(state, 'identity.json')).mode & 0o777).toBe(0o600)
  const [first, second] = identities as { worker_id: string; name: string }[]
  expect(second).toMatchObject({ worker_id: first?.worker_id, name: 'pc' })
})

test.concurrent('on an older Node a handler without await of progress is reported with its cost', async () => {
  const queue = unique('told')
  const file = join(folder, 'tells.mjs')
  const work = "({ progress, cost, log }) => (log('one'), progress('half'), log('two'), cost(0.5), 'done')"
  writeFileSync(file, `export default { work: ${work}, maps: () => ({ items: [0, new Map()] }) }`)
  const args = ['--enroll', await enrollToken(server.url, queue)]
  const given = { url: server.url, queue, work: ['--handlers', file] as const, state: join(folder, unique('state')) }
  const started = await startAgent({ ...given, node: oldNode, args })
  const { job_id: jobId } = await submit(queue, 1, { kind: 'work' })
  expect(await result(jobId)).toMatchObject({ state: 'SUCCEEDED', result: 'done', cost: 0.5 })
  const { data } = await ask<{ data: { text: string }[] }>(server.url, 'GET', `/v1/jobs/${jobId}/logs`)
  expect(data.map(({ text }) => text).join('')).toBe('one\ntwo\n')
  const { job_id: noJson } = await submit(queue, 1, { kind: 'maps' })
  await expect(result(noJson)).rejects.toThrow('INVALID_VALUE: result.items[1] is a Map, which JSON cannot hold')
  expect(await ask(server.url, 'GET', `/v1/jobs/${noJson}`)).toMatchObject({ state: 'FAILED', runs: [{}] })
  expect(await started.drain()).toBe(0)
})

test.concurrent('a program gets payload, artifacts and variables; its output is collected', async () => {
  const queue = unique('given')
  const { job_id: jobId } = await submit(queue, { n: 1 }, { timeout_seconds: 30, artifacts: [{ name: 'in.txt' }] })
  const upload = `${server.url}/v1/artifacts?name=in.txt&job_id=${jobId}`
  const bytes = { method: 'POST', headers: { 'content-type': 'application/octet-stream' }, body: 'input' }
  expect((await fetch(upload, bytes)).status).toBe(201)
  const started = await agent(queue, [
    '--exec',
    `set -e
    cmp - "$ICHIDO_PAYLOAD_FILE"
    cat "$ICHIDO_PAYLOAD_FILE"
    echo problem >&2
    echo '{"percent":10}' >&3
    echo '{"percent":20}' >> "$ICHIDO_PROGRESS_FILE"
    cp in.txt outputs/out.txt
    if env | grep -q ichido_; then exit 9; fi
    echo "[$ICHIDO_ATTEMPT, $ICHIDO_TIMEOUT_SECONDS, $ICHIDO_LAST_PROGRESS, \\"$ICHIDO_JOB_ID\\"]" > "$ICHIDO_RESULT_FILE"`,
  ])
  expect(await result(jobId)).toMatchObject({ state: 'SUCCEEDED', result: [1, 30, null, jobId] })
  await started.drain()
  const logs = await ask<{ data: object[] }>(server.url, 'GET', `/v1/jobs/${jobId}/logs`)
  expect(logs.data).toMatchObject([
    { n: 0, stream: 'stdout', text: '{"n":1}' },
    { n: 1, stream: 'stderr', text: 'problem\n' },
  ])
  const env = { ICHIDO_URL: server.url }
  const printed = await ichido(['jobs', 'logs', jobId], env)
  expect(printed).toMatchObject({ code: 0, stdout: '{"n":1}problem\n', stderr: 'run 1:\n' })
  expect(await ichidoJson(['jobs', 'logs', jobId], env)).toMatchObject({ data: logs.data })
  const [, workerName = ''] = /worker (.+?) \(/.exec(started.stderr()) ?? []
  expect((await ichido(['jobs', 'show', jobId], env)).stdout).toContain(` ${workerName} (`)
  const artifacts = await ask<{ data: { name: string; artifact_id: string }[] }>(
    server.url,
    'GET',
    `/v1/jobs/${jobId}/artifacts`,
  )
  const made = artifacts.data.find(({ name }) => name === 'out.txt')
  expect(await (await fetch(`${server.url}/v1/artifacts/${made?.artifact_id}`)).text()).toBe('input')
  const { events } = await (
    await fetch(`${server.url}/v1/jobs/${jobId}/events`, { headers: { accept: 'application/json' } })
  ).json()
  expect(events.filter(({ stage }: { stage: string }) => stage === 'progress')).toMatchObject([
    { seq: 1, data: { percent: 10 } },
    { seq: 2, data: { percent: 20 } },
  ])
})

test.concurrent('a leading ./ of the command means the folder of the agent; each run is announced', async () => {
  const queue = unique('here')
  const cwd = join(folder, "it's here")
  mkdirSync(cwd)
  const program = '#!/bin/sh\n[ $(cat) = 1 ] || exit 3\necho "\\"$ICHIDO_AGENT_DIR $1\\"" > $ICHIDO_RESULT_FILE\n'
  writeFileSync(join(cwd, 'run.sh'), program, { mode: 0o755 })
  const state = join(folder, unique('state'))
  const args = ['--enroll', await enrollToken(server.url, queue), '--name', 'pc']
  const work = ['--exec', './run.sh "a b"'] as const
  const started = await startAgent({ url: server.url, queue, work, state, cwd, args })
  const { job_id: well } = await submit(queue, 1)
  expect(await result(well)).toMatchObject({ result: `${cwd} a b` })
  const { job_id: badly } = await submit(queue, 2, { max_attempts: 1 })
  await expect(result(badly)).rejects.toThrow('JOB_FAILED')
  expect(await started.drain()).toBe(0)
  const said = started.stderr()
  expect(said).toMatch(new RegExp(`worker pc \\(\\S+, process ${started.pid}\\) takes ${queue}`))
  expect(said).toMatch(
    new RegExp(`job ${well} \\(k, attempt 1\\) began\n.*job ${well} .* succeeded, after \\d+\\.\\d s`),
  )
  expect(said).toContain(`job ${badly} (k, attempt 1) failed with EXIT_3: The program exited with code 3, after`)
  expect(said).not.toContain('waits for its runs')
  expect(said).toMatch(/stopped\n$/)
})

test.concurrent('a failed program fails its run with its exit code, and its files are kept', async () => {
  const queue = unique('failing')
  const program = `case $(cat) in
    '"code"') echo as far as it got > outputs/why.txt; echo no such thing >&2; exit 3;;
    '"signal"') kill -SEGV $$;;
    '"words"') echo '{"error": {"code": "NO_GPU", "message": "all are taken", "retryable": false}}' > $ICHIDO_RESULT_FILE
      exit 1;;
    '"half"') echo '{"half' > $ICHIDO_RESULT_FILE;;
    '"long"') sleep 60;;
  esac`
  const started = await agent(queue, ['--exec', program], ['--concurrency', '3'])
  const cases: Record<string, object> = {
    code: { code: 'EXIT_3', message: 'The program exited with code 3: no such thing', traceback: 'no such thing\n' },
    signal: { code: 'SIGSEGV', message: 'The program was ended by SIGSEGV' },
    words: { code: 'NO_GPU', message: 'all are taken' },
    half: { code: 'INVALID_RESULT' },
    long: { code: 'TIMEOUT', message: 'The run took longer than 1 s' },
  }
  const errors = await Promise.all(
    Object.keys(cases).map(async (name) => {
      // The one that says so itself is not tried again.
      const max_attempts = name === 'words' ? 4 : 1
      const { job_id: jobId } = await submit(queue, name, { max_attempts, timeout_seconds: name === 'long' ? 1 : 30 })
      await expect(result(jobId)).rejects.toThrow('JOB_FAILED')
      const { runs } = await job(jobId)
      expect(runs).toHaveLength(1)
      const files = await ask<{ data: { name: string }[] }>(server.url, 'GET', `/v1/jobs/${jobId}/artifacts`)
      expect(files.data.map((file) => file.name)).toEqual(name === 'code' ? ['why.txt'] : [])
      return [name, runs[0]?.error]
    }),
  )
  expect(Object.fromEntries(errors)).toMatchObject(cases)
  await started.drain()
})

test.concurrent('a canceled job stops its program; the next attempt gets the last progress', async () => {
  const queue = unique('stopped')
  const started = await agent(queue, [
    '--exec',
    `case $(cat) in
      '"cancel"') echo '{"ready":1}' >&3; exec sleep 60;;
      *) [ $ICHIDO_ATTEMPT = 2 ] && echo "$ICHIDO_LAST_PROGRESS" > $ICHIDO_RESULT_FILE && exit
         echo '{"step":41}' >&3; echo '{"step":42}' >&3; exit 1;;
    esac`,
  ])
  // None is due before the test ends.
  const noHeartbeat = { lease_ttl_seconds: 3600, continuation_seconds: 3600 }
  const backoff = { base_seconds: 0.1, jitter: 0 }
  const { job_id: retried } = await submit(queue, 'retry', { backoff })
  expect(await result(retried)).toMatchObject({ result: { step: 42 } })

  const { job_id: canceled } = await submit(queue, 'cancel', noHeartbeat)
  const events = `${server.url}/v1/jobs/${canceled}/events?wait_seconds=20`
  await vi.waitFor(async () => {
    const response = await fetch(events, { headers: { accept: 'application/json' } })
    expect(await response.text()).toContain('"ready"')
  }, WITHIN)
  await ask(server.url, 'POST', `/v1/jobs/${canceled}/cancel`)
  await expect(result(canceled)).rejects.toThrow('JOB_FAILED')
  expect(await job(canceled)).toMatchObject({ state: 'CANCELED', runs: [{ error: { code: 'CANCELED' } }] })
  await started.drain()
})

test.concurrent('a stopping agent finishes its runs, or releases them without a retry', async () => {
  const queue = unique('drained')
  const [ledger, go] = [join(folder, unique('ledger')), join(folder, unique('go'))]
  writeFileSync(ledger, '')
  const env = { LEDGER: ledger }
  const untilGo = `until [ -f ${go} ]; do sleep 0.05; done`
  const program = `${NOTE('began')}; case $(cat) in '"short"') ${untilGo};; *) [ $ICHIDO_ATTEMPT = 3 ] || exec sleep 600;; esac`
  const state = join(folder, unique('state'))
  const args = ['--enroll', await enrollToken(server.url, queue), '--concurrency', '2']
  const given = { url: server.url, queue, work: ['--exec', program] as const, state, env }
  const first = await startAgent({ ...given, args: [...args, '--drain', '600'] })
  const { job_id: short } = await submit(queue, 'short')
  const { job_id: long } = await submit(queue, 'long')
  for (const jobId of [short, long]) await seen(ledger, { jobId, what: 'began' })
  const { job_id: later } = await submit(queue, 'short')
  first.signal('SIGTERM')
  const said = (words: string) => vi.waitFor(() => expect(first.stderr()).toContain(words), WITHIN)
  await said('takes no more work and waits for its runs')
  writeFileSync(go, '')
  await said(`job ${short} (k, attempt 1) succeeded`)
  // Before a second has passed it would be the same signal.
  await pause(1_100)
  first.signal('SIGTERM')
  expect(await first.ended).toBe(0)
  expect(first.stderr()).toContain(`job ${long} (k, attempt 1) released`)
  expect(await job(short)).toMatchObject({ state: 'SUCCEEDED' })
  // The worker is detached, so it does not count as busy.
  const standing = async () => {
    const { data } = await ask<{ data: { state: string; queues: string[] }[] }>(
      server.url,
      'GET',
      '/v1/workers?limit=100',
    )
    return data.find((worker) => worker.queues.includes(queue))?.state
  }
  expect(await standing()).toBe('detached')
  const waiting_for = expect.objectContaining({ reason: 'no_worker' })
  expect(await job(later)).toMatchObject({ state: 'PENDING', runs: [{ attempt: 0 }], waiting_for })
  expect(await job(long)).toMatchObject({
    retry_count: 0,
    runs: [{ error: { code: 'RELEASED' } }, { state: 'PENDING' }],
  })

  const second = await startAgent({ ...given, args: [...args, '--drain', '0'] })
  await seen(ledger, { jobId: long, attempt: 2, what: 'began' })
  expect(await result(later)).toMatchObject({ state: 'SUCCEEDED' })
  expect(await standing()).toBe('online')
  expect(await second.drain()).toBe(0)
  expect(second.stderr()).toContain(`job ${long} (k, attempt 2) released`)

  const third = await startAgent({ ...given, args })
  expect(await result(long)).toMatchObject({ state: 'SUCCEEDED' })
  expect(overlaps(readLedger(ledger))).toEqual([])
  await third.drain()
})

test.concurrent('an undelivered result is kept and delivered after a restart, with its cost', async () => {
  const queue = unique('kept')
  const dataDir = join(folder, unique('data'))
  const before = await serve({ DATA_DIR: dataDir })
  const [go, wrote] = [join(folder, unique('go')), join(folder, unique('wrote'))]
  const program = `until [ -f ${go} ]; do sleep 0.05; done
    echo '"precious"' > $ICHIDO_RESULT_FILE; echo 3 > $ICHIDO_COST_FILE; touch ${wrote}`
  const state = join(folder, unique('state'))
  const args = ['--enroll', await enrollToken(before.url, queue)]
  const given = { url: before.url, queue, work: ['--exec', program] as const, state, args }
  const first = await startAgent(given)
  const { job_id: jobId } = await ask<{ job_id: string }>(before.url, 'POST', '/v1/jobs', { kind: 'k', queue })
  await vi.waitFor(
    async () => expect(await ask<Job>(before.url, 'GET', `/v1/jobs/${jobId}`)).toMatchObject({ state: 'RUNNING' }),
    WITHIN,
  )
  await before.kill9()
  writeFileSync(go, '')
  await vi.waitFor(() => expect(globSync(join(state, 'runs', '*', 'report.json'))).toHaveLength(1), WITHIN)
  await first.kill9()

  const after = await serve({ DATA_DIR: dataDir, PORT: new URL(before.url).port })
  const second = await startAgent(given)
  const ended = `/v1/jobs/${jobId}/result?wait_seconds=50`
  expect(await ask(after.url, 'GET', ended)).toMatchObject({ state: 'SUCCEEDED', result: 'precious', cost: 3 })
  expect(await ask<Job>(after.url, 'GET', `/v1/jobs/${jobId}`)).toMatchObject({ runs: [{ attempt: 1 }] })
  await second.drain()
  expect(readdirSync(join(state, 'runs'))).toEqual([])
  await after.stop()
})

test.concurrent('an agent refuses wrong options, and ends when it is revoked', async () => {
  const queue = unique('refused')
  const state = join(folder, unique('state'))
  const ledger = join(folder, unique('ledger'))
  writeFileSync(ledger, '')
  const work = ['--exec', NOTE_ON] as const
  const begun = async (given: Partial<AgentGiven>) => {
    const started = await startAgent({ url: server.url, queue, work, state, env: { LEDGER: ledger }, ...given })
    return { started, ended: async () => ({ code: await started.ended, stderr: started.stderr() }) }
  }
  const plain = await (await begun({ url: 'http://192.0.2.1:8001' })).ended()
  expect(plain).toMatchObject({ code: 2, stderr: expect.stringContaining('--insecure') })
  expect(await (await begun({})).ended()).toMatchObject({ code: 1, stderr: expect.stringContaining('not enrolled') })
  const args = ['--enroll', await enrollToken(server.url, queue)]
  const { started, ended } = await begun({ args })
  await vi.waitFor(() => expect(started.stderr()).toContain('takes refused'), WITHIN)
  expect(await (await begun({ args })).ended()).toMatchObject({
    code: 1,
    stderr: expect.stringContaining(`Another agent (process ${started.pid})`),
  })
  // Revoked in the middle of a run, it stops the program and ends.
  const { job_id: jobId } = await submit(queue, null, { lease_ttl_seconds: 2, continuation_seconds: 60 })
  await seen(ledger, { jobId, what: 'runs' })
  const { worker_id: workerId } = JSON.parse(readFileSync(join(state, 'identity.json'), 'utf8'))
  await ask(server.url, 'DELETE', `/v1/workers/${workerId}`)
  expect(await ended()).toMatchObject({ code: 1, stderr: expect.stringContaining('revoked') })
  const { length } = readLedger(ledger)
  await new Promise((resolve) => setTimeout(resolve, 300))
  expect(readLedger(ledger)).toHaveLength(length)
})

test.concurrent('a drained agent says so once, and takes the job when it is resumed', async () => {
  const queue = unique('drained')
  const state = join(folder, unique('state'))
  const args = ['--enroll', await enrollToken(server.url, queue)]
  const started = await startAgent({ url: server.url, queue, work: ['--exec', 'true'], state, args })
  await vi.waitFor(() => expect(started.stderr()).toContain('takes drained'), WITHIN)
  const { worker_id: workerId } = JSON.parse(readFileSync(join(state, 'identity.json'), 'utf8'))
  await ask(server.url, 'POST', `/v1/workers/${workerId}/drain`)
  const { job_id: jobId } = await submit(queue, null)
  await vi.waitFor(() => expect(started.stderr()).toContain('the control plane drains this worker'), WITHIN)
  expect(await job(jobId)).toMatchObject({ state: 'PENDING' })
  const worker = await ask<{ meta: object }>(server.url, 'POST', `/v1/workers/${workerId}/resume`)
  expect(worker.meta).toMatchObject({ version: expect.stringMatching(/^\d+\.\d+\.\d+$/) })
  expect(await result(jobId)).toMatchObject({ state: 'SUCCEEDED' })
  expect(started.stderr().match(/drains this worker/g)).toHaveLength(1)
  await started.drain()
})

test.concurrent('a job of compat/cloud is completed by `ichido worker --exec`', async () => {
  const env = { ICHIDO_URL: server.url }
  const provider = 'somewhere'
  const worker = begin(
    [
      'worker',
      '--queue',
      `cloud.${provider}`,
      '--state',
      join(folder, unique('state')),
      '--exec',
      'cat > outputs/model',
    ],
    env,
  )
  const submitted = await ask<{ job_id: string }>(server.url, 'POST', `/api/cloud/jobs/submit?provider=${provider}`, {
    config_name_to_load: 'tiny',
  })
  expect(submitted).toMatchObject({ success: true })
  await vi.waitFor(async () => {
    const status = await ask(server.url, 'GET', `/api/cloud/jobs/${submitted.job_id}?provider=${provider}`)
    expect(status).toMatchObject({ job: { status: 'completed' } })
  }, WITHIN)
  worker.signal('SIGTERM')
  expect(await worker.ended).toMatchObject({ code: 0 })
})
