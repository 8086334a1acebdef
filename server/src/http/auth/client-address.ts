import type { IncomingMessage } from 'node:http'
import { BlockList, isIP } from 'node:net'
import type { FastifyRequest } from 'fastify'
import { addressGroup } from '../../core/node/client-address.ts'

export type TrustProxy = boolean | string

/** Where requests come from, as far as nobody can forge it. */
export interface ClientAddresses {
  /** For Fastify: whose X-Forwarded-* headers are believed. */
  trust: boolean | ((address: string) => boolean)
  /** Its connections are those of many clients. */
  isProxy(peer: string | undefined): boolean
  /** What failures and open requests are counted under. */
  of(request: Pick<FastifyRequest, 'ip' | 'raw'>): string
}

export function createClientAddresses(trustProxy: TrustProxy): ClientAddresses {
  if (typeof trustProxy === 'boolean') {
    // Where everybody is believed, the header is as good as who wrote it: only the peer is sure.
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
    // The last address in the header that none of our proxies has: the proxy before it has seen it.
    of: ({ ip, raw }) => addressGroup(ip) ?? peerGroup(raw),
  }
}

export function peerGroup({ socket }: Pick<IncomingMessage, 'socket'>): string {
  const { remoteAddress = '' } = socket
  return addressGroup(remoteAddress) ?? remoteAddress
}

/** Throws when one of them is no address. */
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
