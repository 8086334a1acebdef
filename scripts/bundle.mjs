import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { build } from 'vite'

const root = fileURLToPath(new URL('..', import.meta.url))
const SOURCES = join(root, 'server', 'src')
/** The library's entries and the threads that they start. Their relative paths stay the same, because they find each other by them. */
export const ENTRIES = [
  'library/index',
  'library/spare-heart-thread',
  'idempotency/index',
  'store/backup/backup-thread',
]
const AGENT_ENTRY = 'sdk/src/worker/agent/main.ts'
const NOTICES = ['LICENSE', 'LICENSE.md', 'LICENCE']

/**
 * Bundles the library into a few files: loaded from 290 small files, the engine took twice as long to open, and 10 MB more
 * memory. The used parts of zod, croner and uuid are included: zod alone would be more than half of an installation.
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

/**
 * The agent as one file without dependencies, for machines that have nothing but Node 20.
 * @returns {Promise<string>} the text of agent.mjs
 */
export async function bundleAgent() {
  const built = await build({
    root,
    configFile: false,
    logLevel: 'silent',
    build: {
      write: false,
      target: 'node20',
      ssr: join(root, AGENT_ENTRY),
      minify: false,
      rolldownOptions: { output: { format: 'es', codeSplitting: false } },
    },
    ssr: { noExternal: true, target: 'node' },
  })
  const [chunk, ...others] = built.output
  if (chunk?.type !== 'chunk' || others.length > 0) throw new Error('The agent is one file')
  const foreign = [...chunk.imports, ...chunk.dynamicImports].filter(
    (name) => !name.startsWith('node:') && name !== chunk.fileName,
  )
  if (foreign.length > 0) throw new Error(`The agent depends on nothing but Node, and imports ${foreign.join(', ')}`)
  return chunk.code
}
