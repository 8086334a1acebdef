import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { Agent, type IncomingMessage, request } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { size } from '../../../scripts/testing/size.ts'
import { type Attacker, attack } from '../../src/cli/testing/attackers.ts'
import { ichidoJson, killAll, type Serving, serve } from '../../src/cli/testing/cli.ts'

const ATTACKERS = 8
const QUIET_MS = size(1_000, 10_000)
const ATTACK_MS = size(3_000, 60_000)
/** The slowest of fifty submits is the p99, so on a busy machine the small size cannot be as exact as the stated limit. */
const QUIET_P99_MIN_MS = size(10, 0)
/** Per attacker. */
const [SILENT, STREAMS, POLLS] = [size(50, 200), size(20, 100), size(20, 100)]

const dataDir = mkdtempSync(join(tmpdir(), 'ichido-attackers-'))
let server: Serving
let admin: string
beforeAll(async () => {
  admin = (await ichidoJson(['token', 'create', '--user', 'root', '--role', 'admin'], { DATA_DIR: dataDir })).token
  server = await serve({ DATA_DIR: dataDir })
})
afterAll(async () => {
  await killAll()
  rmSync(dataDir, { recursive: true })
})

async function post<Body>(path: string, token: string, body: object): Promise<Body> {
  const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json' }
  const answer = await fetch(server.url + path, { method: 'POST', headers, body: JSON.stringify(body) })
  if (!answer.ok) throw new Error(await answer.text())
  return (await answer.json()) as Body
}

const submitter = async (user: string) =>
  (await post<{ token: string }>('/v1/tokens', admin, { user_id: user, role: 'submitter' })).token

async function attacker(i: number): Promise<Attacker> {
  const token = await submitter(`attacker-${i}`)
  const enrolled = await post<{ enroll_token: string }>('/v1/workers/enroll-tokens', admin, { label: `w${i}` })
  const worker = { enroll_token: enrolled.enroll_token, name: `w${i}` }
  const { worker_token } = await post<{ worker_token: string }>('/v1/workers/register', admin, worker)
  const { job_id } = await post<{ job_id: string }>('/v1/jobs', token, { kind: 'k', queue: 'followed' })
  return { address: `127.0.0.${10 + i}`, token, workerToken: worker_token, jobId: job_id }
}

/**
 * How long the server's thread and this thread have waited for a CPU so far, in ms. Attackers, server and other tests
 * share the machine, so these waits are not the server's fault.
 */
function waitedMs(): number {
  const places = [`/proc/${server.pid}/task/${server.pid}/schedstat`, '/proc/thread-self/schedstat']
  return places.reduce((sum, place) => sum + Number(readFileSync(place, 'utf8').split(' ')[1]) / 1e6, 0)
}

interface Times {
  /** Without the waits for a CPU. */
  ownMs: number[]
  wallMs: number[]
}

/** Submits one job after the other for `ms`. */
async function submitFor(ms: number, token: string): Promise<Times> {
  const agent = new Agent({ keepAlive: true })
  const times: Times = { ownMs: [], wallMs: [] }
  const body = JSON.stringify({ kind: 'k', queue: 'own', payload: { n: 1 } })
  const headers = {
    authorization: `Bearer ${token}`,
    'content-type': 'application/json',
    'content-length': body.length,
  }
  const untilMs = performance.now() + ms
  while (performance.now() < untilMs) {
    const [beganMs, waitedBeforeMs] = [performance.now(), waitedMs()]
    const answer = await new Promise<IncomingMessage>((resolve, reject) => {
      request(`${server.url}/v1/jobs`, { method: 'POST', agent, headers }, resolve).on('error', reject).end(body)
    })
    await text(answer)
    const wallMs = performance.now() - beganMs
    times.wallMs.push(wallMs)
    times.ownMs.push(Math.max(0, wallMs - (waitedMs() - waitedBeforeMs)))
    expect(answer.statusCode).toBe(201)
  }
  agent.destroy()
  return times
}

const p99 = (times: readonly number[]) => times.toSorted((a, b) => a - b)[Math.floor(times.length * 0.99)] ?? 0

test(
  'eight concurrent attackers do not keep another user from submitting',
  async () => {
    const token = await submitter('ann')
    const attackers = await Promise.all(Array.from({ length: ATTACKERS }, (_, i) => attacker(i)))
    await submitFor(QUIET_MS / 2, token)
    const quiet = await submitFor(QUIET_MS, token)
    const port = Number(new URL(server.url).port)
    const attacking = await attack({ port, attackers, silent: SILENT, streams: STREAMS, polls: POLLS })
    const attacked = await submitFor(ATTACK_MS, token)
    const { json, open } = await attacking.end()
    // The attack lasted all the time, and none of its JSON was accepted.
    expect(Object.keys(json)).toEqual(['413'])
    expect(json['413']).toBeGreaterThan(ATTACKERS)
    expect(open).toBeGreaterThan((ATTACKERS * (SILENT + STREAMS + POLLS)) / 2)
    const says = (times: Times) => `${p99(times.ownMs).toFixed(1)} ms (by the clock ${p99(times.wallMs).toFixed(1)} ms)`
    console.log(`p99 of a submit: quiet ${says(quiet)}, attacked ${says(attacked)}`)
    expect(p99(attacked.ownMs)).toBeLessThan(10 * Math.max(p99(quiet.ownMs), QUIET_P99_MIN_MS))
  },
  QUIET_MS * 2 + ATTACK_MS + 120_000,
)
