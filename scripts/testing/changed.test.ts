import { expect, test } from 'vitest'
import { affectedTests, readSources } from './changed.ts'

const SOURCES = new Map([
  ['app/sum.ts', 'export const sum = 1'],
  ['app/types.ts', 'export type Sum = number'],
  ['app/twice.ts', "import { sum } from './sum.ts'\nimport type { Sum } from './types.ts'"],
  ['app/twice.test.ts', "import { twice } from './twice.ts'"],
  ['app/other.test.ts', "import type { Sum } from './types.ts'"],
  ['app/main.ts', "const { twice } = await import('./twice.ts')"],
  ['app/process.test.ts', "spawn(join(import.meta.dirname, 'main.ts'))"],
  ['app/script.ts', `new URL(\`lua/\${file}\`, import.meta.url)`],
  ['app/script.test.ts', "import './script.ts'"],
  ['kit/user.test.ts', "import { sum } from '@kit/sum'"],
  ['docs/docs.test.ts', "globSync(['*.md', 'docs/**/*.md'])"],
])
const PACKAGES = new Map([['@kit/sum', 'app/sum.ts']])
const affected = (...changed: string[]) => affectedTests(changed, SOURCES, PACKAGES)

test('a changed module runs the tests that reach it, also by packages and processes', () => {
  expect(affected('app/sum.ts')).toEqual(['app/process.test.ts', 'app/twice.test.ts', 'kit/user.test.ts'])
  expect(affected('app/main.ts')).toEqual(['app/process.test.ts'])
})

test('a changed test runs itself, and a removed test runs nothing', () => {
  expect(affected('app/other.test.ts')).toEqual(['app/other.test.ts'])
  expect(affected('app/removed.test.ts')).toEqual([])
})

test('a changed file runs the tests of modules that name it, its folder or its pattern', () => {
  expect(affected('app/lua/publish.lua')).toEqual(['app/script.test.ts'])
  expect(affected('docs/deep/page.md')).toEqual(['docs/docs.test.ts'])
})

test('a file that no module names runs the tests around it', () => {
  expect(affected('kit/data.json')).toEqual(['kit/user.test.ts'])
  expect(affected('LICENSE')).toBeNull()
})

test('a change of packages or suite settings runs every test', () => {
  expect(affected('package-lock.json')).toBeNull()
  expect(affected('vitest.config.ts')).toBeNull()
})

test('changes of single files in this repository run the expected tests', () => {
  const sources = readSources()
  const ofSummary = affectedTests(['scripts/testing/summary.ts'], sources)
  expect(ofSummary).toContain('scripts/testing/summary.test.ts')
  // The architecture test reads the imports of every source.
  expect(ofSummary).toContain('scripts/architecture.test.ts')
  expect(ofSummary?.filter((path) => path.startsWith('sdk/'))).toEqual([])
  expect(affectedTests(['CHANGELOG.md'], sources)).toContain('scripts/docs/docs.test.ts')
  const ofLua = affectedTests(['server/src/bus/lua/publish.lua'], sources)
  expect(ofLua).toContain('server/src/bus/redis/redis.test.ts')
  expect(ofLua).toContain('server/src/cli/commands/operate/serve.test.ts')
  expect(ofLua).not.toContain('sdk/src/worker/agent/identity/identity.test.ts')
})
