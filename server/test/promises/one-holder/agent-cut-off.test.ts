import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { JobDetail } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, expect, test, vi } from 'vitest'
import { TcpProxy } from '../../../../scripts/testing/proxy.ts'
import { type FreshDatabase, freshDatabase } from '../../../../scripts/testing/services.ts'
import { size } from '../../../../scripts/testing/size.ts'
import {
  ask,
  enrollToken,
  killAgents,
  NOTE,
  overlaps,
  readLedger,
  type StartedAgent,
  seen,
  startAgent,
  WITHIN,
} from '../../../src/cli/testing/agent.ts'
import { killAll, type Serving, serve } from '../../../src/cli/testing/cli.ts'

/**
 * Hazard 5 from end to end. An agent whose traffic is dropped keeps its run for the continuation time. It stops its
 * program before another agent gets the job.
 */

const folder = mkdtempSync(join(tmpdir(), 'ichido-h05-test-'))
const ledger = join(folder, 'ledger')
const queue = 'cut'
let database: FreshDatabase
let server: Serving
let proxy: TcpProxy
/** The agent behind the proxy. */
let remote: StartedAgent
/** The control plane's answers to the remote agent since its traffic passes again. */
let heard = ''

/** Notes the time until a file named after its job exists. Only the first attempt waits for that file. */
const PROGRAM = `${NOTE('began')}
  while [ $ICHIDO_ATTEMPT = 1 ] && ! [ -e "$FOLDER/$ICHIDO_JOB_ID" ]; do ${NOTE('$(date +%s%3N)')}; sleep 0.1; done
  ${NOTE('ended')}`

async function agent(name: string, url: string): Promise<StartedAgent> {
  const args = ['--enroll', await enrollToken(server.url, queue), '--name', name]
  const env = { LEDGER: ledger, FOLDER: folder }
  return startAgent({ url, queue, work: ['--exec', PROGRAM], state: join(folder, name), args, env })
}

beforeAll(async () => {
  writeFileSync(ledger, '')
  database = await freshDatabase()
  server = await serve({ DATA_DIR: join(folder, 'data'), DATABASE_URL: database.url })
  proxy = await TcpProxy.to('127.0.0.1', Number(new URL(server.url).port))
  remote = await agent('remote', `http://127.0.0.1:${proxy.port}`)
})
afterAll(async () => {
  await killAgents()
  await proxy.close()
  await killAll()
  await database.leave()
  rmSync(folder, { recursive: true, force: true })
})

const job = (jobId: string) => ask<JobDetail>(server.url, 'GET', `/v1/jobs/${jobId}`)

async function started(continuation_seconds: number): Promise<string> {
  const times = { lease_ttl_seconds: 1, continuation_seconds, backoff: { base_seconds: 0.1, jitter: 0 } }
  const { job_id } = await ask<{ job_id: string }>(server.url, 'POST', '/v1/jobs', { kind: 'k', queue, ...times })
  await seen(ledger, { jobId: job_id, attempt: 1, what: 'began' })
  return job_id
}

/** Drops all traffic without breaking a connection. */
function cutOff(): void {
  proxy.rule = () => 'hold'
}

/** Resolves with the deadline of the leader's wait, as the job shows it. */
function confirming(jobId: string): Promise<number> {
  return vi.waitFor(async () => {
    const [run] = (await job(jobId)).runs
    expect(run).toMatchObject({ state: 'RUNNING', continuation_state: 'CONFIRMING' })
    return Date.parse(run?.continuation_check_deadline_at ?? '')
  }, WITHIN)
}

test('after a short cut the agent keeps its run and finishes it on the first attempt', async () => {
  for (let round = 0; round < size(1, 5); round++) {
    const jobId = await started(15)
    cutOff()
    expect(await confirming(jobId)).toBeGreaterThan(Date.now())
    proxy.rule = () => 'pass'
    await vi.waitFor(async () => {
      expect((await job(jobId)).runs).toMatchObject([
        { continuation_state: 'NONE', continuation_check_deadline_at: null },
      ])
    }, WITHIN)
    writeFileSync(join(folder, jobId), '')
    await vi.waitFor(async () => {
      expect(await job(jobId)).toMatchObject({ state: 'SUCCEEDED', attempt: 1, runs: [{ state: 'SUCCEEDED' }] })
    }, WITHIN)
  }
})

test('after a long cut another agent runs the job, and the late report is refused', async () => {
  for (let round = 0; round < size(1, 5); round++) {
    const jobId = await started(4)
    const other = await agent('other', server.url)
    const [{ assigned_worker_id: first } = { assigned_worker_id: null }] = (await job(jobId)).runs
    cutOff()
    const deadlineMs = await confirming(jobId)
    await vi.waitFor(async () => expect(await job(jobId)).toMatchObject({ state: 'SUCCEEDED', attempt: 2 }), WITHIN)

    const entries = readLedger(ledger).filter((entry) => entry.jobId === jobId)
    expect(overlaps(entries)).toEqual([])
    const alive = entries.flatMap(({ attempt, what }) => (attempt === 1 && what !== 'began' ? [Number(what)] : []))
    expect(Math.max(...alive)).toBeLessThan(deadlineMs)
    const { runs } = await job(jobId)
    expect(runs).toMatchObject([{ state: 'TIMED_OUT', error: { code: 'WORKER_LOST' } }, { state: 'SUCCEEDED' }])
    expect(runs[1]?.assigned_worker_id).not.toBe(first)

    // Heartbeats stay blocked: their answer would tell the agent that it has lost the run, and it would not report.
    proxy.rule = ({ direction, data, link }) => {
      if (direction === 'up' && data.includes('/v1/leases/heartbeat')) link.cut()
      else if (direction === 'down') heard += data
      return 'pass'
    }
    heard = ''
    proxy.cutAll()
    await vi.waitFor(() => expect(heard).toMatch(/"status":409,"error":\{"code":"(ALREADY_ENDED|LEASE_LOST)"/), WITHIN)
    expect(await job(jobId)).toMatchObject({ runs })
    proxy.rule = () => 'pass'
    expect(await other.drain()).toBe(0)
  }
  expect(await remote.drain()).toBe(0)
})
