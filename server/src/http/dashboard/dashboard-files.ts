import { createHash } from 'node:crypto'
import { readdir, readFile } from 'node:fs/promises'
import { extname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { gzipSync } from 'node:zlib'

/** A file of the dashboard, as it is sent. */
export interface DashboardFile {
  type: string
  etag: string
  content: Buffer
  gzipped: Buffer
}

const TYPES: Record<string, string> = {
  '.html': 'text/html; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.svg': 'image/svg+xml',
}
/** The built files of the published package. */
const BUILT = new URL('../../dashboard/', import.meta.url)
/** The builder, in a clone of the repository. */
const BUILDER = new URL('../../../../scripts/dashboard.mjs', import.meta.url)

/**
 * All files of the dashboard by their paths, in memory. In a clone the first call builds them.
 * @param basePath the path of the server, which the page names as the base of its links
 */
export async function readDashboard(basePath: string): Promise<Map<string, DashboardFile>> {
  const folder = import.meta.url.endsWith('.ts') ? await build() : fileURLToPath(BUILT)
  const names = (await readdir(folder, { recursive: true })).filter((name) => extname(name) in TYPES)
  const files = await Promise.all(
    names.map(async (name) => {
      const content = await readFile(join(folder, name))
      return [name, toFile(name, name === 'index.html' ? withBase(content, basePath) : content)] as const
    }),
  )
  return new Map(files)
}

async function build(): Promise<string> {
  const { builtDashboard } = (await import(BUILDER.href)) as { builtDashboard(): Promise<string> }
  return builtDashboard()
}

function toFile(name: string, content: Buffer): DashboardFile {
  const etag = `"${createHash('sha256').update(content).digest('base64url')}"`
  return { type: TYPES[extname(name)] ?? 'application/octet-stream', etag, content, gzipped: gzipSync(content) }
}

/** A page such as /jobs/1 has the same relative links as the first page, so it names what they are relative to. */
function withBase(content: Buffer, basePath: string): Buffer {
  const escaped = basePath.replaceAll('&', '&amp;').replaceAll('"', '&quot;')
  return Buffer.from(content.toString('utf8').replace('<head>', `<head>\n    <base href="${escaped}/">`))
}
