import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { vi } from 'vitest'
import { agentProgram } from '../../../../scripts/testing/programs.ts'

/** The timeout for other processes on a busy machine. */
export const WITHIN = { timeout: 45_000, interval: 25 }

export interface AgentGiven {
  url: string
  queue: string
  /** `--exec COMMAND` or `--handlers FILE`. */
  work: readonly [string, string]
  state: string
  args?: readonly string[]
  node?: string
  cwd?: string
  /** The agent's, and its programs'. */
  env?: Readonly<Record<string, string>>
}

export interface StartedAgent {
  pid: number
  stderr(): string
  signal(signal: NodeJS.Signals): void
  ended: Promise<number | null>
  kill9(): Promise<void>
  /** Ends it with SIGTERM, in order, as soon as it is at work. */
  drain(): Promise<number | null>
}

const running = new Set<ChildProcess>()

export async function startAgent(given: AgentGiven): Promise<StartedAgent> {
  const { url, queue, work, state, args = [], node = process.execPath, env = {}, cwd } = given
  const handedOn = Object.keys(env).flatMap((name) => ['--env', name])
  const options = ['--url', url, '--queue', queue, ...work, '--state', state, ...handedOn, ...args]
  const { PATH = '', HOME = '' } = process.env
  const child = spawn(node, [agentProgram(), ...options], { cwd, env: { PATH, HOME, ...env }, stdio: 'pipe' })
  running.add(child)
  let stderr = ''
  const atWork = Promise.withResolvers<void>()
  child.stderr.setEncoding('utf8').on('data', (part: string) => {
    stderr += part
    if (/^ichido-agent: worker .* takes /m.test(stderr)) atWork.resolve()
  })
  const ended = once(child, 'close').then(([code]): number | null => {
    running.delete(child)
    return code
  })
  const signal = (name: NodeJS.Signals) => void child.kill(name)
  return {
    pid: child.pid ?? 0,
    stderr: () => stderr,
    signal,
    ended,
    async kill9() {
      signal('SIGKILL')
      await ended
    },
    async drain() {
      // A process that has not begun yet is killed by any signal.
      await Promise.race([atWork.promise, ended])
      signal('SIGTERM')
      return ended
    },
  }
}

/** For `afterAll`: ends all processes of the test file. */
export async function killAgents(): Promise<void> {
  await Promise.all(
    [...running].map((child) => {
      child.kill('SIGKILL')
      return once(child, 'close')
    }),
  )
}

export async function ask<T>(url: string, method: string, path: string, body?: unknown): Promise<T> {
  const response = await fetch(`${url}${path}`, {
    method,
    ...(body === undefined ? {} : { headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) }),
  })
  if (!response.ok) throw new Error(`${method} ${path} was answered ${response.status}: ${await response.text()}`)
  return (await response.json()) as T
}

export async function enrollToken(url: string, queue: string): Promise<string> {
  const made = await ask<{ enroll_token: string }>(url, 'POST', '/v1/workers/enroll-tokens', { queues: [queue] })
  return made.enroll_token
}

/** A line of a ledger that programs append to: who they are and what they do. */
export interface Entry {
  jobId: string
  attempt: number
  what: string
}

/** The lines that the programs of LEDGER_PROGRAM wrote, in order. */
export function readLedger(file: string): Entry[] {
  const lines = readFileSync(file, 'utf8').split('\n').filter(Boolean)
  return lines.map((line) => {
    const [jobId = '', attempt, what = ''] = line.split(' ')
    return { jobId, attempt: Number(attempt), what }
  })
}

/** Shell: writes itself down now, and every 50 ms. */
export const NOTE = (what: string) => `echo "$ICHIDO_JOB_ID $ICHIDO_ATTEMPT ${what}" >> "$LEDGER"`
export const NOTE_ON = `${NOTE('began')}; while :; do ${NOTE('runs')}; sleep 0.05; done`

/** Attempts that did something after a later attempt of the same job had begun. */
export function overlaps(ledger: readonly Entry[]): Entry[] {
  const latest = new Map<string, number>()
  return ledger.filter(({ jobId, attempt }) => {
    const before = latest.get(jobId) ?? 0
    latest.set(jobId, Math.max(before, attempt))
    return attempt < before
  })
}

/** Waits for an entry of the ledger. */
export function seen(file: string, wanted: Partial<Entry>): Promise<Entry> {
  return vi.waitFor(() => {
    const found = readLedger(file).find((entry) =>
      Object.entries(wanted).every(([name, value]) => entry[name as keyof Entry] === value),
    )
    if (found === undefined) throw new Error(`The ledger has no ${JSON.stringify(wanted)}`)
    return found
  }, WITHIN)
}
