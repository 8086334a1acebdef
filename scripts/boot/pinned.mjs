import { createHash } from 'node:crypto'
import { chmodSync, existsSync, readFileSync } from 'node:fs'
import { mkdir, rm } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { runNpm } from './npm.mjs'
import { unpackTarball } from './tar.mjs'
import { Trouble } from './trouble.mjs'

/**
 * The packages that are not in package-lock.json, each with its version and the SHA-512 of its tarball, as `npm install
 * --package-lock-only` writes them: Node and npm for each system, and the packages that tests and benchmarks fetch. The
 * packages of a set are fetched together.
 */
const SETS = JSON.parse(readFileSync(join(dirname(fileURLToPath(import.meta.url)), 'pins.json'), 'utf8'))

/** `name@version` of the main packages of a set, without their dependencies. */
export const specsOf = (...sets) => sets.flatMap((set) => SETS[set].specs)

export const packagesOf = (...sets) => Object.assign({}, ...sets.map((set) => SETS[set].packages))

/**
 * Installs packages into a folder. npm only downloads them, into a temporary cache. Each tarball is checked against its
 * hash here, and nothing is unpacked before all of them were checked.
 */
export async function installPinned(packages, folder) {
  const wanted = Object.entries(packages).filter(([, each]) => fits(each))
  const specs = new Map(wanted.map(([path, each]) => [path, `${nameOf(path, each)}@${each.version}`]))
  const tarballs = join(folder, 'tarballs')
  const cache = join(folder, 'npm-cache')
  await mkdir(tarballs)
  try {
    await runNpm(['pack', '--ignore-scripts', '--cache', cache, ...new Set(specs.values())], tarballs)
    const checked = wanted.map(([path, { integrity }]) => [path, check(tarballs, specs.get(path), integrity)])
    for (const [path, bytes] of checked) {
      unpackTarball(bytes, join(folder, path))
      makeExecutable(join(folder, path))
    }
  } finally {
    await rm(tarballs, { recursive: true, force: true })
    await rm(cache, { recursive: true, force: true })
  }
}

function check(tarballs, spec, integrity) {
  const file = join(
    tarballs,
    `${spec
      .replace(/^@/, '')
      .replace('/', '-')
      .replace(/@([^@]*)$/, '-$1')}.tgz`,
  )
  const bytes = readFileSync(file)
  const found = `sha512-${createHash('sha512').update(bytes).digest('base64')}`
  if (found === integrity) return bytes
  throw new Trouble(
    `${spec} is not the package that this repository was tested with, and was removed unused.\n` +
      `  expected ${integrity}\n  received ${found}\n` +
      'The registry, a proxy or a mirror has changed it. Do not go on before you know why; see `npm config get registry`.',
  )
}

/** Some packages leave it to npm to make their programs executable. */
function makeExecutable(folder) {
  const { bin = {} } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'))
  for (const file of typeof bin === 'string' ? [bin] : Object.values(bin)) {
    if (existsSync(join(folder, file))) chmodSync(join(folder, file), 0o755)
  }
}

const nameOf = (path, { name }) => name ?? path.slice(path.lastIndexOf('node_modules/') + 'node_modules/'.length)

/** Whether a package is for this system. An npm under an old Node leaves out some packages that are. */
export function fits({ os, cpu, libc }) {
  const glibc = process.report?.getReport().header.glibcVersionRuntime !== undefined
  const among = (list, name) => !list || list.includes(name)
  return among(os, process.platform) && among(cpu, process.arch) && among(libc, glibc ? 'glibc' : 'musl')
}
