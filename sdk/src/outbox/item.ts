/**
 * - `saving`: being written down, or being sent right now
 * - `queued`: kept, and waiting: for the network, or for its next attempt
 * - `sent`: delivered; it is in the outbox no more
 * - `failed`: given up; it stays until a person retries or drops it
 */
export type OutboxStatus = 'saving' | 'queued' | 'sent' | 'failed'

/** Something that is to be delivered once, as a page shows it. */
export interface OutboxItem<Body = unknown, Answer = unknown> {
  id: string
  /** The idempotency key of each of its attempts: they are one submission to whoever receives them. */
  key: string
  body: Body
  savedAtMs: number
  /** How often it was answered with an error; being offline is no attempt. */
  attempts: number
  status: OutboxStatus
  /** Of the last attempt. */
  error?: string
  /** Of one that is sent: what `send` settled with. */
  answer?: Answer
}

/** What was done to an item; dropped ones are as they were last. */
export interface OutboxChange<Body = unknown, Answer = unknown> {
  item: OutboxItem<Body, Answer>
  dropped: boolean
}

/**
 * Delivers one item. What it throws decides whether it is tried again, by the same rule as the client's own calls: an
 * error with a `status` is an answer, `NoAnswer` and the TypeError of `fetch` are none. It may settle with the `Response`
 * of `fetch` as it is: one that is not ok is no delivery.
 *
 * Cut off after it arrived, the same comes again under its key. Whoever receives it must know its keys for longer than
 * somebody stays offline.
 */
export type Send<Body = unknown, Answer = unknown> = (
  delivery: { key: string; body: Body },
  signal: AbortSignal,
) => Promise<Answer>

/** Another tab may run another version of the application. */
export function isChange<Body, Answer>(value: unknown): value is OutboxChange<Body, Answer> {
  if (typeof value !== 'object' || value === null || !('item' in value && 'dropped' in value)) return false
  const { item } = value
  return typeof item === 'object' && item !== null && 'id' in item && 'status' in item
}
