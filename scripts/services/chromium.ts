import { execFile } from 'node:child_process'
import { mkdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { fetchPackages } from '../boot/fetch-packages.mjs'
import { Trouble } from '../boot/trouble.mjs'
import { executable, onPath } from './find.ts'

const run = promisify(execFile)
const PACKAGE = '@sparticuz/chromium'
const OVERRIDE = 'Install Chromium or Chrome, or set CHROMIUM to the path of its program.'

// The browser runs as root, without a GPU, and calls no hosts that a closed network would refuse.
const ARGS = [
  '--headless',
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--disable-dev-shm-usage',
  '--no-first-run',
  '--no-default-browser-check',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
]

/** The options for playwright's `chromium.launch()`. */
export type Chromium = { executablePath: string; args: string[]; env: Record<string, string> }

/** CHROMIUM, the PATH, or the headless shell inside an npm package, unpacked into .cache/. */
export async function findChromium(): Promise<Chromium> {
  const chosen = process.env.CHROMIUM
  if (chosen) {
    if (executable(chosen)) return { executablePath: chosen, args: ARGS, env: environment() }
    throw new Trouble(`CHROMIUM=${chosen} is not a program. ${OVERRIDE}`)
  }
  const found = onPath('chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable')
  return found ? { executablePath: found, args: ARGS, env: environment() } : fetchChromium()
}

const environment = (): Record<string, string> =>
  Object.fromEntries(Object.entries(process.env).filter((entry): entry is [string, string] => entry[1] !== undefined))

async function fetchChromium(): Promise<Chromium> {
  if (process.platform !== 'linux' || process.arch !== 'x64') throw new Trouble(`No Chromium was found. ${OVERRIDE}`)
  const folder = await fetchPackages({
    what: 'No Chromium is installed. Fetching one for the tests (70 MB, once, into .cache/)',
    sets: ['chromium'],
    prepare: unpack,
  }).catch((error: unknown) => {
    throw error instanceof Trouble ? new Trouble(`Chromium could not be fetched. ${OVERRIDE}\n${error.message}`) : error
  })
  const home = join(folder, 'browser')
  const executablePath = join(home, 'chromium')
  const env = { ...environment(), FONTCONFIG_PATH: join(home, 'fonts') }
  if (await lacksLibraries(executablePath)) Object.assign(env, { LD_LIBRARY_PATH: join(home, 'al2023', 'lib') })
  return { executablePath, args: ARGS, env }
}

/** The package unpacks itself into the folder for temporary files. It includes its libraries only on Lambda. */
async function unpack(folder: string): Promise<void> {
  const home = join(folder, 'browser')
  await mkdir(home)
  const code = `await (await import('${PACKAGE}')).default.executablePath()`
  const env = { ...process.env, TMPDIR: home, AWS_EXECUTION_ENV: 'nodejs24.x' }
  await run(process.execPath, ['--input-type=module', '--eval', code], { cwd: folder, env })
  await writeFile(join(home, 'fonts', 'fonts.conf'), FONTS)
}

// The package's own font settings name only folders of Lambda, and a browser without fonts crashes on the first letter.
const FONTS = `<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig>
  <dir>/usr/share/fonts</dir>
  <dir prefix="relative">fonts</dir>
  <cachedir prefix="xdg">fontconfig</cachedir>
</fontconfig>
`

async function lacksLibraries(path: string): Promise<boolean> {
  const { stdout } = await run('ldd', [path]).catch(() => ({ stdout: 'not found' }))
  return stdout.includes('not found')
}
