import { gzipSync } from 'node:zlib'
import { expect, test } from 'vitest'
import { bundle } from './testing/bundle.ts'

const GZIP_BYTES_MAX = 12 * 1024
const ENTRIES = ['client/index.ts', 'worker/index.ts', 'index.ts', 'outbox/index.ts']

test.each(ENTRIES)('%s runs in a browser and is small', async (entry) => {
  const { code, imports } = await bundle(entry)
  expect(imports).toEqual([])
  expect(code.match(/\b(process|Buffer|global|__dirname)\.\w+|\brequire\(/g)).toBeNull()
  const bytes = gzipSync(code).length
  console.log(`@ichido/sdk ${entry}: ${bytes} bytes minified and gzipped`)
  expect(bytes).toBeLessThan(GZIP_BYTES_MAX)
})
