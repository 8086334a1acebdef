import { writeFileSync } from 'node:fs'
import { DefaultReporter, type TestModule, type TestSpecification } from 'vitest/node'
import type { Results } from './summary.ts'
import { tally } from './summary.ts'

/** Vitest's default reporter with a count of files in front, even without a terminal. */
export default class RunReporter extends DefaultReporter {
  #files = 0
  #ended = 0

  override onTestRunStart(specifications: readonly TestSpecification[]): void {
    this.#files = specifications.length
    super.onTestRunStart(specifications)
  }

  override onTestModuleEnd(module: TestModule): void {
    this.#ended++
    super.onTestModuleEnd(module)
  }

  protected override getEntityPrefix(entity: Parameters<DefaultReporter['getEntityPrefix']>[0]): string {
    const prefix = super.getEntityPrefix(entity)
    if (entity.type !== 'module') return prefix
    const files = String(this.#files)
    return `${String(this.#ended).padStart(files.length)}/${files} ${prefix}`
  }

  /** Writes the results for the runner to the file that ICHIDO_RESULTS names. */
  override onTestRunEnd(...[modules, errors, reason]: Parameters<DefaultReporter['onTestRunEnd']>): void {
    super.onTestRunEnd(modules, errors, reason)
    const file = process.env.ICHIDO_RESULTS
    if (file) writeFileSync(file, JSON.stringify(resultsOf(modules, errors)))
  }
}

function resultsOf(modules: readonly TestModule[], errors: readonly unknown[]): Results {
  const outcomes = modules.map((module) => {
    const results = Array.from(module.children.allTests(), (test) => test.result())
    return {
      state: module.state(),
      tests: results.map(({ state }) => state),
      lacks: results.flatMap((result) => (result.state === 'skipped' ? (result.note ?? []) : [])),
    }
  })
  return {
    ...tally(outcomes, errors.length),
    files: modules.map((module) => ({
      path: module.relativeModuleId,
      ms: module.diagnostic().duration,
      failed: module.state() === 'failed',
      failures: Array.from(module.children.allTests('failed'), (test) => test.fullName),
    })),
  }
}
