import { existsSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import { afterAll, expect, test } from 'vitest'
import { freshDatabase } from '../../../../scripts/testing/services.ts'
import { size } from '../../../../scripts/testing/size.ts'
import {
  ask,
  enrollToken,
  killAgents,
  NOTE,
  overlaps,
  readLedger,
  type StartedAgent,
  startAgent,
} from '../../../src/cli/testing/agent.ts'
import { killAll, type Serving, serve } from '../../../src/cli/testing/cli.ts'
import { ENGINES, type Engine } from '../../../src/testing/services/services.ts'

const JOBS = size(16, 1000)
const AGENTS = 10
/** One in this many jobs fails on every attempt. */
const FAILING_EVERY = 10
const LEASE_SECONDS = 2
const CONTINUATION_SECONDS = 4
const MAX_ATTEMPTS = { good: 40, failing: 3 }
/** A stopped agent stays stopped for so long that another agent gets its jobs and starts them. */
const STOPPED_MS = (LEASE_SECONDS + CONTINUATION_SECONDS) * 1000 + 3_000
const HURT_MAX = 5
/** With fewer busy agents none is killed or stopped: the last job, interrupted on every attempt, would use up its retries. */
const BUSY_MIN = 4
const TORMENTS_MAX = size(6, 400)
const TORMENT_MS = 250
const TEST_WITHIN_MS = size(180_000, 1_800_000)
const TICK_SECONDS = 0.1

const folder = mkdtempSync(join(tmpdir(), 'ichido-torment-'))
afterAll(async () => {
  await killAgents()
  await killAll()
  rmSync(folder, { recursive: true, force: true })
})

/**
 * Notes itself as many times as the payload says, and fails if the payload is negative. Every second program does so in
 * a child that leaves the process group.
 */
const PROGRAM = `n=$(cat); ${NOTE('began')}
  work() { for i in $(seq \${n#-}); do sleep ${TICK_SECONDS}; ${NOTE('runs')}; done; ${NOTE('ended')}; [ $n -ge 0 ]; }
  if [ $((n % 2)) = 0 ]; then work; exit; fi
  export n; setsid sh -c 'for i in $(seq \${n#-}); do sleep ${TICK_SECONDS}; ${NOTE('runs')}; done' & wait $!
  ${NOTE('ended')}; [ $n -ge 0 ]`

/** An agent that is restarted after every kill. */
class Victim {
  agent: StartedAgent | null = null
  stopped = false
  readonly #runs: string
  readonly #begin: () => Promise<StartedAgent>

  constructor(state: string, begin: () => Promise<StartedAgent>) {
    this.#runs = join(state, 'runs')
    this.#begin = begin
  }

  /** The agent has a run. */
  get busy(): boolean {
    return this.agent !== null && !this.stopped && existsSync(this.#runs) && readdirSync(this.#runs).length > 0
  }

  async start(): Promise<void> {
    this.agent = await this.#begin()
  }

  async kill(): Promise<void> {
    const { agent } = this
    this.agent = null
    await agent?.kill9()
    // Half of the agents restart immediately, the others after their jobs may have gone to another agent.
    if (Math.random() < 0.5) await pause(Math.random() * STOPPED_MS)
    await this.start()
  }

  async stop(): Promise<void> {
    const { agent } = this
    this.stopped = true
    agent?.signal('SIGSTOP')
    await pause(STOPPED_MS)
    agent?.signal('SIGCONT')
    this.stopped = false
  }
}

/** Kills or stops one agent after the other, until aborted or at its maximum. Resolves when all agents run again. */
async function torment(victims: readonly Victim[], done: AbortSignal): Promise<{ kills: number; stops: number }> {
  const pains = new Set<Promise<void>>()
  const tally = { kills: 0, stops: 0 }
  while (!done.aborted && tally.kills + tally.stops < TORMENTS_MAX) {
    await pause(TORMENT_MS * (0.5 + Math.random()))
    const busy = victims.filter((victim) => victim.busy)
    const victim = busy[Math.floor(Math.random() * busy.length)]
    if (victim === undefined || busy.length < BUSY_MIN || pains.size >= HURT_MAX) continue
    // At least one kill and one stop happen, whatever the random numbers are.
    const kill = tally.kills === 0 || (tally.stops > 0 && Math.random() < 0.5)
    tally[kill ? 'kills' : 'stops']++
    const pain = (kill ? victim.kill() : victim.stop()).finally(() => pains.delete(pain))
    pains.add(pain)
  }
  await Promise.all(pains)
  return tally
}

async function servers(engine: Engine): Promise<Serving[]> {
  const DATA_DIR = join(folder, engine)
  if (engine === 'sqlite') return [await serve({ DATA_DIR })]
  const { url: DATABASE_URL } = await freshDatabase()
  const first = await serve({ DATA_DIR, DATABASE_URL })
  return [first, await serve({ DATA_DIR, DATABASE_URL })]
}

interface Job {
  job_id: string
  state: string
  retry_count: number
  runs: { state: string; attempt: number }[]
}

async function submitAll(url: string, queue: string): Promise<Map<string, boolean>> {
  const policy = {
    lease_ttl_seconds: LEASE_SECONDS,
    continuation_seconds: CONTINUATION_SECONDS,
    backoff: { base_seconds: 0.2, cap_seconds: 1 },
  }
  const jobs = Array.from({ length: JOBS }, (_, n) => {
    const failing = n % FAILING_EVERY === 0
    const ticks = 5 + (n % 11)
    const max_attempts = failing ? MAX_ATTEMPTS.failing : MAX_ATTEMPTS.good
    return { kind: 'k', queue, payload: failing ? -ticks : ticks, max_attempts, ...policy }
  })
  const ids = new Map<string, boolean>()
  for (const job of jobs) ids.set((await ask<{ job_id: string }>(url, 'POST', '/v1/jobs', job)).job_id, job.payload < 0)
  return ids
}

async function allEnded(url: string, queue: string): Promise<void> {
  for (;;) {
    const left = await ask<Record<string, number>>(url, 'GET', `/v1/queues/${queue}`)
    if (['ready', 'delayed', 'running'].every((count) => left[count] === 0)) return
    await pause(200)
  }
}

test.concurrent.each(ENGINES)(
  '%s: agents are killed and stopped, each job has one outcome and one holder',
  async (engine) => {
    const nodes = await servers(engine)
    const [{ url } = { url: '' }] = nodes
    const queue = 'tormented'
    const ledger = join(folder, `ledger-${engine}`)
    writeFileSync(ledger, '')
    const jobs = await submitAll(url, queue)
    const victims = await Promise.all(
      Array.from({ length: AGENTS }, async (_, n) => {
        const { url: near = url } = nodes[n % nodes.length] ?? {}
        const args = ['--enroll', await enrollToken(url, queue), '--drain', '5']
        const state = join(folder, `${engine}-${n}`)
        const work = ['--exec', PROGRAM] as const
        return new Victim(state, () => startAgent({ url: near, queue, work, state, args, env: { LEDGER: ledger } }))
      }),
    )
    await Promise.all(victims.map((victim) => victim.start()))
    const done = new AbortController()
    const tormented = torment(victims, done.signal)
    await allEnded(url, queue)
    done.abort()
    const tally = await tormented
    expect(await Promise.all(victims.map(({ agent }) => agent?.drain()))).toEqual(victims.map(() => 0))

    const entries = readLedger(ledger)
    expect(overlaps(entries)).toEqual([])
    const ended = new Set(
      entries.flatMap(({ jobId, attempt, what }) => (what === 'ended' ? [`${jobId} ${attempt}`] : [])),
    )
    let handedOn = 0
    const wrong: string[] = []
    for (const [jobId, failing] of jobs) {
      const job = await ask<Job>(url, 'GET', `/v1/jobs/${jobId}`)
      if (!failing && job.runs.length > 1) handedOn++
      const why = wrongIn(job, failing, ended)
      if (why !== null) wrong.push(`${why}: ${JSON.stringify(job)}`)
    }
    expect(wrong).toEqual([])
    expect(await deadLetters(url, queue)).toEqual(
      [...jobs].flatMap(([id, failing]) => (failing ? [id] : [])).toSorted(),
    )
    console.log(`${engine}: ${JOBS} jobs, ${tally.kills} kills, ${tally.stops} stops, ${handedOn} handed on`)
    expect(Math.min(tally.kills, tally.stops, handedOn)).toBeGreaterThan(0)
    await Promise.all(nodes.map((node) => node.stop()))
  },
  TEST_WITHIN_MS,
)

/** The violations of a job that has ended. `ended` names the job and attempt of each program that ran to its end. */
function wrongIn(
  { job_id, state, retry_count, runs }: Job,
  failing: boolean,
  ended: ReadonlySet<string>,
): string | null {
  const successes = runs.filter((run) => run.state === 'SUCCEEDED')
  if (retry_count > (failing ? MAX_ATTEMPTS.failing : MAX_ATTEMPTS.good)) return 'too many retries'
  if (successes.length !== (failing ? 0 : 1)) return `${successes.length} successes`
  if (!successes.every(({ attempt }) => ended.has(`${job_id} ${attempt}`))) return 'a success whose program did not end'
  const ends = failing ? ['FAILED', 'TIMED_OUT'] : ['SUCCEEDED']
  return ends.includes(state) ? null : `it is ${state}`
}

async function deadLetters(url: string, queue: string): Promise<string[]> {
  const found: string[] = []
  let cursor: string | null = null
  do {
    const more: string = cursor === null ? '' : `&cursor=${cursor}`
    const page: { data: { job_id: string }[]; next_cursor: string | null } = await ask(
      url,
      'GET',
      `/v1/dead-letters?queue=${queue}&limit=100${more}`,
    )
    found.push(...page.data.map(({ job_id }) => job_id))
    cursor = page.next_cursor
  } while (cursor !== null)
  return found.toSorted()
}
