import { type Binary, findProgram } from './debian.ts'

export const redisBinary = (): Promise<Binary> =>
  findProgram({
    title: 'Redis',
    variable: 'REDIS_SERVER',
    names: ['redis-server', 'valkey-server'],
    package: 'redis-server',
    packages: ['redis-server', 'redis-tools', 'libjemalloc2', 'liblzf1'],
    program: 'usr/bin/{redis,valkey}-server',
    advice: 'Install Redis 6.2 or newer, or set REDIS_SERVER to the path of `redis-server`.',
  })
