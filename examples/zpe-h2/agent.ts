// A worker of S1: it registers with an enroll token, polls for calculations, runs them and reports. All its calls go out over
// HTTPS, and it knows only the address and a token of the control plane.
import { mkdtempSync, rmSync } from 'node:fs'
import { hostname, tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { runPw } from './pw.ts'
import { QeError } from './qe-error.ts'
import { type ZpePayload, zeroPointEnergy } from './zero-point-energy.ts'

/** S1 §3: 5 to 30 s between two polls of an empty queue, with jitter. */
const POLL_FROM_MS = 5_000
const POLL_TO_MS = 30_000
const RETRY_MS = 2_000
/** A calculation is stopped before its lease ends, so that the agent can still report. */
const WORK_PART = 0.95

interface Lease {
  job_id: string
  payload: ZpePayload
  lease_id: string
  lease_ttl_seconds: number
}

const { ZPE_URL = '', ZPE_ENROLL_TOKEN = '' } = process.env
const { protocol, hostname: host } = new URL(ZPE_URL)
if (protocol !== 'https:' && !['localhost', '127.0.0.1', '[::1]'].includes(host)) {
  throw new Error(`ZPE_URL is ${ZPE_URL}: a token is not sent over plain http to another machine`)
}

const stopping = new AbortController()
for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.once(signal, () => stopping.abort(new QeError('QE_KILLED', `The worker was ended by ${signal}`)))
}

async function post(path: string, token: string | null, body?: object): Promise<Response> {
  return fetch(`${ZPE_URL}/calc/zpe/compute/${path}`, {
    method: 'POST',
    headers: {
      ...(token === null ? {} : { authorization: `Bearer ${token}` }),
      ...(body === undefined ? {} : { 'content-type': 'application/json' }),
    },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  })
}

async function register(): Promise<string> {
  const answer = await post('servers/register', null, { token: ZPE_ENROLL_TOKEN, name: hostname() })
  if (!answer.ok) throw new Error(`The enroll token was refused: ${answer.status} ${await answer.text()}`)
  const { worker_id, worker_token } = (await answer.json()) as { worker_id: string; worker_token: string }
  say(`registered as ${worker_id}`)
  return worker_token
}

async function work(token: string, lease: Lease): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'zpe-'))
  const startedMs = performance.now()
  const leftMs = lease.lease_ttl_seconds * 1000 * WORK_PART
  const late = AbortSignal.timeout(leftMs)
  const signal = AbortSignal.any([stopping.signal, late])
  say(`job ${lease.job_id}`)
  try {
    const outcome = await zeroPointEnergy(
      lease.payload,
      (calculation, input) => runPw(calculation, input, { folder, signal }),
      (step) => say(`  ${step}`),
    )
    const { qe_version, ...result } = outcome
    const meta = {
      worker_hostname: hostname(),
      computation_time_seconds: (performance.now() - startedMs) / 1000,
      qe_version,
      timestamp: new Date().toISOString(),
    }
    await report(token, lease, 'result', { ...result, meta }, late)
  } catch (error) {
    const { code, message } = error instanceof QeError ? error : new QeError('QE_RUNTIME_ERROR', String(error))
    const traceback = error instanceof Error ? error.stack : undefined
    // Another worker would not understand the input either.
    const retryable = code !== 'QE_INPUT_ERROR'
    await report(token, lease, 'failed', { error_code: code, error_message: message, traceback, retryable }, late)
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

/** Retries until it is answered or the lease has ended. A repeated report has no further effect. */
async function report(token: string, lease: Lease, what: 'result' | 'failed', body: object, late: AbortSignal) {
  const path = `jobs/${lease.job_id}/${what}`
  while (!late.aborted) {
    try {
      const answer = await post(path, token, { lease_id: lease.lease_id, ...body })
      say(`  ${what}: ${answer.status} ${await answer.text()}`)
      if (answer.status < 500) return
    } catch (error) {
      say(`  ${what}: ${String(error)}`)
    }
    await sleep(RETRY_MS)
  }
}

function say(line: string): void {
  process.stdout.write(`agent: ${line}\n`)
}

const token = await register()
let waitMs = POLL_FROM_MS
while (!stopping.signal.aborted) {
  const answer = await post('jobs/lease', token).catch((error: unknown) => say(`lease: ${String(error)}`))
  if (answer?.status === 200) {
    waitMs = POLL_FROM_MS
    await work(token, (await answer.json()) as Lease)
    continue
  }
  if (answer?.status === 401 || answer?.status === 403) throw new Error(`The token is refused: ${await answer.text()}`)
  await sleep(waitMs * (0.5 + Math.random() / 2), undefined, { signal: stopping.signal }).catch(() => {})
  waitMs = Math.min(POLL_TO_MS, waitMs * 2)
}
