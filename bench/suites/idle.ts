import { execFile } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { promisify } from 'node:util'
import { cacheDir } from '../../scripts/boot/fetch-packages.mjs'
import { bundleLibrary } from '../../scripts/bundle.mjs'
import { interleave } from '../measure.ts'
import type { Comparison } from '../report.ts'
import type { Stage } from '../stage.ts'

const run = promisify(execFile)
const PROGRAM = fileURLToPath(new URL('../idle-process.mjs', import.meta.url))

/** Measures the memory of an application with one handler and the published package, before and after its first job. */
export async function idle({ size, packages, database, say }: Stage): Promise<Comparison[]> {
  const folder = mkdtempSync(join(cacheDir, 'bench-library-'))
  const ours: number[] = []
  const theirs: number[] = []
  let databases = 0
  async function measure(name: string, module: string, afterJob: number[]): Promise<number> {
    const args = [PROGRAM, name, pathToFileURL(module).href, await database(`idle_${databases++}`)]
    const [before, after] = (await run(process.execPath, args)).stdout.trim().split('\n').map(Number)
    if (before === undefined || after === undefined) throw new Error(`${name} did not print its memory`)
    afterJob.push(after)
    return before
  }
  try {
    say('memory of an idle application: ichido, pg-boss')
    await bundleLibrary(folder, ['pg'])
    const before = await interleave(
      { warmUps: 0, rounds: size.rounds },
      {
        ours: () => measure('ichido', join(folder, 'library/index.js'), ours),
        theirs: () => measure('pg-boss', join(packages, 'node_modules/pg-boss/dist/index.js'), theirs),
      },
    )
    const against = { unit: 'bytes', against: 'pg-boss' } as const
    return [
      { what: 'memory before the first job', ...against, ...before, target: { most: 1.3 } },
      { what: 'memory after the first job', ...against, ours, theirs, target: null },
    ]
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}
