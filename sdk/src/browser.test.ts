import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import { build } from 'vite'
import { expect, test } from 'vitest'

const GZIP_BYTES_MAX = 12 * 1024

/** As a browser application's bundler would do it; what Node has and a browser lacks stays an import. */
async function bundle(entry: string): Promise<{ code: string; imports: string[] }> {
  const built = await build({
    root: import.meta.dirname,
    configFile: false,
    logLevel: 'silent',
    build: {
      write: false,
      lib: { entry: join(import.meta.dirname, entry), formats: ['es'] },
      rolldownOptions: { external: /^node:/, output: { minify: true } },
    },
  })
  const [bundled] = Array.isArray(built) ? built : []
  const [chunk, ...others] = bundled?.output ?? []
  if (chunk === undefined || others.length > 0) throw new Error('One file in, one file out')
  return chunk
}

test.each(['client/index.ts', 'worker/index.ts', 'index.ts'])('%s runs in a browser and is small', async (entry) => {
  const { code, imports } = await bundle(entry)
  expect(imports).toEqual([])
  expect(code.match(/\b(process|Buffer|global|__dirname)\.\w+|\brequire\(/g)).toBeNull()
  const bytes = gzipSync(code).length
  console.log(`@ichido/sdk ${entry}: ${bytes} bytes minified and gzipped`)
  expect(bytes).toBeLessThan(GZIP_BYTES_MAX)
})
