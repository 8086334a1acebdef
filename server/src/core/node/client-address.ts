/**
 * Whom failures and connections of an address are counted against. An IPv6 customer is given a /64 at least and can send from
 * any address of it; IPv4 that arrives on an IPv6 socket is still IPv4. Null for text that is no address.
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

function isIpv4(text: string): boolean {
  const parts = text.split('.')
  return parts.length === 4 && parts.every((part) => /^\d{1,3}$/.test(part) && Number(part) < 256)
}

/** Eight numbers of 16 bits. */
function ipv6Fields(text: string): number[] | null {
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
