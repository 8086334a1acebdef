import { isPublicAddress } from '../../core/webhooks/public-address.ts'
import { hostOf, PRIVATE_ADDRESS, urlProblem } from '../../core/webhooks/webhook.ts'
import type { Courier } from '../../courier/port.ts'

/** A receiver whose address was checked, or why no message may be sent there. */
export type Receiver = { url: URL; address: string } | { problem: string }

/**
 * Resolves the host of a URL once. All its addresses must be public, because a sender may use any of them. The caller
 * must connect to this address, and not resolve the name again: another answer would not be checked. The problem is the
 * end of a sentence that begins with the field's name.
 */
export async function findReceiver(courier: Courier, text: string, allowPrivate: boolean): Promise<Receiver> {
  const problem = urlProblem(text, allowPrivate)
  if (problem !== null) return { problem }
  const url = new URL(text)
  const host = hostOf(url)
  let addresses: string[]
  try {
    addresses = await courier.resolve(host)
  } catch (error) {
    return { problem: `has a host that cannot be resolved: ${reasonOf(error)}` }
  }
  const [address] = addresses
  if (address === undefined) return { problem: 'has a host without an address' }
  const refused = allowPrivate ? undefined : addresses.find((one) => !isPublicAddress(one))
  if (refused === undefined) return { url, address }
  const leads = refused === host ? 'is' : `leads to ${refused},`
  return { problem: `${leads} ${PRIVATE_ADDRESS}` }
}

function reasonOf(error: unknown): string {
  if (error instanceof Error) return 'code' in error ? String(error.code) : error.message
  return String(error)
}
