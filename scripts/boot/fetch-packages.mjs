import { randomBytes } from 'node:crypto'
import { existsSync, rmSync } from 'node:fs'
import { mkdir, readdir, rename, rm, stat, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { installPinned, packagesOf, specsOf } from './pinned.mjs'
import { progress } from './progress.mjs'

export const root = dirname(dirname(dirname(fileURLToPath(import.meta.url))))
export const cacheDir = join(root, '.cache')

const STALE_MS = 60 * 60 * 1000

/**
 * Creates `.cache/<name>` once and returns its path. `fill` works in a temporary folder that is renamed when complete:
 * an interrupted fetch leaves no incomplete folder under the name, and of two concurrent fetches the first wins.
 */
export async function cached(name, text, fill) {
  const target = join(cacheDir, name)
  if (existsSync(target)) return target
  await mkdir(cacheDir, { recursive: true })
  await sweep()
  const temporary = join(cacheDir, `.tmp-${name}-${randomBytes(6).toString('hex')}`)
  const remove = () => {
    try {
      rmSync(temporary, { recursive: true, force: true, maxRetries: 3 })
    } catch {
      // A stopped npm may still be writing there. A later sweep removes its files.
    }
  }
  process.once('exit', remove)
  const shown = progress(text)
  try {
    await mkdir(temporary)
    await fill(temporary)
    await rename(temporary, target).catch((error) => {
      if (!existsSync(target)) throw error
    })
    shown.done()
    return target
  } catch (error) {
    shown.failed()
    throw error
  } finally {
    process.removeListener('exit', remove)
    await rm(temporary, { recursive: true, force: true })
  }
}

/** Fetches sets of pinned packages with their dependencies, without running any of their scripts. */
export function fetchPackages({ what, sets, prepare }) {
  const name = specsOf(...sets)
    .map((spec) => spec.replace(/^@/, '').replace(/[/@]/g, '-'))
    .join('+')
  return cached(name, what, async (folder) => {
    await writeFile(join(folder, 'package.json'), '{"private":true}\n')
    await installPinned(packagesOf(...sets), folder)
    await prepare?.(folder)
  })
}

/** A process killed with -9 cannot remove its folder. */
async function sweep() {
  for (const name of await readdir(cacheDir)) {
    if (!name.startsWith('.tmp-')) continue
    const path = join(cacheDir, name)
    const age = Date.now() - (await stat(path).catch(() => ({ mtimeMs: Date.now() }))).mtimeMs
    if (age > STALE_MS) await rm(path, { recursive: true, force: true })
  }
}
