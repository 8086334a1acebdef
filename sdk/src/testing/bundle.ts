import { join } from 'node:path'
import { build } from 'vite'

const SOURCES = join(import.meta.dirname, '..')

/** Bundles like a browser application's bundler; modules of Node stay imports. */
export async function bundle(entry: string): Promise<{ code: string; imports: string[] }> {
  const built = await build({
    root: SOURCES,
    configFile: false,
    logLevel: 'silent',
    build: {
      write: false,
      lib: { entry: join(SOURCES, entry), formats: ['es'] },
      rolldownOptions: { external: /^node:/, output: { minify: true } },
    },
  })
  const [bundled] = Array.isArray(built) ? built : []
  const [chunk, ...others] = bundled?.output ?? []
  if (chunk === undefined || others.length > 0) throw new Error('One file in, one file out')
  return chunk
}
