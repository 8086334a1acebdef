import { writeFileSync } from 'node:fs'
import type { Reporter, TestModule } from 'vitest/node'

export type Tally = { passed: number; failed: number }

export type Outcome = { state: string; tests: string[] }

/**
 * A file that fails outside its tests counts as one failure, and so does an error outside of any file: the count never
 * says 0 failed when something did.
 */
export function tally(files: Outcome[], otherErrors: number): Tally {
  const total = { passed: 0, failed: otherErrors }
  for (const { state, tests } of files) {
    const failed = tests.filter((test) => test === 'failed').length
    total.passed += tests.filter((test) => test === 'passed').length
    total.failed += failed === 0 && state === 'failed' ? 1 : failed
  }
  return total
}

/** Writes the tally of a vitest run to the file that ICHIDO_TALLY names. */
export default class TallyReporter implements Reporter {
  onTestRunEnd(modules: readonly TestModule[], errors: readonly unknown[]): void {
    const files = modules.map((module) => ({
      state: module.state(),
      tests: Array.from(module.children.allTests(), (test) => test.result().state),
    }))
    const file = process.env.ICHIDO_TALLY
    if (file) writeFileSync(file, JSON.stringify(tally(files, errors.length)))
  }
}
