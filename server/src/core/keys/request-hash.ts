import { hash } from 'node:crypto'
import { canonicalJson } from '../json/canonical-json.ts'

/**
 * The hash that tells whether a key comes back with the same request: SHA-256 over the RFC 8785 form, so that
 * the order of JSON keys and `1` against `1.0` make no difference. Its version is stored beside it: a hash made
 * by another version cannot be compared, and then the key alone decides.
 */
export const REQUEST_HASH_VERSION = 1

export function requestHash(request: unknown): string {
  return hash('sha256', canonicalJson(request), 'hex')
}
