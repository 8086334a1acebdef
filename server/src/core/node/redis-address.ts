/** `redis://` and `rediss://` name one server, `redis+cluster://` some nodes of a cluster, separated by commas. */
export const REDIS_ADDRESS = /^rediss?(\+cluster)?:\/\/[^/\s]+/

export interface RedisAddress {
  cluster: boolean
  /** One for each server that is named, with credentials. */
  urls: string[]
  tls: boolean
  username?: string
  password?: string
}

export function readAddress(address: string): RedisAddress {
  const [, scheme = 'redis', plus, credentials = '', rest = ''] =
    /^(rediss?)(\+cluster)?:\/\/(?:(.*)@)?(.*)$/.exec(address) ?? []
  const hosts = plus === undefined ? [rest] : rest.replace(/\/.*$/, '').split(',')
  const urls = hosts.map((host) => `${scheme}://${credentials === '' ? '' : `${credentials}@`}${host}`)
  const { username, password } = new URL(urls[0] ?? address)
  return {
    cluster: plus !== undefined,
    urls,
    tls: scheme === 'rediss',
    ...(username === '' ? {} : { username: decodeURIComponent(username) }),
    ...(password === '' ? {} : { password: decodeURIComponent(password) }),
  }
}
