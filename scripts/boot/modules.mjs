import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readFileSync, realpathSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { cacheDir, root } from './fetch-packages.mjs'
import { withLock } from './lock.mjs'
import { checkLockFile } from './lock-file.mjs'
import { runNpm } from './npm.mjs'
import { fits } from './pinned.mjs'
import { progress } from './progress.mjs'

const stampFile = join(root, 'node_modules', '.ichido-stamp')
const say = (line) => process.stderr.write(`${line}\n`)

/** Brings node_modules to the state of package-lock.json. If it is up to date, this costs only a hash. */
export async function ensureModules(nodeMajor) {
  const lockText = readFileSync(join(root, 'package-lock.json'))
  const stamp = `${createHash('sha256').update(lockText).digest('hex')} node${nodeMajor} ${process.platform}-${process.arch}`
  if (read(stampFile) === stamp) return
  const waiting = () => say('Another start is installing the npm packages; waiting for it.')
  await withLock(join(cacheDir, 'npm-ci.lock'), waiting, async () => {
    if (read(stampFile) === stamp) return
    const lock = JSON.parse(lockText)
    checkLockFile(lock)
    if (installedByHand(lock)) linkOwn(lock, root)
    else await install()
    writeFileSync(stampFile, stamp)
  })
}

async function install() {
  const why = existsSync(join(root, 'node_modules'))
    ? 'they are not those of package-lock.json'
    : 'once, about 200 MB on disk'
  const shown = progress(`Installing the npm packages of this repository (${why})`)
  try {
    // The caller's NODE_ENV=production must not leave out the type checker and the test runner.
    await runNpm(['ci', '--ignore-scripts', '--engine-strict=false', '--include=dev', '--include=optional'], root)
    shown.done()
  } catch (error) {
    shown.failed()
    throw error
  }
}

/** npm records what it installed in a hidden lock file, so the user's own `npm ci` need not be repeated. */
function installedByHand(lock) {
  const text = read(join(root, 'node_modules', '.package-lock.json'))
  if (text === undefined) return false
  const { packages: have } = JSON.parse(text)
  return Object.entries(lock.packages).every(([path, want]) => {
    if (path === '' || want.link || !path.includes('node_modules/')) return true
    const found = have[path]
    if (!found) return !fits(want)
    return found.version === want.version && found.integrity === want.integrity
  })
}

/** Links the packages of this repository: a pull may have added or moved one. */
export function linkOwn(lock, root) {
  for (const [path, { link, resolved }] of Object.entries(lock.packages)) {
    if (!link) continue
    const [from, to] = [join(root, path), join(root, resolved)]
    if (existsSync(from) && realpathSync(from) === realpathSync(to)) continue
    rmSync(from, { force: true })
    mkdirSync(dirname(from), { recursive: true })
    symlinkSync(to, from, 'junction')
  }
}

function read(path) {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return undefined
  }
}
