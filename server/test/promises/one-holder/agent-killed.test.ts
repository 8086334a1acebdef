import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test, vi } from 'vitest'
import {
  ask,
  enrollToken,
  killAgents,
  NOTE,
  NOTE_ON,
  overlaps,
  readLedger,
  type StartedAgent,
  seen,
  startAgent,
  WITHIN,
} from '../../../src/cli/testing/agent.ts'
import { killAll, type Serving, serve } from '../../../src/cli/testing/cli.ts'

const folder = mkdtempSync(join(tmpdir(), 'ichido-h04-test-'))
let server: Serving
let names = 0

beforeAll(async () => {
  server = await serve({ DATA_DIR: join(folder, 'data') })
})
afterAll(async () => {
  await killAgents()
  await killAll()
  rmSync(folder, { recursive: true })
})

/** Short, so that another agent gets the job within seconds. Long enough for heartbeats on a busy machine. */
const POLICY = { lease_ttl_seconds: 1, continuation_seconds: 4, backoff: { base_seconds: 0.1, jitter: 0 } }

interface Scene {
  jobId: string
  ledger: string
  /** The agent that has the job and is about to be killed or stopped. */
  first: StartedAgent
  /** Starts the same agent again. */
  again(): Promise<StartedAgent>
  /** Starts another agent for the same queue. */
  second(): Promise<StartedAgent>
}

async function scene(work: readonly [string, string]): Promise<Scene> {
  const queue = `q${++names}`
  const ledger = join(folder, `ledger-${queue}`)
  writeFileSync(ledger, '')
  const begin = async (name: string) => {
    const args = ['--enroll', await enrollToken(server.url, queue)]
    const state = join(folder, `${queue}-${name}`)
    return startAgent({ url: server.url, queue, work, state, args, env: { LEDGER: ledger } })
  }
  const first = await begin('first')
  const body = { kind: 'k', queue, ...POLICY }
  const { job_id: jobId } = await ask<{ job_id: string }>(server.url, 'POST', '/v1/jobs', body)
  await seen(ledger, { jobId, attempt: 1, what: 'runs' })
  return { jobId, ledger, first, again: () => begin('first'), second: () => begin('second') }
}

/** The first attempt runs forever and ignores SIGTERM. The second attempt exits. */
const UNTIL_SECOND = `trap '' TERM; [ $ICHIDO_ATTEMPT = 1 ] || { ${NOTE('second')}; exit 0; }; ${NOTE_ON}`
/** The same program, but in its own process group and session. */
const ESCAPED = `[ $ICHIDO_ATTEMPT = 1 ] || { ${NOTE('second')}; exit 0; }
  setsid sh -c 'trap "" TERM HUP; ${NOTE_ON.replaceAll("'", '"')}' & wait`
/** The same program, but without its environment. It records its supervisor first. */
const UNMARKED = `[ $ICHIDO_ATTEMPT = 1 ] || { ${NOTE('second')}; exit 0; }; echo $PPID > "$LEDGER.supervisor"
  exec env -i LEDGER="$LEDGER" ICHIDO_JOB_ID=$ICHIDO_JOB_ID ICHIDO_ATTEMPT=$ICHIDO_ATTEMPT sh -c 'trap "" TERM; ${NOTE_ON}'`

async function handedOn({ jobId, ledger, second }: Scene, hurt: () => Promise<void> | void): Promise<void> {
  const other = await second()
  await hurt()
  await seen(ledger, { jobId, attempt: 2, what: 'second' })
  await vi.waitFor(async () => {
    expect(await ask(server.url, 'GET', `/v1/jobs/${jobId}`)).toMatchObject({ state: 'SUCCEEDED', attempt: 2 })
  }, WITHIN)
  expect(overlaps(readLedger(ledger))).toEqual([])
  await other.drain()
}

test.concurrent.each([
  ['a program', UNTIL_SECOND],
  ['a child in its own session', ESCAPED],
])('SIGKILL of the agent: %s ends before another agent gets the job', async (_, program) => {
  const given = await scene(['--exec', program])
  await handedOn(given, () => given.first.signal('SIGKILL'))
})

test.concurrent('SIGKILL of agent and supervisor: the restarted agent kills the program first', async () => {
  const given = await scene(['--exec', UNMARKED])
  const again: StartedAgent[] = []
  await handedOn(given, async () => {
    given.first.signal('SIGKILL')
    process.kill(Number(readFileSync(`${given.ledger}.supervisor`, 'utf8')), 'SIGKILL')
    await given.first.ended
    again.push(await given.again())
  })
  const { length } = readLedger(given.ledger)
  expect(await again[0]?.drain()).toBe(0)
  expect(readLedger(given.ledger)).toHaveLength(length)
})

test.concurrent.each([
  ['a program', UNTIL_SECOND],
  ['a child in its own session', ESCAPED],
])('SIGSTOP of the agent: %s ends before the next attempt, and the agent gives up', async (_, program) => {
  const given = await scene(['--exec', program])
  await handedOn(given, () => given.first.signal('SIGSTOP'))
  given.first.signal('SIGCONT')
  const { length } = readLedger(given.ledger)
  expect(await given.first.drain()).toBe(0)
  expect(readLedger(given.ledger)).toHaveLength(length)
})

/** A handlers file whose first attempt never returns. */
function handlers(name: string, never: string): string {
  const file = join(folder, name)
  writeFileSync(
    file,
    `import { appendFileSync } from 'node:fs'
    const note = ({ job }, what) => appendFileSync(process.env.LEDGER, \`\${job.id} \${job.attempt} \${what}\\n\`)
    export default {
      async k(run) {
        if (run.job.attempt > 1) return note(run, 'second')
        note(run, 'began')
        ${never}
      },
    }`,
  )
  return file
}

test.concurrent('a handler that blocks its thread loses its run, and its process is killed', async () => {
  const never = `let at = 0; while (true) if (Date.now() > at + 50) { at = Date.now(); note(run, 'runs') }`
  const given = await scene(['--handlers', handlers('busy.mjs', never)])
  await handedOn(given, () => {})
  expect(await given.first.ended).toBe(null)
  expect(given.first.stderr()).toContain('ignored its signal')
})

test.concurrent('a handler that ignores its signal is killed with its process', async () => {
  const never = `for (;;) { note(run, 'runs'); await new Promise((resolve) => setTimeout(resolve, 50)) }`
  const given = await scene(['--handlers', handlers('deaf.mjs', never)])
  const other = await given.second()
  await ask(server.url, 'POST', `/v1/jobs/${given.jobId}/cancel`)
  expect(await given.first.ended).toBe(null)
  await vi.waitFor(async () => {
    expect(await ask(server.url, 'GET', `/v1/jobs/${given.jobId}`)).toMatchObject({ state: 'CANCELED' })
  }, WITHIN)
  await other.drain()
})

test.concurrent('a handler that computes for longer than its lease keeps the lease', async () => {
  const compute = `note(run, 'runs'); const end = Date.now() + 2_500; while (Date.now() < end); return run.signal.aborted`
  const given = await scene(['--handlers', handlers('computes.mjs', compute)])
  const result = await ask(server.url, 'GET', `/v1/jobs/${given.jobId}/result?wait_seconds=30`)
  expect(result).toMatchObject({ state: 'SUCCEEDED', result: false })
  expect(await ask(server.url, 'GET', `/v1/jobs/${given.jobId}`)).toMatchObject({ attempt: 1 })
  await given.first.drain()
})
