import { InvalidValue } from '../client/errors.ts'
import type { World } from '../world.ts'
import { KeyKept } from './errors.ts'
import type { ItemProgress, StoredItem } from './ports.ts'

const KEY = /^[\x21-\x7e]{1,256}$/

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

/** As it will be sent each time, whatever the caller does with the object afterwards. */
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

/** The one that is kept, if the second put of its key meant the same. */
export function sameBody(kept: StoredItem, put: StoredItem): StoredItem {
  if (JSON.stringify(kept.body) !== JSON.stringify(put.body)) throw new KeyKept(put.key)
  return kept
}

/** Its error is that of the last attempt. */
export function progressed({ error: _, ...item }: StoredItem, progress: ItemProgress): StoredItem {
  return { ...item, ...progress }
}

type Parsed<T> = { ok: true; value: T } | { ok: false; problem: string }

/** What a store has read. */
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
