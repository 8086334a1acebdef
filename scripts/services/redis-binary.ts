import { Trouble } from '../boot/trouble.mjs'
import { type Binary, fetchDebianProgram } from './debian.ts'
import { executable, onPath } from './find.ts'

const OVERRIDE = 'Install Redis 6.2 or newer, or set REDIS_SERVER to the path of `redis-server`.'

/** REDIS_SERVER, the PATH, or Debian's packages. */
export async function redisBinary(): Promise<Binary> {
  const chosen = process.env.REDIS_SERVER
  if (chosen) {
    if (executable(chosen)) return { path: chosen, env: process.env }
    throw new Trouble(`REDIS_SERVER=${chosen} is not a program. ${OVERRIDE}`)
  }
  const found = onPath('redis-server', 'valkey-server')
  if (found) return { path: found, env: process.env }
  return fetchDebianProgram({
    title: 'Redis',
    package: 'redis-server',
    packages: ['redis-server', 'redis-tools', 'libjemalloc2', 'liblzf1'],
    program: 'usr/bin/{redis,valkey}-server',
    advice: OVERRIDE,
  })
}
