import type { IncomingMessage } from 'node:http'
import { BlockList, isIP } from 'node:net'
import type { FastifyRequest } from 'fastify'
import { addressGroup } from '../../core/node/addresses.ts'

export type TrustProxy = boolean | string

/** The addresses of clients, as far as they cannot be forged. */
export interface ClientAddresses {
  /** For Fastify: the proxies whose X-Forwarded-* headers count. */
  trust: boolean | ((address: string) => boolean)
  /** A proxy has the connections of many clients. */
  isProxy(peer: string | undefined): boolean
  /** The group by which failures and open requests are counted. */
  of(request: Pick<FastifyRequest, 'ip' | 'raw'>): string
}

export function createClientAddresses(trustProxy: TrustProxy): ClientAddresses {
  if (typeof trustProxy === 'boolean') {
    // If every header is trusted, a client can forge it. Only the peer is certain.
    return { trust: trustProxy, isProxy: () => trustProxy, of: ({ raw }) => peerGroup(raw) }
  }
  const proxies = listOf(trustProxy)
  const isProxy = (peer = '') => {
    const [address = ''] = peer.split('%')
    return isIP(address) !== 0 && proxies.check(address, familyOf(address))
  }
  return {
    trust: isProxy,
    isProxy,
    // The last address in the header that is not one of the proxies: a proxy has seen it.
    of: ({ ip, raw }) => addressGroup(ip) ?? peerGroup(raw),
  }
}

export function peerGroup({ socket }: Pick<IncomingMessage, 'socket'>): string {
  const { remoteAddress = '' } = socket
  return addressGroup(remoteAddress) ?? remoteAddress
}

/** Throws if one of them is not an address. */
function listOf(addresses: string): BlockList {
  const list = new BlockList()
  for (const text of addresses.split(',')) {
    const [address = '', bits] = text.split('/')
    if (bits === undefined) list.addAddress(address, familyOf(address))
    else list.addSubnet(address, Number(bits), familyOf(address))
  }
  return list
}

const familyOf = (address: string) => (isIP(address) === 4 ? 'ipv4' : 'ipv6')
