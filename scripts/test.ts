// What `npm test` runs: format and lint, types, tests. The last line is `<n> passed, <m> failed`.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, existsSync, mkdtempSync, readFileSync } from 'node:fs'
import { constants, tmpdir } from 'node:os'
import { join } from 'node:path'
import { root } from './boot/fetch-packages.mjs'
import { startGuard } from './services/guard.ts'
import type { Tally } from './testing/tally.ts'

const STOP_WITHIN_MS = 1200
const NONE: Tally = { passed: 0, failed: 0, unable: {} }

const args = process.argv.slice(2)
const full = args.includes('--full') || process.env.ICHIDO_TEST_FULL === '1'
const forVitest = args.filter((arg) => arg !== '--full')
const bin = (path: string) => join(root, 'node_modules', path)

/** All that the tests put into TMPDIR; the guard removes it, however the run ends. */
const folder = mkdtempSync(join(tmpdir(), 'ichido-test-'))
// PostgreSQL runs as another user when this one is root, and must get to its own folder in here.
chmodSync(folder, 0o711)
const tallyFile = join(folder, 'tally.json')
const guard = startGuard(folder, 'TERM')
let group: number | undefined
let stopped: NodeJS.Signals | undefined

for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => stop(signal))
const parent = process.ppid
setInterval(() => process.ppid === parent || stop('SIGHUP'), 500).unref()

const checks = [
  await step('Format and lint', bin('@biomejs/biome/bin/biome'), ['check', '--error-on-warnings', '.']),
  await step('Types', bin('typescript/bin/tsc'), ['--noEmit', '--project', root]),
]
const failedChecks = checks.filter((ok) => !ok).length
// The whole suite waits for clean sources; someone who named files is in the middle of something.
const results = failedChecks > 0 && forVitest.length === 0 ? NONE : await tests()
finish({ ...results, failed: results.failed + failedChecks })

async function tests(): Promise<Tally> {
  const plain = process.stdout.isTTY || process.env.FORCE_COLOR ? [] : ['--no-color']
  const reporters = ['--reporter=default', `--reporter=${join(root, 'scripts/testing/tally.ts')}`, ...plain]
  const ok = await step(`Tests${full ? ' at full size' : ''}`, bin('vitest/vitest.mjs'), [
    'run',
    ...reporters,
    ...forVitest,
  ])
  const found = readTally()
  return { ...found, failed: ok ? found.failed : Math.max(found.failed, 1) }
}

/** Runs a program of node_modules under a heading and says how long it took. */
async function step(title: string, script: string, scriptArgs: string[]): Promise<boolean> {
  console.log(`\n── ${title}`)
  const startedMs = performance.now()
  // A group of its own, so that it can be ended together with whatever the tests have started.
  const child = spawn(process.execPath, ['--conditions=ichido-source', script, ...scriptArgs], {
    cwd: root,
    detached: true,
    stdio: ['ignore', 'inherit', 'inherit'],
    env: { ...process.env, ICHIDO_TEST_FULL: full ? '1' : '0', ICHIDO_TALLY: tallyFile, TMPDIR: folder },
  })
  if (child.pid === undefined) throw new Error(`${process.execPath} could not be started`)
  group = child.pid
  guard.watch(-group)
  const [code] = await once(child, 'exit')
  signalGroup('SIGKILL')
  group = undefined
  guard.watch(0)
  if (stopped) process.exit(128 + constants.signals[stopped])
  console.log(`── ${title}: ${code === 0 ? 'ok' : 'FAILED'}, ${((performance.now() - startedMs) / 1000).toFixed(1)} s`)
  return code === 0
}

function stop(signal: NodeJS.Signals): void {
  if (stopped) return
  stopped = signal
  if (group === undefined) process.exit(128 + constants.signals[signal])
  signalGroup('SIGINT')
  setTimeout(() => signalGroup('SIGKILL'), STOP_WITHIN_MS)
}

function signalGroup(name: NodeJS.Signals): void {
  try {
    if (group !== undefined) process.kill(-group, name)
  } catch {
    // Nobody is left in it.
  }
}

function finish({ passed, failed, unable }: Tally): never {
  for (const [lack, count] of Object.entries(unable)) {
    console.log(`\n${count} ${count === 1 ? 'test' : 'tests'} could not run here: ${lack}`)
  }
  console.log(`\n${passed} passed, ${failed} failed`)
  process.exit(failed > 0 ? 1 : 0)
}

/** A run that broke down before its end has written none. */
function readTally(): Tally {
  return existsSync(tallyFile) ? JSON.parse(readFileSync(tallyFile, 'utf8')) : NONE
}
