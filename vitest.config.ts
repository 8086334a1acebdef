import { availableParallelism } from 'node:os'
import { defineConfig } from 'vitest/config'
import { full } from './scripts/testing/size.ts'

const MINUTE_MS = 60_000
// `ichido-source` resolves the workspace's own packages to their TypeScript sources.
const conditions = ['ichido-source', 'module', 'node', 'development|production']

export default defineConfig({
  resolve: { conditions },
  ssr: { resolve: { conditions, externalConditions: ['ichido-source', 'node'] } },
  test: {
    include: ['dashboard', 'sdk', 'server', 'scripts', 'bench', 'examples', 'clients'].map(
      (folder) => `${folder}/**/*.test.ts`,
    ),
    exclude: ['**/node_modules/**', '**/dist/**'],
    globalSetup: './scripts/vitest-global-setup.ts',
    pool: 'forks',
    // Loading the modules anew for every file took a third of the run. What a test file changes in its process it puts back.
    isolate: false,
    execArgv: ['--conditions=ichido-source'],
    // Many files mostly wait: for a lease to lapse, a process to end. More than one beyond the cores starves the others.
    maxWorkers: Math.min(8, availableParallelism() + 1),
    // A test that hangs is found a little later; one that starts processes on a machine under load is not taken for it.
    testTimeout: (full ? 30 : 3) * MINUTE_MS,
    hookTimeout: (full ? 10 : 3) * MINUTE_MS,
    teardownTimeout: MINUTE_MS / 4,
  },
})
