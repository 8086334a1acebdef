import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { promisify } from 'node:util'
import { type TestContext, test } from 'vitest'
import { Trouble } from '../boot/trouble.mjs'
import { onPath } from '../services/find.ts'
import { installPackages } from './debian-packages.ts'

const run = promisify(execFile)

/** Where strace is, once it is installed where root allows; undefined where processes cannot be traced at all. */
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

/** Stands for tests that are not there without strace, so that they do not vanish silently. */
export function withoutStrace(title: string): void {
  test(title, missStrace)
}

/** Counted, and said at the end of `npm test`. In CI, where nobody reads that, it is a failure. */
export function missStrace({ skip }: Pick<TestContext, 'skip'>): void {
  if (process.env.CI === 'true' && process.env.ICHIDO_NO_STRACE !== '1') {
    throw new Trouble('No process can be traced here. Install strace and allow ptrace, or set ICHIDO_NO_STRACE=1.')
  }
  skip('no strace')
}

/** Watches what a running process and its children ask of the system; settles when it watches. */
export async function traceProcess(strace: string, pid: number, calls: string, file: string) {
  const child = spawn(strace, ['-f', '-tt', '-s', '200', '-e', `trace=${calls}`, '-o', file, '-p', String(pid)], {
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  const exited = once(child, 'exit')
  // To the end: strace tells of each new thread, and dies when nobody reads it.
  await new Promise<void>((resolve, reject) => {
    child.stderr.on('data', (text) => String(text).includes('attached') && resolve())
    child.stderr.on('end', () => reject(new Error(`strace ended before it watched process ${pid}`)))
  })
  return {
    /** Lets the process go on unwatched; answers with the lines in the order of their time. */
    async stop(): Promise<string[]> {
      child.kill('SIGINT')
      await exited
      return readFileSync(file, 'utf8').split('\n').filter(Boolean)
    },
  }
}
