/** The pages of other sites that may call the server from a browser. */
export interface AllowedOrigins {
  /** Pages of these origins may send a token. */
  exact: ReadonlySet<string>
  /** `*`: all other pages may call routes that need no token. */
  any: boolean
}

export const ORIGIN_EXAMPLE = 'https://app.example.org'

/** Reads a list separated by commas; `wrong` is the first part that is not an origin. */
export function parseAllowedOrigins(text: string): AllowedOrigins | { wrong: string } {
  const parts = text
    .split(',')
    .map((part) => part.trim())
    .filter((part) => part !== '')
  const exact = parts.filter((part) => part !== '*')
  const wrong = exact.find((part) => !isOrigin(part))
  if (wrong !== undefined) return { wrong }
  return { exact: new Set(exact), any: exact.length < parts.length }
}

/** True if the text is written as in the header Origin: any other spelling would never match. */
function isOrigin(text: string): boolean {
  return /^https?:\/\//.test(text) && URL.canParse(text) && new URL(text).origin === text
}

/**
 * The group that an address's failures and connections are counted for. An IPv6 customer can send from any address of
 * its /64. IPv4 on an IPv6 socket is still IPv4. Returns null if the text is not an address.
 */
export function addressGroup(text: string): string | null {
  const address = text.replace(/%.*$/, '')
  if (isIpv4(address)) return address
  const fields = ipv6Fields(address)
  if (fields === null) return null
  const [high = 0, low = 0] = fields.slice(6)
  const isMapped = fields.slice(0, 5).every((field) => field === 0) && fields[5] === 0xffff
  if (isMapped) return [high >> 8, high & 255, low >> 8, low & 255].join('.')
  const network = fields.slice(0, 4).map((field) => field.toString(16))
  return `${network.join(':')}::/64`
}

export function isIpv4(text: string): boolean {
  const parts = text.split('.')
  return parts.length === 4 && parts.every((part) => /^\d{1,3}$/.test(part) && Number(part) < 256)
}

/** Eight numbers of 16 bits. */
export function ipv6Fields(text: string): number[] | null {
  const [head = '', tail, ...more] = text.split('::')
  const [before, after] = [fieldsOf(head), tail === undefined ? [] : fieldsOf(tail)]
  if (!text.includes(':') || more.length > 0 || before === null || after === null) return null
  const missing = 8 - before.length - after.length
  if (tail === undefined ? missing !== 0 : missing < 1) return null
  return [...before, ...Array<number>(missing).fill(0), ...after]
}

function fieldsOf(text: string): number[] | null {
  if (text === '') return []
  const fields: number[] = []
  const parts = text.split(':')
  for (const [i, part] of parts.entries()) {
    if (i === parts.length - 1 && isIpv4(part)) {
      const [a = 0, b = 0, c = 0, d = 0] = part.split('.').map(Number)
      fields.push(a * 256 + b, c * 256 + d)
    } else if (/^[0-9a-f]{1,4}$/i.test(part)) fields.push(Number.parseInt(part, 16))
    else return null
  }
  return fields
}

/** The store writes, so it cannot use a standby. */
const WRITING = ['any', 'read-write', 'primary']

/** Says why the store cannot use this address, without its password; null if it can. */
export function addressProblem(address: string): string | null {
  const target = partsOf(address)?.query.get('target_session_attrs')
  if (target === null || target === undefined || WRITING.includes(target)) return null
  return `must not ask for target_session_attrs=${target}: the store writes, so use read-write or leave it out`
}

/**
 * Returns one address for each server, in their order. node-postgres knows neither `host1:5432,host2:5432` nor
 * `?host=host1,host2&port=5432,5433`, the two ways in which libpq lists servers.
 */
export function serverUrls(address: string): string[] {
  const parts = partsOf(address)
  if (parts === null) return [address]
  const { scheme, user, hosts, path, query } = parts
  const named = query.get('host')?.split(',')
  if (hosts.length === 1 && (named === undefined || named.length === 1)) return [address]
  const ports = query.get('port')?.split(',') ?? []
  return (named ?? hosts).map((host, n) => {
    const own = new URLSearchParams(query)
    own.delete('target_session_attrs')
    if (named !== undefined) own.set('host', host)
    const port = ports[n] ?? ports[0]
    if (port !== undefined) own.set('port', port)
    const rest = own.size === 0 ? '' : `?${own}`
    return `${scheme}${user}${named === undefined ? host : 'localhost'}${path}${rest}`
  })
}

/** The servers that an address names, without their ports, and its `sslmode`. */
export function serversOf(address: string): { hosts: string[]; sslmode: string | null } {
  const { hosts = [], query = new URLSearchParams() } = partsOf(address) ?? {}
  const named = query.get('host')?.split(',') ?? hosts
  const sslmode = query.get('sslmode') ?? (['1', 'true'].includes(query.get('ssl') ?? '') ? 'require' : null)
  return { hosts: named.map((host) => host.replace(/:\d*$/, '').replace(/^\[(.*)\]$/, '$1')), sslmode }
}

/**
 * Returns null if the address has another form, which node-postgres then has to parse. `new URL` accepts only one host.
 */
function partsOf(address: string) {
  const found = /^(postgres(?:ql)?:\/\/)([^/?#]*@)?([^/?#@]*)([^?#]*)(?:\?([^#]*))?$/.exec(address)
  if (found === null) return null
  const [, scheme = '', user = '', hosts = '', path = '', query] = found
  return { scheme, user, hosts: hosts.split(','), path, query: new URLSearchParams(query) }
}

/** `redis://` and `rediss://` name one server; `redis+cluster://` names nodes of a cluster, separated by commas. */
export const REDIS_ADDRESS = /^rediss?(\+cluster)?:\/\/[^/\s]+/

interface RedisAddress {
  cluster: boolean
  /** One URL for each server, with credentials. */
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
