import { BlockList, isIP, isIPv6 } from 'node:net'

/** IANA's special-purpose registry, and an address of Azure's host agent that looks public. */
const REFUSED_V4 = [
  '0.0.0.0/8',
  '10.0.0.0/8',
  '100.64.0.0/10',
  '127.0.0.0/8',
  '168.63.129.16/32',
  '169.254.0.0/16',
  '172.16.0.0/12',
  '192.0.0.0/24',
  '192.0.2.0/24',
  '192.88.99.0/24',
  '192.168.0.0/16',
  '198.18.0.0/15',
  '198.51.100.0/24',
  '203.0.113.0/24',
  '224.0.0.0/4',
  '240.0.0.0/4',
]
/** The only global addresses. Loopback, link-local, ULA, v4-mapped and NAT64 addresses are all outside of this range. */
const GLOBAL_V6 = ['2000::/3']
/** Addresses inside of that range that contain another address or lead nowhere. */
const REFUSED_V6 = ['2001::/23', '2001:db8::/32', '2002::/16', '3fff::/20']

const refusedV4 = listOf(REFUSED_V4, 'ipv4')
const globalV6 = listOf(GLOBAL_V6, 'ipv6')
const refusedV6 = listOf(REFUSED_V6, 'ipv6')

function listOf(subnets: readonly string[], family: 'ipv4' | 'ipv6'): BlockList {
  const list = new BlockList()
  for (const subnet of subnets) {
    const [network = '', bits = ''] = subnet.split('/')
    list.addSubnet(network, Number(bits), family)
  }
  return list
}

/** Whether an address belongs to the internet, and not to this machine, its network or its cloud. */
export function isPublic(address: string): boolean {
  if (isIPv6(address)) return globalV6.check(address, 'ipv6') && !refusedV6.check(address, 'ipv6')
  return isIP(address) === 4 && !refusedV4.check(address, 'ipv4')
}
