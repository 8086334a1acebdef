// The library as a few files: loaded from 290 small ones, the engine took twice as long to open and 10 MB more. zod, croner and uuid
// are part of them, as far as they are used: zod alone would be more than half of all that an application installs.
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { build } from 'vite'

const root = fileURLToPath(new URL('..', import.meta.url))
const SOURCES = join(root, 'server', 'src')
/** What applications import, and the threads that it starts. They stay where they are to each other: they find each other by relative paths. */
export const ENTRIES = [
  'library/index',
  'library/spare-heart-thread',
  'idempotency/index',
  'store/backup/backup-thread',
]
const NOTICES = ['LICENSE', 'LICENSE.md', 'LICENCE']

/**
 * @param {string} outDir
 * @param {readonly string[]} dependencies the packages that an application installs with the library
 * @returns {Promise<Map<string, string>>} the packages that became part of the bundle, with their licences
 */
export async function bundleLibrary(outDir, dependencies) {
  const isOf = (name, id) => id === name || id.startsWith(`${name}/`)
  const isInstalled = (id) => dependencies.some((name) => isOf(name, id))
  const { output } = await build({
    root,
    configFile: false,
    logLevel: 'error',
    build: {
      outDir,
      emptyOutDir: true,
      target: 'node22',
      ssr: true,
      minify: false,
      rolldownOptions: {
        input: Object.fromEntries(ENTRIES.map((name) => [name, join(SOURCES, `${name}.ts`)])),
        external: isInstalled,
        output: { format: 'es', entryFileNames: '[name].js', chunkFileNames: 'library/[name].js' },
      },
    },
    ssr: { noExternal: true, target: 'node' },
  })
  const chunks = output.filter(({ type }) => type === 'chunk')
  const own = new Set(chunks.map(({ fileName }) => fileName))
  const foreign = chunks
    .flatMap(({ imports, dynamicImports }) => [...imports, ...dynamicImports])
    .filter((id) => !own.has(id) && !id.startsWith('node:') && !isInstalled(id))
  if (foreign.length > 0) throw new Error(`The library imports ${foreign.join(', ')}, which nobody installs with it`)
  const folders = chunks.flatMap(({ moduleIds }) =>
    moduleIds.map((id) => /.*node_modules\/(?:@[^/]+\/)?[^/]+/.exec(id)?.[0]),
  )
  return new Map([...new Set(folders)].filter(Boolean).map((folder) => [nameOf(folder), licenceIn(folder)]))
}

function nameOf(folder) {
  const { name, version } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'))
  return `${name} ${version}`
}

function licenceIn(folder) {
  const file = NOTICES.map((name) => join(folder, name)).find((path) => existsSync(path))
  if (file === undefined) throw new Error(`${folder} has no licence`)
  return readFileSync(file, 'utf8')
}
