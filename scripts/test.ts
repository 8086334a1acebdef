// What `npm test` runs: format and lint, types, tests. The last line is `<n> passed, <m> failed`.
import { type ChildProcess, spawn } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { constants, tmpdir } from 'node:os'
import { join } from 'node:path'
import { root } from './boot/fetch-package.mjs'
import { startGuard } from './services/guard.ts'
import type { Tally } from './testing/tally.ts'

const STOP_WITHIN_MS = 1200

const args = process.argv.slice(2)
const full = args.includes('--full') || process.env.ICHIDO_TEST_FULL === '1'
const forVitest = args.filter((arg) => arg !== '--full')
const bin = (path: string) => join(root, 'node_modules', path)

const reports = mkdtempSync(join(tmpdir(), 'ichido-test-'))
const tallyFile = join(reports, 'tally.json')
const guard = startGuard(reports, 'TERM')
let running: ChildProcess | undefined
let stopped: NodeJS.Signals | undefined

for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => stop(signal))
const parent = process.ppid
setInterval(() => process.ppid === parent || stop('SIGHUP'), 500).unref()

const checks = [
  await step('Format and lint', bin('@biomejs/biome/bin/biome'), ['check', '--error-on-warnings', '.']),
  await step('Types', bin('typescript/bin/tsc'), ['--noEmit', '--project', root]),
]
const failedChecks = checks.filter((ok) => !ok).length
finish(failedChecks > 0 ? { passed: 0, failed: failedChecks } : await tests())

async function tests(): Promise<Tally> {
  const plain = process.stdout.isTTY || process.env.FORCE_COLOR ? [] : ['--no-color']
  const reporters = ['--reporter=default', `--reporter=${join(root, 'scripts/testing/tally.ts')}`, ...plain]
  const ok = await step(`Tests${full ? ' at full size' : ''}`, bin('vitest/vitest.mjs'), [
    'run',
    ...reporters,
    ...forVitest,
  ])
  const { passed, failed } = readTally()
  return { passed, failed: ok ? failed : Math.max(failed, 1) }
}

/** Runs a program of node_modules under a heading and says how long it took. */
async function step(title: string, script: string, scriptArgs: string[]): Promise<boolean> {
  if (stopped) return false
  console.log(`\n── ${title}`)
  const startedMs = performance.now()
  const code = await new Promise<number>((resolve) => {
    // A group of its own, so that Ctrl-C can end it together with whatever the tests have started.
    const child = spawn(process.execPath, ['--conditions=ichido-source', script, ...scriptArgs], {
      cwd: root,
      detached: true,
      stdio: ['ignore', 'inherit', 'inherit'],
      env: { ...process.env, ICHIDO_TEST_FULL: full ? '1' : '0', ICHIDO_TALLY: tallyFile },
    })
    running = child
    if (child.pid !== undefined) guard.watch(-child.pid)
    child.on('error', () => resolve(1))
    child.on('exit', (exitCode) => resolve(exitCode ?? 1))
  })
  running = undefined
  guard.watch(0)
  console.log(`── ${title}: ${code === 0 ? 'ok' : 'FAILED'}, ${((performance.now() - startedMs) / 1000).toFixed(1)} s`)
  return code === 0
}

function stop(signal: NodeJS.Signals): void {
  if (stopped) return
  stopped = signal
  const pid = running?.pid
  if (pid === undefined) process.exit(128 + constants.signals[signal])
  const send = (name: NodeJS.Signals) => {
    try {
      process.kill(-pid, name)
    } catch {
      // The group has ended.
    }
  }
  send('SIGINT')
  setTimeout(() => send('SIGKILL'), STOP_WITHIN_MS)
  running?.once('exit', () => {
    send('SIGKILL')
    rmSync(reports, { recursive: true, force: true })
    process.exit(128 + constants.signals[signal])
  })
}

function finish({ passed, failed }: Tally): never {
  rmSync(reports, { recursive: true, force: true })
  console.log(`\n${passed} passed, ${failed} failed`)
  process.exit(failed > 0 ? 1 : 0)
}

/** A run that broke down before its end has written none. */
function readTally(): Tally {
  return existsSync(tallyFile) ? JSON.parse(readFileSync(tallyFile, 'utf8')) : { passed: 0, failed: 0 }
}
