import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { promisify } from 'node:util'
import { type TestContext, test } from 'vitest'
import { Trouble } from '../boot/trouble.mjs'
import { onPath } from '../services/find.ts'
import { installPackages } from './debian-packages.ts'

const run = promisify(execFile)

/** The path of strace, which is installed first if root allows it; undefined if processes cannot be traced. */
export async function findStrace(): Promise<string | undefined> {
  if (process.platform !== 'linux') return undefined
  if (onPath('strace') === undefined) await installPackages(['strace']).catch(() => {})
  const strace = onPath('strace')
  if (strace === undefined) return undefined
  const works = await run(strace, ['-o', '/dev/null', 'true']).then(
    () => true,
    () => false,
  )
  return works ? strace : undefined
}

/** Stands in for tests that need strace, so that they do not vanish silently. */
export function withoutStrace(title: string): void {
  test(title, missStrace)
}

/** Skipped tests are counted and reported at the end of `npm test`. In CI, where nobody reads that, this is a failure. */
export function missStrace({ skip }: Pick<TestContext, 'skip'>): void {
  if (process.env.CI === 'true' && process.env.ICHIDO_NO_STRACE !== '1') {
    throw new Trouble('No process can be traced here. Install strace and allow ptrace, or set ICHIDO_NO_STRACE=1.')
  }
  skip('no strace')
}

/** Traces the system calls of a running process and its children. Resolves when it has attached. */
export async function traceProcess(strace: string, pid: number, calls: string, file: string) {
  const child = spawn(strace, ['-f', '-tt', '-s', '200', '-e', `trace=${calls}`, '-o', file, '-p', String(pid)], {
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  const exited = once(child, 'exit')
  // The output is read to the end: strace reports each new thread, and dies if its output is not read.
  await new Promise<void>((resolve, reject) => {
    child.stderr.on('data', (text) => String(text).includes('attached') && resolve())
    child.stderr.on('end', () => reject(new Error(`strace ended before it watched process ${pid}`)))
  })
  return {
    /** Detaches from the process, and returns the lines in order of time. */
    async stop(): Promise<string[]> {
      child.kill('SIGINT')
      await exited
      return readFileSync(file, 'utf8').split('\n').filter(Boolean)
    },
  }
}
