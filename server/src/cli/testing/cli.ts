import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { bundled } from '../../../../scripts/testing/programs.ts'
import { nodeArgs } from '../../../../scripts/testing/services.ts'
import { runResident } from './resident.ts'

const BIN = join(import.meta.dirname, '../bin.ts')
/** A start takes a second on a quiet machine, and a minute was not enough on one with ten times the load. */
const START_WITHIN_MS = 150_000

export type Env = Readonly<Record<string, string>>

export interface Ended {
  code: number | null
  stdout: string
  stderr: string
}

/** Nothing of this process's settings, so that a developer's own ICHIDO_URL or DATA_DIR is never touched. */
function environment(env: Env): Env {
  const { PATH = '', HOME = '', TMPDIR = '/tmp' } = process.env
  return { PATH, HOME, TMPDIR, ...env }
}

function launch(args: readonly string[], env: Env, cwd?: string): ChildProcess {
  return spawn(process.execPath, [...nodeArgs, bundled(BIN), ...args], { env: environment(env), cwd })
}

function collect(child: ChildProcess): { stdout: string; stderr: string } {
  const text = { stdout: '', stderr: '' }
  child.stdout?.setEncoding('utf8').on('data', (part: string) => {
    text.stdout += part
  })
  child.stderr?.setEncoding('utf8').on('data', (part: string) => {
    text.stderr += part
  })
  return text
}

/** Runs one command line to its end; one with something for Node itself or to read, in a process of its own. */
export function ichido(args: readonly string[], env: Env = {}, input?: string): Promise<Ended> {
  const plain = input === undefined && !Object.keys(env).some((name) => name.startsWith('NODE_'))
  const resident = plain ? runResident(args, environment(env)) : null
  return resident ?? begin(args, env, input).ended
}

export interface Begun {
  /** The output on stderr and stdout so far. */
  stderr(): string
  stdout(): string
  signal(signal: NodeJS.Signals): void
  ended: Promise<Ended>
}

/** Runs one command line, for tests that do something meanwhile. */
export function begin(args: readonly string[], env: Env = {}, input = '', cwd?: string): Begun {
  const child = launch(args, env, cwd)
  const text = collect(child)
  child.stdin?.on('error', () => {})
  child.stdin?.end(input)
  const ended = once(child, 'close').then(([code]): Ended => ({ code, ...text }))
  return { stderr: () => text.stderr, stdout: () => text.stdout, signal: (signal) => void child.kill(signal), ended }
}

/** Runs one command line to its end and reads what it prints as JSON. */
export async function ichidoJson(args: readonly string[], env: Env = {}) {
  const { code, stdout, stderr } = await ichido([...args, '--json'], env)
  if (code !== 0) throw new Error(`ichido ${args.join(' ')} ended with ${code}: ${stderr}`)
  return JSON.parse(stdout)
}

export interface Serving extends Begun {
  url: string
  pid: number
  /** Ends it with SIGTERM, in order. */
  stop(): Promise<Ended>
  kill9(): Promise<void>
}

const running = new Set<ChildProcess>()

/** Starts a server on a free port and waits until it says where it listens. */
export async function serve(env: Env, args: readonly string[] = []): Promise<Serving> {
  const child = launch(['serve', '--json', ...args], { PORT: '0', ...env })
  running.add(child)
  const text = collect(child)
  const ended = once(child, 'close').then(([code]): Ended => {
    running.delete(child)
    return { code, ...text }
  })
  const { url, pid } = await listening(child, text, ended)
  return {
    url,
    pid,
    stderr: () => text.stderr,
    stdout: () => text.stdout,
    signal: (signal) => void child.kill(signal),
    ended,
    stop() {
      child.kill('SIGTERM')
      return ended
    },
    async kill9() {
      child.kill('SIGKILL')
      await ended
    },
  }
}

async function listening(
  child: ChildProcess,
  text: { stdout: string; stderr: string },
  ended: Promise<Ended>,
): Promise<{ url: string; pid: number }> {
  const said = new Promise<void>((resolve) => {
    const look = () => text.stdout.includes('\n') && resolve()
    child.stdout?.on('data', look)
  })
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<'late'>((resolve) => {
    timer = setTimeout(() => resolve('late'), START_WITHIN_MS)
  })
  const first = await Promise.race([said, ended, late])
  clearTimeout(timer)
  if (first === undefined) return JSON.parse(text.stdout)
  throw new Error(`The server did not start: ${text.stderr}`)
}

/** For `afterAll`: ends all processes of the test file. */
export async function killAll(): Promise<void> {
  await Promise.all(
    [...running].map((child) => {
      child.kill('SIGKILL')
      return once(child, 'close')
    }),
  )
}
