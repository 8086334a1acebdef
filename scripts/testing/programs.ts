import { mkdtempSync } from 'node:fs'
import { mkdir, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join, relative } from 'node:path'
import { pathToFileURL } from 'node:url'
import { build, type Plugin } from 'vite'
import { inject } from 'vitest'
import { root } from '../boot/fetch-packages.mjs'
import { bundleAgent } from '../bundle-agent.mjs'

/** The modules that processes of tests start from. */
const ENTRIES = [
  'server/src/cli/bin.ts',
  'server/src/cli/testing/resident-process.ts',
  'server/src/library/index.ts',
  'server/src/node/main.ts',
  'server/src/node/world.ts',
  'server/src/services/system/meter.ts',
  'server/src/testing/store/shifted-clock.ts',
]

/** The module beside which an agent in a server or command line looks for its program, and that program when it is built. */
const AGENT_INDEX = 'sdk/src/worker/agent/index.ts'
const AGENT_BUILT = 'sdk/src/worker/agent/main.js'

/** The agent as one file: from its sources each of its processes would take half a second of a core instead of 0.1. */
export const agentProgram = (): string => join(inject('programs'), AGENT_BUILT)

/** The bundled twin of one of these modules, by the path of its source. */
export const bundled = (source: string): string => outputOf(inject('programs'), relative(root, source))

const outputOf = (folder: string, entry: string) => join(folder, entry.replace(/\.ts$/, '.mjs'))

/**
 * Bundles them with their packages. A server of 700 files takes 1.5 s of a core to start, a bundled one half of that, and the
 * suite starts hundreds. The packages, the examples and `npm start` have tests that start the files themselves.
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

/** Each module is told the place of its source, by which it finds its files and threads, and knows that this is a clone. */
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
    // Only in CommonJS: the declaration ends up inside the function that it is wrapped in.
    if (/\b__(dirname|filename)\b/.test(code)) {
      return `var __dirname = ${JSON.stringify(dirname(id))}, __filename = ${JSON.stringify(id)};${code}`
    }
    return null
  },
})
