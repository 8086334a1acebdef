import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { JobDetail } from '@ichido/sdk/protocol'
import { afterAll, afterEach, beforeAll, expect, test, vi } from 'vitest'
import { full } from '../../scripts/testing/size.ts'
import { type TestApp, testApp } from '../../server/src/testing/http/app.ts'
import { submitZpe } from '../../server/src/testing/http/zpe.ts'
import { requirePw } from './install.ts'
import { runPw } from './pw.ts'
import { parsePwInput } from './pw-input.ts'

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url))
const job = { content: readFileSync(here('h2.in'), 'utf8'), mobile_indices: [0, 1] }

let http: TestApp
let url: string
let folder: string
const agents = new Set<ChildProcess>()
beforeAll(async () => {
  http = await testApp('sqlite')
  url = await http.app.listen({ host: '127.0.0.1', port: 0 })
  folder = mkdtempSync(join(tmpdir(), 'zpe-agent-'))
})
afterEach(async () => {
  for (const agent of agents) await stop(agent)
})
afterAll(async () => {
  await http.close()
  rmSync(folder, { recursive: true })
})

/** Replaces pw.x with a script that prints recorded output. */
function programs(script: string): string {
  const programs = mkdtempSync(join(folder, 'bin-'))
  writeFileSync(join(programs, 'pw.x'), `#!/bin/sh\n${script}\n`, { mode: 0o755 })
  return programs
}

const REPLAY = `
if grep -q "'relax'" "$2"; then step=relax; elif grep -q 3.8855 "$2"; then step=stretch; else step=compress; fi
exec cat '${here('recorded')}'/pbe-$step.out`

async function startAgent(script: string): Promise<ChildProcess> {
  const { body } = await http.call('POST', '/calc/zpe/compute/enroll-tokens')
  const PATH = `${programs(script)}:/usr/bin:/bin`
  const agent = spawn(process.execPath, [here('agent.ts')], {
    env: { PATH, ZPE_URL: url, ZPE_ENROLL_TOKEN: (body as { token: string }).token },
    stdio: ['ignore', 'ignore', 'inherit'],
  })
  agents.add(agent)
  return agent
}

async function stop(agent: ChildProcess): Promise<void> {
  agents.delete(agent)
  if (agent.exitCode !== null || agent.signalCode !== null) return
  agent.kill('SIGTERM')
  await once(agent, 'exit')
}

const detail = async (jobId: string) => (await http.call('GET', `/v1/jobs/${jobId}`)).body as JobDetail
const until = (look: () => Promise<void>) => vi.waitFor(look, { timeout: 30_000, interval: 50 })

async function failure(jobId: string): Promise<string | undefined> {
  await until(async () => expect((await detail(jobId)).runs).toHaveLength(2))
  return (await detail(jobId)).runs[0]?.error?.code
}

test('the agent registers, calculates, and reports all that S1 requires', async () => {
  const jobId = await submitZpe(http, job)
  const agent = await startAgent(REPLAY)
  await until(async () => expect((await detail(jobId)).state).toBe('SUCCEEDED'))
  const { body } = await http.call('GET', `/v1/jobs/${jobId}/result`)
  expect(body).toMatchObject({
    result: { zpe_ev: expect.closeTo(0.2672, 4), freqs_cm: [expect.closeTo(4310.4, 1)] },
    summary_text: expect.stringContaining('0.2672 eV'),
    freqs_csv: expect.stringContaining('4310.395'),
    meta: {
      worker_hostname: expect.any(String),
      computation_time_seconds: expect.any(Number),
      qe_version: '6.7MaX',
      timestamp: expect.stringMatching(/^\d{4}-\d\d-\d\dT.*Z$/),
    },
  })
  await stop(agent)
  expect(agent.exitCode).toBe(0)
})

