import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { Trouble } from '../boot/trouble.mjs'
import { executable, onPath } from '../services/find.ts'

const run = promisify(execFile)
/** Another apt may be running on this machine. It holds its lock for minutes at most. */
const LOCK_TIMEOUT_SECONDS = 300

/** The programs that S0's clients need. */
export type ClientTools = { bash: string; python: string }

/** Finds bash, curl, jq and a Python with requests and aiohttp. As root it installs missing packages. */
export async function clientTools(): Promise<ClientTools> {
  const missing = await missingPackages()
  if (missing.length > 0) await installPackages(missing, OTHER_PYTHON)
  const left = await missingPackages()
  const bash = onPath('bash')
  const python = await findPython()
  if (left.length > 0 || bash === undefined || python === undefined) {
    throw new Trouble(`${missing.join(', ')} were installed, and yet cannot be used. ${advice(left, OTHER_PYTHON)}`)
  }
  return { bash, python }
}

async function missingPackages(): Promise<string[]> {
  const missing = ['bash', 'curl', 'jq'].filter((name) => onPath(name) === undefined)
  return (await findPython()) === undefined ? [...missing, 'python3-requests', 'python3-aiohttp'] : missing
}

const S4_MODULES = 'redis.asyncio, pytest, pytest_asyncio'
const S4_PACKAGES = ['python3-redis', 'python3-pytest', 'python3-pytest-asyncio']
const S4_PYTHON = 'set PYTHON to a Python that has redis, pytest and pytest-asyncio'

/** A Python that runs S4's code and its test. */
export async function redisPython(): Promise<string> {
  const found = await findPython(S4_MODULES)
  if (found !== undefined) return found
  await installPackages(S4_PACKAGES, S4_PYTHON)
  const python = await findPython(S4_MODULES)
  if (python === undefined) {
    throw new Trouble(
      `${S4_PACKAGES.join(', ')} were installed, and yet cannot be used. ${advice(S4_PACKAGES, S4_PYTHON)}`,
    )
  }
  return python
}

/** Only Debian's own Python sees Debian's packages, and it need not be the first one on the PATH. */
async function findPython(modules = 'requests, aiohttp'): Promise<string | undefined> {
  for (const path of [process.env.PYTHON, '/usr/bin/python3', onPath('python3')]) {
    if (path === undefined || !executable(path)) continue
    const found = await run(path, ['-c', `import ${modules}`]).then(
      () => true,
      () => false,
    )
    if (found) return path
  }
  return undefined
}

const OTHER_PYTHON = 'set PYTHON to a Python that has requests and aiohttp'

/** Installs packages as root. Otherwise it fails with advice: to install them, or to use the alternative. */
export async function installPackages(packages: string[], otherwise?: string): Promise<void> {
  if (process.getuid?.() !== 0 || !executable('/usr/bin/apt-get')) {
    throw new Trouble(`${packages.join(', ')} are needed, and cannot be installed here. ${advice(packages, otherwise)}`)
  }
  const options = { env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' } }
  const lock = ['-o', `DPkg::Lock::Timeout=${LOCK_TIMEOUT_SECONDS}`]
  const install = () => run('apt-get', [...lock, 'install', '-y', '--no-install-recommends', ...packages], options)
  try {
    // The package lists of an image are often missing or older than the archive.
    await install().catch(() => run('apt-get', [...lock, 'update'], options).then(install))
  } catch (error) {
    throw new Trouble(`${packages.join(', ')} could not be installed. ${advice(packages, otherwise)}\n${error}`)
  }
}

function advice(packages: string[], otherwise?: string): string {
  const line = `Run \`apt-get install ${packages.join(' ')}\` as root`
  return otherwise === undefined ? `${line}.` : `${line}, or ${otherwise}.`
}
