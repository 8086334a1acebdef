import { createHmac, timingSafeEqual } from 'node:crypto'
import type { HookScheme } from '@ichido/sdk/protocol'

/** A signed timestamp may be this far from the server's clock, as Standard Webhooks recommends. */
export const HOOK_TOLERANCE_MS = 5 * 60_000

const STANDARD_SECRET = /^whsec_([A-Za-z0-9+/]+={0,2})$/
const STANDARD_KEY_BYTES = { min: 24, max: 64 }
const GITHUB_SECRET = /^[\x20-\x7e]{16,256}$/

/**
 * Says why a text cannot be a secret of the scheme, as the end of a sentence that begins with the field's name; or
 * null.
 */
export function hookSecretProblem(scheme: HookScheme, secret: string): string | null {
  if (scheme === 'github') {
    return GITHUB_SECRET.test(secret) ? null : 'must be 16 to 256 printable ASCII characters'
  }
  const { min, max } = STANDARD_KEY_BYTES
  const { length } = standardKey(secret)
  return length >= min && length <= max ? null : `must be whsec_ and ${min} to ${max} bytes in Base64`
}

export function newStandardSecret(random: Buffer): string {
  return `whsec_${random.toString('base64')}`
}

function standardKey(secret: string): Buffer {
  return Buffer.from(STANDARD_SECRET.exec(secret)?.[1] ?? '', 'base64')
}

function standardSignature(secret: string, id: string, timestamp: string, body: Buffer | string): Buffer {
  return createHmac('sha256', standardKey(secret)).update(`${id}.${timestamp}.`).update(body).digest()
}

/** The headers of a message that Ichido sends. It has one signature for each secret, so that a receiver can change its secret. */
export function signedHeaders(
  secrets: readonly string[],
  { id, atMs, body }: { id: string; atMs: number; body: string },
): Record<'webhook-id' | 'webhook-timestamp' | 'webhook-signature', string> {
  const timestamp = String(Math.floor(atMs / 1000))
  const signatures = secrets.map((secret) => `v1,${standardSignature(secret, id, timestamp, body).toString('base64')}`)
  return { 'webhook-id': id, 'webhook-timestamp': timestamp, 'webhook-signature': signatures.join(' ') }
}

/** The id and event of a delivery. GitHub signs the body only; Standard Webhooks also signs the id and the time. */
interface Delivery {
  deliveryId: string
  /** The header that names the delivery. */
  idHeader: string
  /** GitHub names the event in a header; other senders name it in the body. */
  event: string | null
}

type HookVerdict =
  | { kind: 'verified'; delivery: Delivery }
  /** A header that the scheme needs is missing or malformed. */
  | { kind: 'malformed'; header: string; problem: string }
  | { kind: 'refused'; problem: string }

/** Keyed by lower-case name, as in Node.js. */
export type Headers = Readonly<Record<string, string | string[] | undefined>>

export interface SignedDelivery {
  headers: Headers
  /** The exact bytes that were sent: parsed and written again, they would have another signature. */
  body: Buffer
  nowMs: number
}

export function verifyDelivery(scheme: HookScheme, secret: string, sent: SignedDelivery): HookVerdict {
  return scheme === 'github' ? verifyGithub(secret, sent) : verifyStandard(secret, sent)
}

/** Verifies Standard Webhooks, also with the older `svix-` names of the headers. */
function verifyStandard(secret: string, { headers, body, nowMs }: SignedDelivery): HookVerdict {
  const prefix = headers['webhook-id'] === undefined && headers['svix-id'] !== undefined ? 'svix' : 'webhook'
  const read = (name: string) => headerText(headers, `${prefix}-${name}`)
  const [id, timestamp, signatures] = [read('id'), read('timestamp'), read('signature')]
  if (id === null) return missing(`${prefix}-id`)
  if (timestamp === null) return missing(`${prefix}-timestamp`)
  if (signatures === null) return missing(`${prefix}-signature`)
  if (!/^\d{1,12}$/.test(timestamp)) {
    return { kind: 'malformed', header: `${prefix}-timestamp`, problem: 'must be a Unix time in seconds' }
  }
  const expected = standardSignature(secret, id, timestamp, body)
  const given = signatures.split(' ').flatMap((one) => (one.startsWith('v1,') ? [one.slice(3)] : []))
  if (!given.some((text) => isSame(Buffer.from(text, 'base64'), expected))) return wrongSignature()
  // This is checked last, so that only the holder of the secret learns the server's clock.
  const offMs = Number(timestamp) * 1000 - nowMs
  if (Math.abs(offMs) > HOOK_TOLERANCE_MS) {
    const off = `${Math.round(Math.abs(offMs) / 1000)} s ${offMs < 0 ? 'behind' : 'ahead of'} the server's clock`
    return { kind: 'refused', problem: `The delivery is too old or from the future: its timestamp is ${off}` }
  }
  return { kind: 'verified', delivery: { deliveryId: id, idHeader: `${prefix}-id`, event: null } }
}

function verifyGithub(secret: string, { headers, body }: SignedDelivery): HookVerdict {
  const read = (name: string) => headerText(headers, name)
  const [id, event, signature] = [read('x-github-delivery'), read('x-github-event'), read('x-hub-signature-256')]
  if (id === null) return missing('x-github-delivery')
  if (event === null) return missing('x-github-event')
  if (signature === null) return missing('x-hub-signature-256')
  const expected = createHmac('sha256', secret).update(body).digest()
  const hex = /^sha256=([0-9a-f]{64})$/i.exec(signature)?.[1] ?? ''
  if (!isSame(Buffer.from(hex, 'hex'), expected)) return wrongSignature()
  return { kind: 'verified', delivery: { deliveryId: id, idHeader: 'x-github-delivery', event } }
}

function headerText(headers: Headers, name: string): string | null {
  const value = headers[name]
  return typeof value === 'string' && value !== '' ? value : null
}

function missing(header: string): HookVerdict {
  return { kind: 'malformed', header, problem: 'is missing' }
}

function wrongSignature(): HookVerdict {
  return { kind: 'refused', problem: 'The signature does not match the body and the secret of this hook' }
}

function isSame(given: Buffer, expected: Buffer): boolean {
  return given.length === expected.length && timingSafeEqual(given, expected)
}
