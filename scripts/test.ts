// `npm test` checks format, lint and types, and runs all tests, or only those that a change affects. The last line is `<n>
// passed, <m> failed`.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, existsSync, mkdtempSync, readFileSync } from 'node:fs'
import { constants, tmpdir } from 'node:os'
import { join } from 'node:path'
import { cacheDir, root } from './boot/fetch-packages.mjs'
import { memoryTmp } from './services/find.ts'
import { startGuard } from './services/guard.ts'
import { affectedTests, changedFiles, readSources } from './testing/changed.ts'
import { type Results, type Step, summarize } from './testing/summary.ts'

const STOP_WITHIN_MS = 1200
const NONE: Results = { passed: 0, failed: 0, unable: {}, files: [] }

const args = process.argv.slice(2)
const full = args.includes('--full') || process.env.ICHIDO_TEST_FULL === '1'
const since = args.map((arg) => /^--changed(?:=(.+))?$/.exec(arg)).find((found) => found !== null)
const forVitest = args.filter((arg) => arg !== '--full' && !arg.startsWith('--changed'))
const bin = (path: string) => join(root, 'node_modules', path)

/**
 * Everything that the tests put into TMPDIR. The guard removes it, however the run ends. It is in memory, because a test's SQLite
 * would stop its whole process for each sync to a disk. At full size the files may need more memory than there is.
 */
const folder = mkdtempSync(join(full ? tmpdir() : memoryTmp(), 'ichido-test-'))
// As root, PostgreSQL runs as another user, who must reach its folder in here.
chmodSync(folder, 0o711)
const resultsFile = join(folder, 'results.json')
const guard = startGuard(folder, 'TERM')
let group: number | undefined
let stopped: NodeJS.Signals | undefined

for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => stop(signal))
const parent = process.ppid
setInterval(() => process.ppid === parent || stop('SIGHUP'), 500).unref()

const changed = since ? changedFiles(since[1] ?? 'HEAD') : null
const steps: Step[] = []
await step('Format and lint', bin('@biomejs/biome/bin/biome'), [
  'check',
  '--error-on-warnings',
  '--no-errors-on-unmatched',
  ...(changed?.filter((path) => existsSync(join(root, path))) ?? ['.']),
])
await step('Types', bin('typescript/bin/tsc'), [
  '--noEmit',
  // The default of four checkers repeats work on the shared types: it took 33 s of CPU time instead of 19 s.
  ...['--checkers', '1'],
  ...['--incremental', '--tsBuildInfoFile', join(cacheDir, 'types.tsbuildinfo')],
  ...['--project', root],
])
const failedChecks = steps.filter(({ ok }) => !ok).length
// The whole suite runs only on clean sources. A developer who names files may be in the middle of a change.
const results = failedChecks > 0 && forVitest.length === 0 ? NONE : await tests()
console.log(summarize(steps, { ...results, failed: results.failed + failedChecks }).join('\n'))
process.exit(results.failed + failedChecks > 0 ? 1 : 0)

async function tests(): Promise<Results> {
  const touched = changed ? affectedTests(changed, readSources()) : null
  if (touched?.length === 0) {
    console.log(`\n── Tests: none depends on the ${changed?.length} changed files`)
    return NONE
  }
  const plain = process.stdout.isTTY || process.env.FORCE_COLOR ? [] : ['--no-color']
  const reporter = `--reporter=${join(root, 'scripts/testing/reporter.ts')}`
  const title = `Tests${full ? ' at full size' : ''}${touched ? `, ${touched.length} files that the change touches` : ''}`
  const ok = await step(title, bin('vitest/vitest.mjs'), ['run', reporter, ...plain, ...(touched ?? []), ...forVitest])
  const found = readResults()
  return { ...found, failed: ok ? found.failed : Math.max(found.failed, 1) }
}

/** Runs a program of node_modules under a heading, and prints how long it took. */
async function step(title: string, script: string, scriptArgs: readonly string[]): Promise<boolean> {
  console.log(`\n── ${title}`)
  const startedMs = performance.now()
  // The program gets its own process group, so that everything it starts can be killed with it.
  const child = spawn(process.execPath, ['--conditions=ichido-source', script, ...scriptArgs], {
    cwd: root,
    detached: true,
    stdio: ['ignore', 'inherit', 'inherit'],
    env: { ...process.env, ICHIDO_TEST_FULL: full ? '1' : '0', ICHIDO_RESULTS: resultsFile, TMPDIR: folder },
  })
  if (child.pid === undefined) throw new Error(`${process.execPath} could not be started`)
  group = child.pid
  guard.watch(-group)
  const [code] = await once(child, 'exit')
  signalGroup('SIGKILL')
  group = undefined
  guard.watch(0)
  if (stopped) process.exit(128 + constants.signals[stopped])
  const ok = code === 0
  const ms = performance.now() - startedMs
  steps.push({ title, ok, ms })
  console.log(`── ${title}: ${ok ? 'ok' : 'FAILED'}, ${(ms / 1000).toFixed(1)} s`)
  return ok
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
    // The group is empty.
  }
}

/** A run that broke off has written no results. */
function readResults(): Results {
  return existsSync(resultsFile) ? JSON.parse(readFileSync(resultsFile, 'utf8')) : NONE
}
