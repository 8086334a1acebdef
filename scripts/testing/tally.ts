export type Tally = {
  passed: number
  failed: number
  /** How many tests could not run on this machine, by what it lacks. */
  unable: Record<string, number>
}

export type Outcome = {
  state: string
  tests: string[]
  /** Why tests that were skipped could not run; those that nobody asked for say nothing. */
  lacks?: string[]
}

/**
 * A file that fails outside its tests counts as one failure, and so does an error outside of any file: the count never
 * says 0 failed when something did.
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
