import { execFile } from 'node:child_process'
import { globSync } from 'node:fs'
import { mkdir } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { promisify } from 'node:util'
import { cached } from '../boot/fetch-packages.mjs'
import { Trouble } from '../boot/trouble.mjs'
import { executable, onPath } from './find.ts'

const run = promisify(execFile)

type Binary = { path: string; env: NodeJS.ProcessEnv }

export type DebianProgram = {
  /** Its usual name. */
  title: string
  /** The environment variable with the path of the user's own program. */
  variable: string
  /** Its name on the PATH. */
  names: string[]
  package: string
  /** The package and its libraries on Debian 12, for when apt cannot work them out. */
  packages: string[]
  /** The path of the program inside the package, as a glob. */
  program: string
  /** Advice on how to avoid the download. */
  advice: string
}

/** Finds the program of the variable, of the PATH, or of Debian's packages. */
export async function findProgram(wanted: DebianProgram): Promise<Binary> {
  const chosen = process.env[wanted.variable]
  if (chosen && !executable(chosen)) {
    throw new Trouble(`${wanted.variable}=${chosen} is not a program. ${wanted.advice}`)
  }
  const found = chosen || onPath(...wanted.names)
  return found ? { path: found, env: process.env } : fetchProgram(wanted)
}

/**
 * Unpacks Debian's packages into .cache/, without root. They are not pinned, because an archive keeps only its newest
 * versions: apt checks the archive's signature over the lists, and the hash of each package in them.
 */
async function fetchProgram(wanted: DebianProgram): Promise<Binary> {
  const { title, advice } = wanted
  if (!executable('/usr/bin/apt-get') || !executable('/usr/bin/dpkg-deb')) {
    throw new Trouble(`No ${title} was found, and this is not a Debian or Ubuntu to fetch it from. ${advice}`)
  }
  const text = `No ${title} is installed. Fetching Debian's for the tests (2 MB at most, once, into .cache/)`
  const name = `${title.toLowerCase()}-${process.arch}`
  const folder = await cached(name, text, (empty: string) => unpack(empty, wanted))
  const libraries = [...new Set(globSync(`${folder}/usr/lib/**/*.so*`).map((file) => dirname(file)))]
  const env = {
    ...process.env,
    LD_LIBRARY_PATH: [...libraries, process.env.LD_LIBRARY_PATH].filter(Boolean).join(':'),
  }
  return { path: programIn(folder, wanted), env }
}

const programIn = (folder: string, { program }: DebianProgram): string => globSync(join(folder, program))[0] ?? ''

async function unpack(folder: string, wanted: DebianProgram): Promise<void> {
  const { title, advice } = wanted
  const apt = join(folder, 'apt')
  await mkdir(apt)
  try {
    // The package lists of an image are often missing or older than the archive. The retry fetches fresh lists.
    await download(wanted, apt, []).catch(async () => download(wanted, apt, await freshLists(apt)))
  } catch (error) {
    throw new Trouble(`${title} could not be fetched from the system's package archive. ${advice}\n${error}`)
  }
  for (const file of globSync(`${apt}/*.deb`)) await run('dpkg-deb', ['-x', file, folder])
  await run('rm', ['-rf', apt])
  if (!programIn(folder, wanted)) throw new Trouble(`The fetched package holds no ${wanted.program}. ${advice}`)
}

async function freshLists(apt: string): Promise<string[]> {
  const lists = join(apt, 'lists')
  const cache = join(apt, 'cache')
  await mkdir(join(lists, 'partial'), { recursive: true })
  await mkdir(join(cache, 'archives', 'partial'), { recursive: true })
  const options = ['-o', `Dir::State::lists=${lists}`, '-o', `Dir::Cache=${cache}`, '-o', 'APT::Sandbox::User=']
  await run('apt-get', [...options, 'update'])
  return options
}

async function download(wanted: DebianProgram, apt: string, options: string[]): Promise<void> {
  const packages = await missing(wanted, options)
  await run('apt-get', [...options, 'download', '-o', 'APT::Sandbox::User=', ...packages], { cwd: apt })
}

/** The packages that an installation would add. Upgrades, whose lines have the old version in brackets, are skipped. */
async function missing(wanted: DebianProgram, options: string[]): Promise<string[]> {
  const args = [...options, 'install', '--simulate', '--no-install-recommends', wanted.package]
  const { stdout } = await run('apt-get', args, { env: { ...process.env, LC_ALL: 'C' } }).catch(() => ({ stdout: '' }))
  const added = [...stdout.matchAll(/^Inst (\S+) \(/gm)].map(([, name]) => name ?? '')
  return added.some((name) => name.startsWith(wanted.package)) ? added : wanted.packages
}
