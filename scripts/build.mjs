// The `prepack` of both packages: JavaScript, declarations and assets into <package>/dist. Node does not strip types
// below node_modules, so what is published is not what runs in the repository.
import { spawnSync } from 'node:child_process'
import { chmodSync, cpSync, existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { bundleAgent } from './bundle-agent.mjs'

// In the order in which they build: the server's declarations lean on the SDK's.
const PACKAGES = ['sdk', 'server']
const ASSETS = /\.(html|sql|lua|css|js|svg)$/
const SHEBANG = '#!/usr/bin/env node\n'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const wanted = PACKAGES.indexOf(process.argv[2] ?? '')
if (wanted < 0) {
  process.stderr.write(`usage: node scripts/build.mjs ${PACKAGES.join(' | ')}\n`)
  process.exit(2)
}
for (const name of PACKAGES.slice(0, wanted + 1)) build(join(root, name))
// What the server hands out at /agent.mjs.
if (PACKAGES[wanted] === 'server') writeFileSync(join(root, 'server', 'dist', 'agent.mjs'), await bundleAgent())

function build(folder) {
  rmSync(join(folder, 'dist'), { recursive: true, force: true })
  compile(folder)
  for (const file of readdirSync(join(folder, 'src'), { recursive: true })) {
    if (ASSETS.test(file)) copyAsset(join(folder, 'src', file), join(folder, 'dist', file))
  }
  // npm packs these two from the package's own folder only.
  for (const file of ['README.md', 'LICENSE']) cpSync(join(root, file), join(folder, file))
  const { bin = {} } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'))
  for (const file of Object.values(bin)) makeProgram(join(folder, file))
}

/** Only written: `npm test` checks the types, and an application that uses what was packed. */
function compile(folder) {
  const compiler = join(root, 'node_modules', 'typescript', 'bin', 'tsc')
  const args = [compiler, '--project', join(folder, 'tsconfig.build.json')]
  // npm reads what `npm pack --json` prints; the compiler's words go elsewhere.
  const { status } = spawnSync(process.execPath, args, { stdio: ['ignore', process.stderr.fd, process.stderr.fd] })
  if (status !== 0) process.exit(status ?? 1)
}

/** Beside a `page.ts` there must be no `page.js`: its copy would take the place of what was compiled. */
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
