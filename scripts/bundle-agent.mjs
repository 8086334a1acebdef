// The agent as one file without dependencies, for machines that have nothing but Node 20.
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { build } from 'vite'

const root = fileURLToPath(new URL('..', import.meta.url))
const ENTRY = 'sdk/src/worker/agent/main.ts'

/** @returns {Promise<string>} the text of agent.mjs */
export async function bundleAgent() {
  const built = await build({
    root,
    configFile: false,
    logLevel: 'silent',
    build: {
      write: false,
      target: 'node20',
      ssr: join(root, ENTRY),
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
