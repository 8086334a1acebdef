/** The store has to write, so a standby will not do, even without this parameter. */
const WRITING = ['any', 'read-write', 'primary']

/** Why the store cannot use this address; null when it can. It names no password. */
export function addressProblem(address: string): string | null {
  const target = partsOf(address)?.query.get('target_session_attrs')
  if (target === null || target === undefined || WRITING.includes(target)) return null
  return `must not ask for target_session_attrs=${target}: the store writes, so use read-write or leave it out`
}

/**
 * One address for each server, in their order: node-postgres knows neither `host1:5432,host2:5432` nor
 * `?host=host1,host2&port=5432,5433`, the two ways in which libpq lists them.
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

/** Null: not an address of this form, and node-postgres has to make sense of it. `new URL` takes one host only. */
function partsOf(address: string) {
  const found = /^(postgres(?:ql)?:\/\/)([^/?#]*@)?([^/?#@]*)([^?#]*)(?:\?([^#]*))?$/.exec(address)
  if (found === null) return null
  const [, scheme = '', user = '', hosts = '', path = '', query] = found
  return { scheme, user, hosts: hosts.split(','), path, query: new URLSearchParams(query) }
}
