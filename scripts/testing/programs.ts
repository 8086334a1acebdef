import { mkdtempSync } from 'node:fs'
import { mkdir, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join, relative } from 'node:path'
import { pathToFileURL } from 'node:url'
import { build, type Plugin } from 'vite'
import { inject } from 'vitest'
import { root } from '../boot/fetch-packages.mjs'
import { bundleAgent } from '../bundle.mjs'

/** The entry modules of the processes that tests start. */
const ENTRIES = [
  'server/src/cli/bin.ts',
  'server/src/cli/testing/resident-process.ts',
  'server/src/library/index.ts',
  'server/src/node/start-node.ts',
  'server/src/node/world.ts',
  'server/src/services/system/meter.ts',
  'server/src/testing/store/shifted-clock.ts',
]

/** The module beside which a server or command line looks for the agent's program, and that program after the build. */
const AGENT_INDEX = 'sdk/src/worker/agent/index.ts'
const AGENT_BUILT = 'sdk/src/worker/agent/main.js'

/** The agent as one file: a process takes 0.1 s of CPU time to start, instead of 0.5 s from the sources. */
export const agentProgram = (): string => join(inject('programs'), AGENT_BUILT)

/** The bundle of one of these modules, by the path of its source. */
export const bundled = (source: string): string => outputOf(inject('programs'), relative(root, source))

const outputOf = (folder: string, entry: string) => join(folder, entry.replace(/\.ts$/, '.mjs'))

/**
 * Bundles these modules with their packages. The suite starts hundreds of servers, and a bundled server starts faster
 * than one from 700 files. The packages, the examples and `npm start` have tests that start the files themselves.
 */
export async function bundlePrograms(): Promise<{ folder: string; stop(): Promise<void> }> {
  const folder = mkdtempSync(join(tmpdir(), 'ichido-programs-'))
  const input = Object.fromEntries(ENTRIES.map((entry) => [entry.replace(/\.ts$/, ''), join(root, entry)]))
  const conditions = ['ichido-source', 'module-sync', 'node', 'development|production']
  await mkdir(join(folder, dirname(AGENT_BUILT)), { recursive: true })
  await writeFile(join(folder, 'package.json'), '{"type":"module"}')
  await writeFile(join(folder, AGENT_BUILT), await bundleAgent())
  await build({
    root,
    configFile: false,
    logLevel: 'silent',
    ssr: { noExternal: true, target: 'node', resolve: { conditions } },
    plugins: [ownPlaces(folder)],
    build: {
      target: 'node24',
      outDir: folder,
      emptyOutDir: false,
      ssr: true,
      rolldownOptions: {
        input,
        preserveEntrySignatures: 'strict',
        output: { format: 'es', entryFileNames: '[name].mjs', chunkFileNames: '[name]-[hash].mjs' },
      },
    },
  })
  return { folder, stop: () => rm(folder, { recursive: true }) }
}

/** Gives each module the path of its source, by which it finds its files and threads, and knows that it is in a clone. */
const ownPlaces = (folder: string): Plugin => ({
  name: 'own-places',
  enforce: 'pre',
  transform(code, id) {
    const place = id === join(root, AGENT_INDEX) ? outputOf(folder, AGENT_INDEX) : id
    const places = { url: pathToFileURL(place).href, dirname: dirname(place), filename: place }
    if (code.includes('import.meta.')) {
      return code.replace(/import\.meta\.(url|dirname|filename)\b/g, (_, name: keyof typeof places) =>
        JSON.stringify(places[name]),
      )
    }
    // This is for CommonJS only: the declaration ends up inside the function that wraps the module.
    if (/\b__(dirname|filename)\b/.test(code)) {
      return `var __dirname = ${JSON.stringify(dirname(id))}, __filename = ${JSON.stringify(id)};${code}`
    }
    return null
  },
})
