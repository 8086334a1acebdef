const SLOWEST_MAX = 10
const SLOW_MS = 1000

type Tally = {
  passed: number
  failed: number
  /** The number of tests that could not run on this machine, by reason. */
  unable: Record<string, number>
}

interface Outcome {
  state: string
  tests: string[]
  /** The reasons of skipped tests that could not run here. Tests that were skipped on purpose give none. */
  lacks?: string[]
}

export interface Step {
  title: string
  ok: boolean
  ms: number
}

export interface FileResult {
  path: string
  ms: number
  failed: boolean
  /** The full names of the failed tests; empty if the file failed outside of them. */
  failures: string[]
}

export type Results = Tally & { files: FileResult[] }

/**
 * A file that fails outside its tests counts as one failure, and so does an error outside of any file. The count is
 * therefore never 0 if something failed.
 */
export function tally(files: Outcome[], otherErrors: number): Tally {
  const total: Tally = { passed: 0, failed: otherErrors, unable: {} }
  for (const { state, tests, lacks = [] } of files) {
    const failed = tests.filter((test) => test === 'failed').length
    total.passed += tests.filter((test) => test === 'passed').length
    total.failed += failed === 0 && state === 'failed' ? 1 : failed
    for (const lack of lacks) total.unable[lack] = (total.unable[lack] ?? 0) + 1
  }
  return total
}

/** The last lines of `npm test`: each step, the slowest files, the failures and how to run those again, the counts. */
export function summarize(steps: readonly Step[], { passed, failed, unable, files }: Results): string[] {
  const width = Math.max(...steps.map(({ title }) => title.length))
  const slowest = files
    .filter(({ ms }) => ms >= SLOW_MS)
    .toSorted((a, b) => b.ms - a.ms)
    .slice(0, SLOWEST_MAX)
  const broken = files.filter((file) => file.failed)
  return [
    ...section(
      'Steps',
      steps.map(({ title, ok, ms }) => `${title.padEnd(width)}  ${ok ? 'ok    ' : 'FAILED'} ${seconds(ms)}`),
    ),
    ...section(
      `Slowest of ${files.length} files`,
      files.length > 1 ? slowest.map(({ path, ms }) => `${seconds(ms)}  ${path}`) : [],
    ),
    ...section(
      'Could not run here',
      Object.entries(unable).map(([lack, count]) => `${count} ${count === 1 ? 'test' : 'tests'}: ${lack}`),
    ),
    ...section(
      'Failed',
      broken.flatMap(({ path, failures }) => [path, ...failures.map((name) => `  ${name}`)]),
    ),
    ...section('Run the failed files again', broken.length > 0 ? [rerun(broken)] : []),
    '',
    `${passed} passed, ${failed} failed`,
  ]
}

const section = (title: string, lines: string[]): string[] =>
  lines.length === 0 ? [] : ['', title, ...lines.map((line) => `  ${line}`)]

const seconds = (ms: number): string => `${(ms / 1000).toFixed(1).padStart(6)} s`

const rerun = (files: readonly FileResult[]): string => `npm test -- ${files.map(({ path }) => path).join(' ')}`
