import { execFile } from 'node:child_process'
import { globSync } from 'node:fs'
import { mkdir } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { promisify } from 'node:util'
import { cached } from '../boot/fetch-packages.mjs'
import { Trouble } from '../boot/trouble.mjs'
import { executable, onPath } from './find.ts'

const run = promisify(execFile)
const OVERRIDE = 'Install Redis 6.2 or newer, or set REDIS_SERVER to the path of `redis-server`.'
// What Debian 12's redis-server needs, for when apt cannot work it out.
const PACKAGES = ['redis-server', 'redis-tools', 'libjemalloc2', 'liblzf1']

export type RedisBinary = { path: string; env: NodeJS.ProcessEnv }

/** REDIS_SERVER, the PATH, or Debian's packages unpacked into .cache/ (root is not needed for it). */
export async function redisBinary(): Promise<RedisBinary> {
  const chosen = process.env.REDIS_SERVER
  if (chosen) {
    if (executable(chosen)) return { path: chosen, env: process.env }
    throw new Trouble(`REDIS_SERVER=${chosen} is not a program. ${OVERRIDE}`)
  }
  const found = onPath('redis-server', 'valkey-server')
  return found ? { path: found, env: process.env } : fetchBinary()
}

async function fetchBinary(): Promise<RedisBinary> {
  if (!executable('/usr/bin/apt-get') || !executable('/usr/bin/dpkg-deb')) {
    throw new Trouble(`No Redis was found, and this is not a Debian or Ubuntu to fetch it from. ${OVERRIDE}`)
  }
  const text = "No Redis is installed. Fetching Debian's for the tests (2 MB, once, into .cache/)"
  const folder = await cached(`redis-${process.arch}`, text, unpack)
  const libraries = [...new Set(globSync(`${folder}/usr/lib/**/*.so*`).map((file) => dirname(file)))]
  const env = {
    ...process.env,
    LD_LIBRARY_PATH: [...libraries, process.env.LD_LIBRARY_PATH].filter(Boolean).join(':'),
  }
  return { path: serverIn(folder), env }
}

const serverIn = (folder: string): string => globSync(`${folder}/usr/bin/{redis,valkey}-server`)[0] ?? ''

async function unpack(folder: string): Promise<void> {
  const apt = join(folder, 'apt')
  await mkdir(apt)
  try {
    // The package lists of an image are often missing or older than the archive: then with fresh ones of our own.
    await download(apt, []).catch(async () => download(apt, await freshLists(apt)))
  } catch (error) {
    throw new Trouble(`Redis could not be fetched from the system's package archive. ${OVERRIDE}\n${error}`)
  }
  for (const file of globSync(`${apt}/*.deb`)) await run('dpkg-deb', ['-x', file, folder])
  await run('rm', ['-rf', apt])
  if (!serverIn(folder)) throw new Trouble(`The fetched package holds no redis-server. ${OVERRIDE}`)
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

async function download(apt: string, options: string[]): Promise<void> {
  await run('apt-get', [...options, 'download', '-o', 'APT::Sandbox::User=', ...(await wanted(options))], { cwd: apt })
}

/** What an installation would add. Lines with the old version in brackets are upgrades: what is there will do. */
async function wanted(options: string[]): Promise<string[]> {
  const args = [...options, 'install', '--simulate', '--no-install-recommends', 'redis-server']
  const { stdout } = await run('apt-get', args, { env: { ...process.env, LC_ALL: 'C' } }).catch(() => ({ stdout: '' }))
  const added = [...stdout.matchAll(/^Inst (\S+) \(/gm)].map(([, name]) => name ?? '')
  return added.some((name) => name.startsWith('redis-server')) ? added : PACKAGES
}
