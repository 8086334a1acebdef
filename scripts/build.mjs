// The `prepack` of the packages writes JavaScript, declarations and assets to <package>/dist. Node does not strip types below
// node_modules, so the published files are not those that run in the repository.
import { spawnSync } from 'node:child_process'
import { chmodSync, cpSync, existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { bundleAgent, bundleLibrary } from './bundle.mjs'
import { bundleDashboard } from './dashboard.mjs'

const ASSETS = /\.(html|sql|lua|css|js|svg)$/
const SHEBANG = '#!/usr/bin/env node\n'

const root = dirname(dirname(fileURLToPath(import.meta.url)))

/** The SDK comes first, because the other declarations refer to its declarations. */
const BUILDS = {
  sdk: buildSdk,
  async library() {
    buildSdk()
    await buildLibrary()
  },
  async server() {
    buildSdk()
    await buildServer()
  },
}

const build = BUILDS[process.argv[2] ?? '']
if (build === undefined) {
  process.stderr.write(`usage: node scripts/build.mjs ${Object.keys(BUILDS).join(' | ')}\n`)
  process.exit(2)
}
await build()

function buildSdk() {
  compileAll('sdk')
}

async function buildServer() {
  const { bin } = compileAll('server')
  for (const file of Object.values(bin)) makeProgram(join(root, 'server', file))
  await bundleDashboard(join(root, 'server', 'dist', 'dashboard'))
  // The server serves this file at /agent.mjs.
  writeFileSync(join(root, 'server', 'dist', 'agent.mjs'), await bundleAgent())
}

/** Bundles all server sources that the library's entries reach. */
async function buildLibrary() {
  const { dependencies, exports } = begin('library')
  const dist = join(root, 'library', 'dist')
  const licences = await bundleLibrary(dist, Object.keys(dependencies))
  const notices = [...licences].sort().map(([name, text]) => `${name}\n\n${text.trim()}\n`)
  writeFileSync(join(dist, 'THIRD-PARTY.txt'), `This package contains parts of:\n\n${notices.join('\n---\n\n')}`)
  const all = join(dist, 'all')
  compile('library')
  for (const { types } of Object.values(exports)) {
    if (types !== undefined) keepDeclarations(all, dist, join(root, 'library', types).slice(dist.length + 1))
  }
  rmSync(all, { recursive: true })
}

/** Copies a declaration and those that it imports. The compiler writes the declarations of the whole engine. */
function keepDeclarations(all, dist, file) {
  if (existsSync(join(dist, file))) return
  cpSync(join(all, file), join(dist, file))
  for (const [, path] of readFileSync(join(dist, file), 'utf8').matchAll(/(?:from |import\()'(\.[^']*)'/g)) {
    keepDeclarations(all, dist, join(dirname(file), path.replace(/\.[jt]s$/, '.d.ts')))
  }
}

function begin(name) {
  const folder = join(root, name)
  rmSync(join(folder, 'dist'), { recursive: true, force: true })
  // npm packs the license only from the package's own folder.
  cpSync(join(root, 'LICENSE'), join(folder, 'LICENSE'))
  return JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'))
}

function compileAll(name) {
  const manifest = begin(name)
  const folder = join(root, name)
  compile(name)
  for (const file of readdirSync(join(folder, 'src'), { recursive: true })) {
    if (ASSETS.test(file)) copyAsset(join(folder, 'src', file), join(folder, 'dist', file))
  }
  return manifest
}

/** Only emits: `npm test` checks the types, and an application that uses the packed files. */
function compile(name) {
  const compiler = join(root, 'node_modules', 'typescript', 'bin', 'tsc')
  const args = [compiler, '--project', join(root, name, 'tsconfig.build.json')]
  // npm parses the stdout of `npm pack --json`, so the compiler's output goes to stderr.
  const { status } = spawnSync(process.execPath, args, { stdio: ['ignore', process.stderr.fd, process.stderr.fd] })
  if (status !== 0) process.exit(status ?? 1)
}

/** A `page.js` beside a `page.ts` would overwrite the compiled file. */
function copyAsset(from, to) {
  if (existsSync(to)) {
    process.stderr.write(`${from} would be copied over what was compiled to ${to}; rename one of them.\n`)
    process.exit(1)
  }
  cpSync(from, to)
}

function makeProgram(path) {
  if (!existsSync(path)) {
    process.stderr.write(`${path} was not built, and package.json names it as a program.\n`)
    process.exit(1)
  }
  const text = readFileSync(path, 'utf8')
  if (!text.startsWith('#!')) writeFileSync(path, SHEBANG + text)
  chmodSync(path, 0o755)
}
