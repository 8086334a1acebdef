import { type Binary, findProgram } from './debian.ts'

export const pgbouncerBinary = (): Promise<Binary> =>
  findProgram({
    title: 'PgBouncer',
    variable: 'PGBOUNCER',
    names: ['pgbouncer'],
    package: 'pgbouncer',
    packages: ['pgbouncer', 'libevent-2.1-7', 'libc-ares2'],
    program: 'usr/sbin/pgbouncer',
    advice: 'Install PgBouncer, or set PGBOUNCER to the path of `pgbouncer`.',
  })
