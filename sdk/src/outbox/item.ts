import { InvalidValue } from '../client/errors.ts'
import type { World } from '../world.ts'

const KEY = /^[\x21-\x7e]{1,256}$/

/**
 * The status of an item:
 * - `saving`: being stored, or being sent right now
 * - `queued`: stored; it waits for the network or for its next attempt
 * - `sent`: delivered, and no longer in the outbox
 * - `failed`: it stays until a person retries or drops it
 */
export type OutboxStatus = 'saving' | 'queued' | 'sent' | 'failed'

/** An item that is to be delivered once. */
export interface OutboxItem<Body = unknown, Answer = unknown> {
  /** The id of the item. */
  id: string
  /** The idempotency key of all its attempts: for the receiver they are one submission. */
  key: string
  /** The body that `put` got. */
  body: Body
  /** When it was put, in ms since 1970. */
  savedAtMs: number
  /** How often it was answered with an error; being offline does not count. */
  attempts: number
  /** The current status. */
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

/** An item in the store, without its momentary status. */
export interface StoredItem {
  id: string
  key: string
  /** JSON. */
  body: unknown
  savedAtMs: number
  attempts: number
  status: 'queued' | 'failed'
  /** An automatic flush does not send it before this time. */
  dueAtMs: number
  error?: string
}

/** The fields that an attempt or a person changes. */
export type ItemProgress = Pick<StoredItem, 'attempts' | 'status' | 'dueAtMs' | 'error'>

/** An error of the outbox; the message says what happened and what to do. */
export class OutboxError extends Error {}

/** The outbox cannot be opened or written; nothing was stored. The message says why and what to do. */
export class OutboxUnavailable extends OutboxError {
  override readonly name = 'OutboxUnavailable'
}

/** The outbox has no room for another item; nothing was stored. */
export class OutboxFull extends OutboxError {
  override readonly name = 'OutboxFull'
}

/** The outbox was written by a newer version; nothing was read or changed. */
export class OutboxTooNew extends OutboxError {
  override readonly name = 'OutboxTooNew'
}

/** The outbox has no item with this id. */
export class NoSuchItem extends OutboxError {
  override readonly name = 'NoSuchItem'

  constructor(id: string) {
    super(`There is no item ${id} in the outbox; it was sent, was dropped, or never existed`)
  }
}

/** The key names an item that is already stored with another body. */
export class KeyKept extends OutboxError {
  override readonly name = 'KeyKept'

  constructor(key: string) {
    super(`The key ${key} is already in the outbox with another body; use a new key, or drop that item first`)
  }
}

/** The outbox was closed. */
export class OutboxClosed extends OutboxError {
  override readonly name = 'OutboxClosed'

  constructor() {
    super('The outbox was closed')
  }
}

/** Checks a message of another tab, which may run another version of the application. */
export function isChange<Body, Answer>(value: unknown): value is OutboxChange<Body, Answer> {
  if (typeof value !== 'object' || value === null || !('item' in value && 'dropped' in value)) return false
  const { item } = value
  return typeof item === 'object' && item !== null && 'id' in item && 'status' in item
}

export function newItem(body: unknown, key: string | undefined, world: Pick<World, 'now' | 'uuid'>): StoredItem {
  const id = world.uuid()
  const item: StoredItem = {
    id,
    key: key ?? `outbox-${id}`,
    body: snapshot(body),
    savedAtMs: world.now(),
    attempts: 0,
    status: 'queued',
    dueAtMs: 0,
  }
  if (!KEY.test(item.key)) throw new InvalidValue('key must be 1 to 256 visible ASCII characters, without spaces')
  return item
}

/** A copy, because the caller may change the object later. */
function snapshot(body: unknown): unknown {
  const json = toJson(body)
  if (json === undefined) throw new InvalidValue(`body must be JSON, not ${typeof body}`)
  return JSON.parse(json) as unknown
}

function toJson(body: unknown): string | undefined {
  try {
    return JSON.stringify(body)
  } catch (error) {
    throw new InvalidValue(`body must be JSON: ${error instanceof Error ? error.message : error}`)
  }
}

/** Returns the stored item; throws if the second put with its key has another body. */
export function sameBody(kept: StoredItem, put: StoredItem): StoredItem {
  if (JSON.stringify(kept.body) !== JSON.stringify(put.body)) throw new KeyKept(put.key)
  return kept
}

/** The error of an earlier attempt is removed. */
export function progressed({ error: _, ...item }: StoredItem, progress: ItemProgress): StoredItem {
  return { ...item, ...progress }
}

type Parsed<T> = { ok: true; value: T } | { ok: false; problem: string }

/** Checks an item that a store has read. */
export function parseItem(value: unknown): Parsed<StoredItem> {
  if (!isRecord(value)) return { ok: false, problem: 'is not an item' }
  const { id, key, body, savedAtMs } = value
  if (typeof id !== 'string' || id === '') return { ok: false, problem: 'id must be text' }
  if (typeof key !== 'string' || !KEY.test(key)) return { ok: false, problem: 'key must be visible ASCII' }
  if (body === undefined) return { ok: false, problem: 'body is missing' }
  if (!isCount(savedAtMs)) return { ok: false, problem: 'savedAtMs must be a whole number' }
  const progress = parseProgress(value)
  return progress.ok ? { ok: true, value: { id, key, body, savedAtMs, ...progress.value } } : progress
}

export function parseProgress(value: unknown): Parsed<ItemProgress> {
  if (!isRecord(value)) return { ok: false, problem: 'is not the progress of an item' }
  const { attempts, status, dueAtMs, error } = value
  if (!isCount(attempts)) return { ok: false, problem: 'attempts must be a whole number' }
  if (status !== 'queued' && status !== 'failed') return { ok: false, problem: 'status must be queued or failed' }
  if (!isCount(dueAtMs)) return { ok: false, problem: 'dueAtMs must be a whole number' }
  if (error !== undefined && typeof error !== 'string') return { ok: false, problem: 'error must be text' }
  return { ok: true, value: { attempts, status, dueAtMs, ...(error === undefined ? {} : { error }) } }
}

export function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function isCount(value: unknown): value is number {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= 0
}
