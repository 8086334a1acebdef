import { createHash } from 'node:crypto'
import type { DeliveryState, WebhookEvent } from '@ichido/sdk/protocol'
import { FIRST_ID } from '../run/job.ts'
import { isAddress, isPublicAddress } from './public-address.ts'

export const WEBHOOK_EVENTS = [
  'job.succeeded',
  'job.failed',
  'job.timed_out',
  'job.canceled',
  'alert.opened',
  'alert.closed',
] as const satisfies readonly WebhookEvent[]
/** Stands for the webhook in deliveries of callbacks, which have none. */
export const CALLBACKS = FIRST_ID
export const DELIVERY_STATES = ['pending', 'delivered', 'dead'] as const satisfies readonly DeliveryState[]

/** Default of a new webhook: alerts are sent only to webhooks that ask for them. */
export const JOB_EVENTS: readonly WebhookEvent[] = WEBHOOK_EVENTS.filter((type) => type.startsWith('job.'))

const SECOND = 1_000
const MINUTE = 60 * SECOND
const HOUR = 60 * MINUTE

/** The waits after each failed try, as Standard Webhooks suggests: 11 tries in about three days. */
const WAITS_MS = [
  5 * SECOND,
  30 * SECOND,
  5 * MINUTE,
  30 * MINUTE,
  2 * HOUR,
  5 * HOUR,
  10 * HOUR,
  14 * HOUR,
  20 * HOUR,
  20 * HOUR,
] as const
/** A wait is up to this part shorter or longer, so that the messages of an outage do not come back all at once. */
const JITTER = 0.2

/** The wait before the next try; null: no try is left. @param random in [0, 1). */
export function waitAfter(attempts: number, random: number): number | null {
  const waitMs = WAITS_MS[attempts - 1]
  return waitMs === undefined ? null : Math.round(waitMs * (1 - JITTER + 2 * JITTER * random))
}

export const URL_CHARS_MAX = 2_000

/** Says why a message cannot be sent there, as the end of a sentence that begins with the field's name; or null. */
export function urlProblem(text: string, allowPrivate: boolean): string | null {
  if (text.length > URL_CHARS_MAX) return `must have at most ${URL_CHARS_MAX} characters`
  // The URL parser drops or escapes them.
  if (/[\p{Cc}\s]/u.test(text)) return 'must not contain spaces or control characters'
  if (!URL.canParse(text)) return 'must be an address like https://example.org/ichido'
  const { protocol, username, password } = new URL(text)
  if (protocol !== 'https:' && protocol !== 'http:') return 'must begin with https://'
  if (protocol === 'http:' && !allowPrivate) {
    return 'must begin with https://, because messages would be sent without TLS; the setting webhooks_allow_private allows http'
  }
  if (username !== '' || password !== '') return 'must not contain a user name or password'
  return null
}

export const PRIVATE_ADDRESS = 'a private or reserved address; the setting webhooks_allow_private allows these'

/** The same, without resolving the host. The addresses of a name are checked before each try. */
export function unresolvedUrlProblem(text: string, allowPrivate: boolean): string | null {
  const problem = urlProblem(text, allowPrivate)
  if (problem !== null || allowPrivate) return problem
  const host = hostOf(new URL(text))
  return !isAddress(host) || isPublicAddress(host) ? null : `is ${PRIVATE_ADDRESS}`
}

/** The host for the resolver and the address check: a name, or an address without brackets. */
export function hostOf(url: URL): string {
  return url.hostname.replace(/^\[(.*)\]$/, '$1')
}

/** The part of a webhook that chooses its messages. */
export interface WebhookFilter {
  events: readonly WebhookEvent[]
  queue: string | null
  kind: string | null
  label: Label | null
}

interface Label {
  name: string
  value: string
}

interface JobFacts {
  queue: string
  kind: string
  labels: Readonly<Record<string, string>>
}

export function wantsJob({ events, queue, kind, label }: WebhookFilter, type: WebhookEvent, job: JobFacts): boolean {
  return (
    events.includes(type) &&
    (queue === null || queue === job.queue) &&
    (kind === null || kind === job.kind) &&
    (label === null || (Object.hasOwn(job.labels, label.name) && job.labels[label.name] === label.value))
  )
}

export const END_EVENTS = {
  SUCCEEDED: 'job.succeeded',
  FAILED: 'job.failed',
  TIMED_OUT: 'job.timed_out',
  CANCELED: 'job.canceled',
} as const satisfies Record<string, WebhookEvent>

/** The job, alert or test that a message tells of, its number among the messages of the subject, and the time. */
export interface Subject {
  id: string
  n: number
  atMs: number
}

/**
 * The id of a message for a webhook, in the form of a UUIDv7. It follows from what the message tells, so that every node
 * gives the same message the same id.
 */
export function deliveryId(webhookId: string, { id, n, atMs }: Subject): string {
  const time = Math.max(0, Math.floor(atMs)).toString(16).padStart(12, '0').slice(-12)
  const hash = createHash('sha256').update(`${webhookId} ${id} ${n}`).digest('hex')
  const variant = (8 + (Number.parseInt(hash[3] ?? '0', 16) % 4)).toString(16)
  return `${time.slice(0, 8)}-${time.slice(8)}-7${hash.slice(0, 3)}-${variant}${hash.slice(4, 7)}-${hash.slice(7, 19)}`
}
