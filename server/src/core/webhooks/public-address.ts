import { ipv6Fields, isIpv4 } from '../node/addresses.ts'

/**
 * IPv4 networks that are not the public Internet, by the IANA registry of special-purpose addresses. They include the
 * addresses of cloud metadata services (169.254.169.254).
 */
const NOT_PUBLIC = [
  ['0.0.0.0', 8],
  ['10.0.0.0', 8],
  ['100.64.0.0', 10],
  ['127.0.0.0', 8],
  ['169.254.0.0', 16],
  ['172.16.0.0', 12],
  ['192.0.0.0', 24],
  ['192.0.2.0', 24],
  ['192.88.99.0', 24],
  ['192.168.0.0', 16],
  ['198.18.0.0', 15],
  ['198.51.100.0', 24],
  ['203.0.113.0', 24],
  ['224.0.0.0', 4],
  ['240.0.0.0', 4],
] as const

/** Parts of 2000::/3 that are not public: protocols and tunnels (2001::/23), documentation, and 6to4. */
const NOT_PUBLIC_V6 = [
  [[0x2001, 0x0000], 23],
  [[0x2001, 0x0db8], 32],
  [[0x2002, 0x0000], 16],
  [[0x3fff, 0x0000], 20],
] as const

export function isAddress(text: string): boolean {
  return isIpv4(text) || ipv6Fields(text) !== null
}

/**
 * True if the text is an address of the public Internet. IPv6 addresses that contain an IPv4 address (mapped and NAT64)
 * are judged by that address. Everything unknown is not public.
 */
export function isPublicAddress(text: string): boolean {
  if (isIpv4(text)) return isPublicIpv4(numberOf(text.split('.').map(Number)))
  const fields = ipv6Fields(text)
  if (fields === null) return false
  const [a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, g = 0, h = 0] = fields
  const isMapped = a === 0 && b === 0 && c === 0 && d === 0 && e === 0 && f === 0xffff
  const isNat64 = a === 0x64 && b === 0xff9b && c === 0 && d === 0 && e === 0 && f === 0
  if (isMapped || isNat64) return isPublicIpv4(g * 2 ** 16 + h)
  const head = a * 2 ** 16 + b
  return a >>> 13 === 1 && !NOT_PUBLIC_V6.some(([[x, y], bits]) => sameNetwork(head, x * 2 ** 16 + y, bits))
}

function isPublicIpv4(address: number): boolean {
  return !NOT_PUBLIC.some(([network, bits]) => sameNetwork(address, numberOf(network.split('.').map(Number)), bits))
}

function numberOf([a = 0, b = 0, c = 0, d = 0]: readonly number[]): number {
  return a * 2 ** 24 + b * 2 ** 16 + c * 2 ** 8 + d
}

/** Both are numbers of 32 bits. */
function sameNetwork(a: number, b: number, bits: number): boolean {
  return Math.floor(a / 2 ** (32 - bits)) === Math.floor(b / 2 ** (32 - bits))
}
