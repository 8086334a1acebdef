// One command, from an empty folder to a zero-point energy: a control plane behind TLS, a worker that knows only its address
// and a token, and a submitter that reads the result back.
import { spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { setDefaultCACertificates } from 'node:tls'
import { fileURLToPath } from 'node:url'
import { Trouble } from '../../scripts/boot/trouble.mjs'
import { portFrom } from '../port.ts'
import { type ControlPlane, startControlPlane } from './control-plane.ts'
import { BadInput, readInput } from './input.ts'
import { requirePw } from './install.ts'
import type { ZpeResult } from './zero-point-energy.ts'

const EXPECTED_EV = { from: 0.26, to: 0.28 }
const GIVE_UP_MS = 600_000
const POLL_MS = 500

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url))
const say = (line: string) => process.stdout.write(`${line}\n`)

/** Aborts on a signal or after the timeout. */
const over = new AbortController()
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => over.abort(signal))
setTimeout(() => over.abort(`${GIVE_UP_MS / 1000} s have passed`), GIVE_UP_MS).unref()

try {
  // The input is checked before anything is installed or started.
  const content = readInput(process.argv[2] ?? 'h2.in')
  const port = portOf(process.env)
  await requirePw(say)
  process.exitCode = (await endToEnd(content, port)) ? 0 : 1
} catch (error) {
  if (!(error instanceof Trouble)) throw error
  say(error.message)
  process.exitCode = error instanceof BadInput ? 2 : 1
}

function portOf(env: NodeJS.ProcessEnv): number {
  try {
    return portFrom(env, 0)
  } catch (error) {
    throw new BadInput(error instanceof Error ? error.message : String(error))
  }
}

async function endToEnd(content: string, port: number): Promise<boolean> {
  const folder = mkdtempSync(join(tmpdir(), 'zpe-h2-'))
  try {
    const plane = await startControlPlane(folder, port)
    say(`control plane: ${plane.url}`)
    setDefaultCACertificates([plane.certificate])
    try {
      return await calculate(plane, content)
    } finally {
      await plane.stop()
    }
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

async function calculate(plane: ControlPlane, content: string): Promise<boolean> {
  const { operator, submitter } = plane.tokens
  const ask = async (path: string, token: string, body?: object): Promise<Response> => {
    const answer = await fetch(`${plane.url}/calc/zpe/${path}`, {
      method: body === undefined ? 'GET' : 'POST',
      headers: {
        authorization: `Bearer ${token}`,
        'content-type': 'application/json',
        'idempotency-key': randomUUID(),
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    })
    if (!answer.ok) throw new Trouble(`The control plane refused ${path}: ${answer.status} ${await answer.text()}`)
    return answer
  }

  const job = { content, mobile_indices: [0, 1], calc_mode: 'new', use_environ: false }
  const { job_id } = (await (await ask('jobs', submitter, job)).json()) as { job_id: string }
  say(`submitted: ${job_id}`)
  const { token } = (await (await ask('compute/enroll-tokens', operator, { label: 'lab' })).json()) as { token: string }
  const stopAgent = startAgent(plane, token)
  try {
    if (!(await finished(async () => (await ask(`jobs/${job_id}`, submitter)).json() as Promise<Status>))) return false
  } finally {
    await stopAgent()
  }
  const { result } = (await (await ask(`jobs/${job_id}/result`, submitter)).json()) as { result: ZpeResult }
  for (const kind of ['summary', 'freqs']) {
    say(`\n${kind}:\n${await (await ask(`jobs/${job_id}/files?kind=${kind}`, submitter)).text()}`)
  }
  const within = EXPECTED_EV.from <= result.zpe_ev && result.zpe_ev <= EXPECTED_EV.to
  say(`${result.zpe_ev.toFixed(4)} eV is ${within ? '' : 'NOT '}within ${EXPECTED_EV.from} to ${EXPECTED_EV.to} eV`)
  return within
}

function startAgent(plane: ControlPlane, enrollToken: string): () => Promise<void> {
  const { PATH = '', HOME = '' } = process.env
  const address = { ZPE_URL: plane.url, NODE_EXTRA_CA_CERTS: plane.certificateFile }
  const child = spawn(process.execPath, [here('agent.ts')], {
    env: { PATH, HOME, ...address, ZPE_ENROLL_TOKEN: enrollToken },
    stdio: ['ignore', 'inherit', 'inherit'],
  })
  const ended = once(child, 'exit').then(() => over.abort('the agent has ended'))
  return async () => {
    child.kill('SIGTERM')
    await ended
  }
}

interface Status {
  status: 'queued' | 'started' | 'finished' | 'failed'
  detail: string | null
}

async function finished(look: () => Promise<Status>): Promise<boolean> {
  let before = ''
  while (!over.signal.aborted) {
    const { status, detail } = await look()
    const said = detail === null ? status : `${status}: ${detail}`
    if (said !== before) say(said)
    before = said
    if (status === 'finished' || status === 'failed') return status === 'finished'
    await sleep(POLL_MS)
  }
  say(`given up: ${over.signal.reason}`)
  return false
}
