import { Trouble } from '../boot/trouble.mjs'
import { type Binary, fetchDebianProgram } from './debian.ts'
import { executable, onPath, systemFolders } from './find.ts'

const OVERRIDE = 'Install PgBouncer, or set PGBOUNCER to the path of `pgbouncer`.'

/** PGBOUNCER, the PATH, or Debian's packages. */
export async function pgbouncerBinary(): Promise<Binary> {
  const chosen = process.env.PGBOUNCER
  if (chosen) {
    if (executable(chosen)) return { path: chosen, env: process.env }
    throw new Trouble(`PGBOUNCER=${chosen} is not a program. ${OVERRIDE}`)
  }
  // Debian installs it where only root's PATH leads.
  const found = onPath('pgbouncer') ?? systemFolders(['/usr/sbin/pgbouncer']).find(executable)
  if (found) return { path: found, env: process.env }
  return fetchDebianProgram({
    title: 'PgBouncer',
    package: 'pgbouncer',
    packages: ['pgbouncer', 'libevent-2.1-7', 'libc-ares2'],
    program: 'usr/sbin/pgbouncer',
    advice: OVERRIDE,
  })
}
