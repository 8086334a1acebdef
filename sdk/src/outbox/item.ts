/**
 * - `saving`: being stored, or being sent right now
 * - `queued`: stored; it waits for the network or for its next attempt
 * - `sent`: delivered, and no longer in the outbox
 * - `failed`: it stays until a person retries or drops it
 */
export type OutboxStatus = 'saving' | 'queued' | 'sent' | 'failed'

/** An item that is to be delivered once. */
export interface OutboxItem<Body = unknown, Answer = unknown> {
  id: string
  /** The idempotency key of all its attempts: for the receiver they are one submission. */
  key: string
  body: Body
  savedAtMs: number
  /** How often it was answered with an error; being offline does not count. */
  attempts: number
  status: OutboxStatus
  /** The error of the last attempt. */
  error?: string
  /** The value that `send` returned, after the item was sent. */
  answer?: Answer
}

/** A change of an item; a dropped item is shown in its last state. */
export interface OutboxChange<Body = unknown, Answer = unknown> {
  item: OutboxItem<Body, Answer>
  dropped: boolean
}

/**
 * Delivers one item. If it throws, the error decides about a retry, by the same rule as in the client: an error with a
 * `status` is an answer; `NoAnswer` and the TypeError of `fetch` mean that no answer came. It may return the `Response` of
 * `fetch`: a response that is not ok counts as a failure.
 *
 * If the connection breaks after the item arrived, the item is sent again with the same key. The receiver must remember keys
 * for longer than a sender stays offline.
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