test.each([
  ['pw.x did not converge', `cat '${here('recorded/scf-not-converged.out')}'; exit 2`, 'QE_SCF_NOT_CONVERGED'],
  ['pw.x was killed', 'kill -9 $$', 'QE_KILLED'],
  ['pw.x said nothing', 'exit 0', 'QE_PARSE_ERROR'],
])('the agent reports that %s', async (_, script, code) => {
  const jobId = await submitZpe(http, job)
  await startAgent(script)
  expect(await failure(jobId)).toBe(code)
  expect(await detail(jobId)).toMatchObject({ state: 'PENDING', retry_count: 1 })
})

test('an invalid input fails the job without a retry', async () => {
  const content = 'hello\nATOMIC_POSITIONS angstrom\nH 0 0 0\nH 0 0 0.74\n'
  const jobId = await submitZpe(http, { content, mobile_indices: [0, 1] })
  await startAgent(REPLAY)
  await until(async () => expect((await detail(jobId)).state).toBe('FAILED'))
  expect(await detail(jobId)).toMatchObject({ attempt: 1, error: { code: 'QE_INPUT_ERROR' } })
})

test('a stopping agent ends the calculation and releases the job', async () => {
  const jobId = await submitZpe(http, job)
  const agent = await startAgent(`touch '${folder}/started'; exec sleep 600`)
  await until(async () => void readFileSync(join(folder, 'started')))
  await stop(agent)
  expect(await detail(jobId)).toMatchObject({ state: 'PENDING', runs: [{ error: { code: 'QE_KILLED' } }, {}] })
})

test('the agent sends no token to another machine over plain http', async () => {
  const env = { ZPE_URL: 'http://example.org', ZPE_ENROLL_TOKEN: 'x' }
  const agent = spawn(process.execPath, [here('agent.ts')], { env, stdio: ['ignore', 'ignore', 'pipe'] })
  let said = ''
  agent.stderr?.setEncoding('utf8').on('data', (part: string) => {
    said += part
  })
  await once(agent, 'close')
  expect(agent.exitCode).not.toBe(0)
  expect(said).toContain('plain http')
})

/** Tests with the real Quantum ESPRESSO. */
if (full) {
  beforeAll(() => requirePw())

  const h2 = job.content
  test.each([
    ['QE_SCF_NOT_CONVERGED', h2.replace('conv_thr = 1.0d-10', 'conv_thr = 1.0d-10, electron_maxstep = 2')],
    ['QE_RELAX_NOT_CONVERGED', h2.replace("'relax'", "'relax', nstep = 1")],
    ['QE_TIME_LIMIT', h2.replace("'relax'", "'relax', max_seconds = 0")],
    ['QE_PSEUDO_MISSING', h2.replace('H.pbe-kjpaw.UPF', 'H.none.UPF')],
    ['QE_INPUT_ERROR', h2.replace('ecutrho', 'ecutrhoo')],
    ['QE_RUNTIME_ERROR', h2.replace('3.875', '3.125')],
  ])('pw.x fails with %s', async (code, content) => {
    const options = { folder: mkdtempSync(join(folder, 'pw-')), signal: new AbortController().signal }
    const failing = runPw('relax', parsePwInput(content), options)
    await expect(failing).rejects.toThrow(expect.objectContaining({ code }))
  })

  const main = async (input: string) => {
    const child = spawn(process.execPath, ['--conditions=ichido-source', here('main.ts'), input])
    let said = ''
    for (const stream of [child.stdout, child.stderr]) {
      stream.setEncoding('utf8').on('data', (part: string) => {
        said += part
      })
    }
    await once(child, 'close')
    const zpeEv = /^([\d.]+) eV is/m.exec(said)?.[1]
    if (zpeEv === undefined) throw new Error(`It came to nothing: ${said}`)
    return { code: child.exitCode, zpeEv: Number(zpeEv) }
  }

  test('H2 with PBE gives 0.26 to 0.28 eV, from submission to result over TLS', async () => {
    expect(await main('h2.in')).toEqual({ code: 0, zpeEv: expect.closeTo(0.2672, 3) })
  })

  test('H2 with LDA is outside of that range', async () => {
    expect(await main('h2-lda.in')).toEqual({ code: 1, zpeEv: expect.closeTo(0.2585, 3) })
  })
}
