import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { build } from 'vite'

export interface PageFile {
  type: string
  content: string
}

const FOLDER = new URL('page/', import.meta.url)
const FILES = {
  '/': ['index.html', 'text/html; charset=utf-8'],
  '/page.css': ['page.css', 'text/css; charset=utf-8'],
  '/icon.svg': ['icon.svg', 'image/svg+xml'],
  '/manifest.webmanifest': ['manifest.webmanifest', 'application/manifest+json; charset=utf-8'],
} as const
const SCRIPT = 'text/javascript; charset=utf-8'

/** The files of the page, by path. The service worker caches all others under their common version, or none of them. */
export async function pageFiles(): Promise<Map<string, PageFile>> {
  const read = (name: string) => readFileSync(new URL(name, FOLDER), 'utf8')
  const files = new Map<string, PageFile>([['/page.js', { type: SCRIPT, content: await bundle() }]])
  for (const [path, [name, type]] of Object.entries(FILES)) files.set(path, { type, content: read(name) })
  const version = createHash('sha256')
    .update(JSON.stringify([...files]))
    .digest('hex')
    .slice(0, 16)
  const worker = read('sw.js')
    .replace('__VERSION__', version)
    .replace('__FILES__', JSON.stringify([...files.keys()]))
  return files.set('/sw.js', { type: SCRIPT, content: worker })
}

/** The page's TypeScript and the used parts of the SDK as one file, built in memory so that a clone stays clean. */
async function bundle(): Promise<string> {
  const built = await build({
    root: fileURLToPath(FOLDER),
    configFile: false,
    logLevel: 'error',
    resolve: { conditions: ['ichido-source', 'module', 'browser'] },
    build: {
      write: false,
      target: 'es2022',
      lib: { entry: fileURLToPath(new URL('page.ts', FOLDER)), formats: ['es'] },
    },
  })
  const [bundled] = Array.isArray(built) ? built : []
  const [chunk] = bundled?.output ?? []
  if (chunk?.type !== 'chunk') throw new Error('The page was not built')
  return chunk.code
}
