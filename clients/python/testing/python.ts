import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { executable, onPath } from '../../../scripts/services/find.ts'
import { installPackages } from '../../../scripts/testing/debian-packages.ts'

const run = promisify(execFile)
const FOLDER = join(import.meta.dirname, '..')
const PYCACHE = join(tmpdir(), 'ichido-python-cache')
const PROGRAM = join(FOLDER, 'ichido.py')
/** Prints the path of the real interpreter: the first one on the PATH may be a slow script that searches for it each time. */
const RECENT = 'import sys; print(sys.executable if sys.version_info >= (3, 9) else "")'

/** A Python that is recent enough. If there is none, it is installed if root allows. */
export async function findPython(): Promise<string> {
  const found = await recentPython()
  if (found !== undefined) return found
  await installPackages(['python3'], 'set PYTHON to a Python of version 3.9 or later')
  const installed = await recentPython()
  if (installed === undefined) throw new Error('python3 was installed, and yet there is none of version 3.9 or later')
  return installed
}

async function recentPython(): Promise<string | undefined> {
  for (const path of [process.env.PYTHON, onPath('python3'), '/usr/bin/python3']) {
    if (path === undefined || !executable(path)) continue
    const { stdout } = await run(path, ['-c', RECENT]).catch(() => ({ stdout: '' }))
    if (stdout.trim() !== '') return stdout.trim()
  }
  return undefined
}

export interface Ended {
  code: number | null
  stdout: string
  stderr: string
}

type Env = Record<string, string>

function launch(python: string, args: readonly string[], env: Env): ChildProcess {
  const { PATH = '', HOME = '', TMPDIR = '/tmp' } = process.env
  // The child gets none of this process's settings, and writes nothing beside the sources.
  const own = { PATH, HOME, TMPDIR, PYTHONPATH: FOLDER, PYTHONPYCACHEPREFIX: PYCACHE, ...env }
  return spawn(python, args, { cwd: import.meta.dirname, env: own })
}

async function outcome(child: ChildProcess, ended: Ended = { code: null, stdout: '', stderr: '' }): Promise<Ended> {
  child.stdout?.setEncoding('utf8').on('data', (part: string) => {
    ended.stdout += part
  })
  child.stderr?.setEncoding('utf8').on('data', (part: string) => {
    ended.stderr += part
  })
  child.stdin?.end()
  ended.code = (await once(child, 'close'))[0]
  return ended
}

/** Runs a script to its end, and parses each line of its output as JSON. */
export async function script(python: string, code: string, env: Env = {}): Promise<unknown[]> {
  const child = launch(python, ['-W', 'error', '-c', `import ichido, json, os\n${code}`], env)
  const { code: status, stdout, stderr } = await outcome(child)
  if (status !== 0) throw new Error(`The script ended with ${status}: ${stderr}`)
  return stdout
    .split('\n')
    .filter(Boolean)
    .map((line) => JSON.parse(line) as unknown)
}

/** Runs `python3 ichido.py …` to its end. */
export function commandLine(python: string, args: readonly string[], env: Env = {}): Promise<Ended> {
  return outcome(launch(python, [PROGRAM, ...args], env))
}

export interface WorkerOptions {
  url: string
  queue: string
  /** The enroll token. Without it the worker uses its token file. */
  enroll?: string
  name?: string
  tokenFile: string
  ledger: string
  /** Functions of handlers.py, whose names are also the kinds. */
  handlers: readonly string[]
  concurrency?: number
  drainSeconds?: number
  env?: Env
}

export interface PythonWorker {
  pid: number
  kill(signal: NodeJS.Signals): void
  ended: Promise<Ended>
  /** The output on stderr so far. */
  said(): string
}

const running = new Set<ChildProcess>()

export function startWorker(python: string, options: WorkerOptions): PythonWorker {
  const { url, queue, enroll, name, tokenFile, ledger, handlers, concurrency = 1, drainSeconds = 0, env = {} } = options
  const args = ['work', '--url', url, '--queue', queue, '--token-file', tokenFile]
  args.push('--concurrency', String(concurrency), '--drain', String(drainSeconds), '--env', 'LEDGER')
  if (enroll !== undefined) args.push('--enroll', enroll)
  if (name !== undefined) args.push('--name', name)
  const child = launch(
    python,
    ['-W', 'error', PROGRAM, ...args, ...handlers.map((name) => `${name}=handlers:${name}`)],
    {
      LEDGER: ledger,
      ...env,
    },
  )
  if (child.pid === undefined) throw new Error(`${python} could not be started`)
  running.add(child)
  const written: Ended = { code: null, stdout: '', stderr: '' }
  const ended = outcome(child, written).finally(() => running.delete(child))
  return { pid: child.pid, kill: (signal) => void child.kill(signal), ended, said: () => written.stderr }
}

/** Called by `afterAll`, so that no worker outlives its test file. */
export async function killWorkers(): Promise<void> {
  await Promise.all(
    [...running].map((child) => {
      child.kill('SIGKILL')
      return once(child, 'close')
    }),
  )
}

/** A line of a handler's notes. */
export interface Note {
  job: string
  attempt: number
  /** Seconds of the machine's monotonic clock. */
  at: number
  pid: number
  away?: number
}

export function notesOf(ledger: string): Note[] {
  if (!existsSync(ledger)) return []
  const lines = readFileSync(ledger, 'utf8').split('\n')
  return lines.filter(Boolean).map((line) => JSON.parse(line) as Note)
}

export function childrenOf(pid: number): number[] {
  const file = `/proc/${pid}/task/${pid}/children`
  return existsSync(file) ? readFileSync(file, 'utf8').split(' ').filter(Boolean).map(Number) : []
}
