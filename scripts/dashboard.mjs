// Builds the dashboard for a clone, once for each state of its sources. The published server contains the built files.
import { spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = fileURLToPath(new URL('..', import.meta.url))
const CACHE = join(root, '.cache', 'dashboard')
const FOLDERS = ['dashboard/src', 'sdk/src/protocol', 'sdk/src/client']
const FILES = ['dashboard/index.html', 'package-lock.json', 'scripts/dashboard.mjs', 'sdk/src/world.ts']

/**
 * The folder with the built dashboard. It builds in a process of its own, because the bundler would keep its memory.
 * @returns {Promise<string>}
 */
export async function builtDashboard() {
  const folder = join(CACHE, hashOfSources())
  if (existsSync(folder)) return folder
  mkdirSync(CACHE, { recursive: true })
  const draft = join(CACHE, `draft-${process.pid}-${Date.now()}`)
  await build(draft)
  try {
    renameSync(draft, folder)
  } catch (error) {
    // Another process was first.
    rmSync(draft, { recursive: true, force: true })
    if (!existsSync(folder)) throw error
  }
  return folder
}

function hashOfSources() {
  const hash = createHash('sha256')
  const inFolders = FOLDERS.flatMap((folder) =>
    readdirSync(join(root, folder), { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile() && !entry.name.includes('.test.'))
      .map((entry) => join(entry.parentPath, entry.name)),
  )
  for (const file of [...FILES.map((file) => join(root, file)), ...inFolders.sort()]) {
    hash.update(file.slice(root.length)).update('\0').update(readFileSync(file)).update('\0')
  }
  return hash.digest('hex').slice(0, 16)
}

function build(outDir) {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, [fileURLToPath(import.meta.url), outDir], {
      stdio: ['ignore', 'inherit', 'inherit'],
    })
    child.once('error', reject)
    child.once('exit', (code) => {
      if (code === 0) resolve()
      else reject(new Error(`The dashboard could not be built: the bundler ended with ${code}`))
    })
  })
}

/** @param {string} outDir */
export async function bundleDashboard(outDir) {
  const { build } = await import('vite')
  await build({
    root: join(root, 'dashboard'),
    configFile: false,
    logLevel: 'warn',
    // The server writes its base path into the page, and all links are relative to it.
    base: '',
    resolve: { conditions: ['ichido-source', 'module', 'browser', 'development|production'] },
    oxc: { jsx: { runtime: 'automatic', importSource: 'preact' } },
    build: { outDir, emptyOutDir: true, target: 'es2023', assetsInlineLimit: 0, modulePreload: { polyfill: false } },
  })
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await bundleDashboard(process.argv[2])
