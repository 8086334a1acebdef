// Fetches what a fresh clone needs (Node 24, npm packages) and runs one command with it. This code runs before anything is
// installed, so it uses only Node's built-ins, and nothing newer than Node 18.
import { constants } from 'node:os'
import { join } from 'node:path'
import { cacheDir, root } from './boot/fetch-packages.mjs'
import { ensureModules } from './boot/modules.mjs'
import { findNode } from './boot/node.mjs'
import { useNpm } from './boot/npm.mjs'
import { run } from './boot/run.mjs'
import { Trouble } from './boot/trouble.mjs'

const COMMANDS = {
  start: ['server/src/cli/bin.ts', 'serve', '--local-worker'],
  ichido: ['server/src/cli/bin.ts'],
  test: ['scripts/test.ts'],
  bench: ['bench/main.ts'],
  'zpe-h2': ['examples/zpe-h2/main.ts'],
  'scan-pipeline': ['examples/scan-pipeline/main.ts'],
  bookmarks: ['examples/bookmarks/main.ts'],
  sbom: ['scripts/sbom.ts'],
  'audit-signatures': ['scripts/audit-signatures.ts'],
  format: ['node_modules/@biomejs/biome/bin/biome', 'check', '--write', '.'],
}

const [name, ...rest] = process.argv.slice(2)
const command = Object.hasOwn(COMMANDS, name ?? '') ? COMMANDS[name] : undefined
if (!command) {
  process.stderr.write(`usage: node scripts/boot.mjs ${Object.keys(COMMANDS).join(' | ')} [arguments]\n`)
  process.exit(2)
}

// npm runs scripts in the repository's root, but paths on the command line of `ichido` are relative to the caller's folder.
const cwd = name === 'ichido' ? (process.cwd() === root && process.env.INIT_CWD) || process.cwd() : root

const stop = (signal) => process.exit(128 + constants.signals[signal])
const STOPS = ['SIGINT', 'SIGTERM', 'SIGHUP']
for (const signal of STOPS) process.on(signal, stop)
try {
  const node = await findNode()
  if (node.npm) useNpm(node.npm, node.path)
  await ensureModules(node.major)
  for (const signal of STOPS) process.removeListener(signal, stop)
  const [script, ...args] = command
  // With the compile cache of the last run, Node starts a fifth faster.
  process.env.NODE_COMPILE_CACHE ??= join(cacheDir, 'compiled')
  await run(node.path, ['--conditions=ichido-source', join(root, script), ...args, ...rest], { cwd })
} catch (error) {
  if (!(error instanceof Trouble)) throw error
  process.stderr.write(`${error.message}\n`)
  process.exitCode = 1
}
