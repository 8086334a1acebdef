import { serversOf } from '../../core/node/addresses.ts'
import { isLoopback, type StorageConfig } from '../../node/config.ts'
import { processEnv } from './process-env.ts'

/** Those that never go on without TLS. `no-verify` is node-postgres's own. */
const INSISTS = ['require', 'verify-ca', 'verify-full', 'no-verify']

/** What is wrong with addresses that lead to another machine and do not insist on TLS; null: nothing. */
export function tlsProblem(storage: StorageConfig): { message: string; advice: string } | null {
  if ('dataDir' in storage) return null
  const addresses = { DATABASE_URL: storage.databaseUrl, DATABASE_DIRECT_URL: storage.databaseDirectUrl }
  for (const [variable, address] of Object.entries(addresses)) {
    const { hosts, sslmode } = serversOf(address ?? '')
    if (INSISTS.includes(sslmode ?? processEnv.env.PGSSLMODE ?? '')) continue
    // A host that begins with a slash is the folder of a unix socket.
    const far = hosts.find((host) => host !== '' && !host.startsWith('/') && !isLoopback(host))
    if (far === undefined) continue
    return {
      message: `${variable} leads to ${far} and does not require TLS: others on the network can read database passwords, payloads and results`,
      advice: `Add sslmode=verify-full to ${variable}, unless you control the whole network in between.`,
    }
  }
  return null
}
