import type { World } from '@ichido/sdk/world'
import type { ForeignEvent, IngestedEvent } from '../../core/events/event.ts'
import { type Entry, isEvent, readForeignEvent } from './event-json.ts'
import { GROUP, isDomain } from './keys.ts'
import { isReply, type RedisLink } from './link.ts'

export interface SkipMeter {
  /** Counts each encounter with a key that holds data of another program. */
  redisKeysSkipped(count: number): void
}

interface SkipOptions {
  world: Pick<World, 'monotonic'>
  meter: SkipMeter
  onTrouble(error: unknown): void
}

const LOOKED_AT = 10
const SAY_AGAIN_MS = 60_000

/** True if a stream that no node has named holds events for Ichido. Otherwise it belongs to another program. */
export async function holdsEvents(link: RedisLink, stream: string): Promise<boolean> {
  try {
    const last = await link.call((redis) => redis.xRevRange(stream, '+', '-', { COUNT: LOOKED_AT }))
    return last?.some(isEvent) === true
  } catch (error) {
    if (isReply(error, 'WRONGTYPE')) return false
    throw error
  }
}

/** Counts keys that are left unchanged, and reports them once a minute: there may be one for each job. */
export class Skips {
  readonly #options: SkipOptions
  #sayAtMs = Number.NEGATIVE_INFINITY

  constructor(options: SkipOptions) {
    this.#options = options
  }

  note(keys: readonly unknown[], why = 'holds data that is not Ichido’s, and is left unchanged'): void {
    const [first] = keys
    if (first === undefined) return
    const { world, meter, onTrouble } = this.#options
    meter.redisKeysSkipped(keys.length)
    if (world.monotonic() < this.#sayAtMs) return
    this.#sayAtMs = world.monotonic() + SAY_AGAIN_MS
    const advice = 'Give Ichido its own Redis, or set REDIS_PREFIX.'
    onTrouble(new Error(`The key ${JSON.stringify(first)} in Redis ${why}. ${advice}`))
  }
}

/** Null stands for an entry that is not an event. */
export type Ingest = (events: readonly (ForeignEvent | null)[]) => Promise<(IngestedEvent | null)[]>

/** Entries of one read. */
const PAGE_MAX = 100

/**
 * Stores events of other programs in the order of their stream. Routers share a stream, so another router may still
 * hold an earlier entry. Therefore all entries that were handed out and not acknowledged are stored first; storing an
 * event twice changes nothing. Entries that were not handed out are later than these.
 */
export async function ingestInOrder(
  link: RedisLink,
  stream: string,
  entries: readonly Entry[],
  ingest: Ingest,
): Promise<(IngestedEvent | null)[]> {
  const last = entries.at(-1)
  if (last === undefined) return []
  const ours = new Map(entries.map((entry) => [entry.id, entry]))
  const ingested = new Map<string, IngestedEvent | null>()
  for await (const ids of handedOut(link, stream, last.id)) {
    const page = await Promise.all(ids.map(async (id) => ours.get(id) ?? (await readForeign(link, stream, id))))
    const found = page.filter((entry) => entry !== null)
    const results = await ingest(found.map(({ message }) => readForeignEvent(message.data)))
    for (const [i, { id }] of found.entries()) ingested.set(id, results[i] ?? null)
  }
  // An entry that is not among them was taken over and acknowledged by another router.
  return entries.map(({ id }) => ingested.get(id) ?? null)
}

/** The ids of unacknowledged entries up to `lastId`, in their order. */
async function* handedOut(link: RedisLink, stream: string, lastId: string): AsyncGenerator<string[]> {
  for (let from = '-'; ; ) {
    const pending = await link.call((redis) => redis.xPendingRange(stream, GROUP, from, lastId, PAGE_MAX))
    const ids = pending.map(({ id }) => id)
    yield ids
    const last = ids.at(-1)
    if (last === undefined || ids.length < PAGE_MAX) return
    from = `(${last}`
  }
}

/** An entry that another router holds; null if it is one of our own events, or is gone. */
async function readForeign(link: RedisLink, stream: string, id: string): Promise<Entry | null> {
  const [entry] = (await link.call((redis) => redis.xRange(stream, id, id))) ?? []
  return entry === undefined || readForeignEvent(entry.message.data) === null ? null : entry
}

/** The streams with entries that no router has read and acknowledged. */
export async function findUnread(link: RedisLink): Promise<string[]> {
  const unread: string[] = []
  for (const stream of await findStreams(link)) if (await isUnread(link, stream)) unread.push(stream)
  return unread.sort()
}

/** The streams that routers know, and the streams of other programs. */
async function findStreams(link: RedisLink): Promise<Set<string>> {
  const { keys } = link
  const streams = new Set<string>()
  for (const shard of keys.shards) {
    const domains = await link.call((redis) => redis.zRange(keys.domains(shard), 0, -1))
    for (const domain of domains.filter(isDomain)) streams.add(keys.stream(domain, shard))
  }
  for (let cursor = '0'; ; ) {
    const found = await link.scanStreams(cursor)
    for (const name of found?.names ?? []) {
      if (keys.readStream(name) !== null && (await holdsEvents(link, name))) streams.add(name)
    }
    if (found === null || found.cursor === '0') return streams
    cursor = found.cursor
  }
}

async function isUnread(link: RedisLink, stream: string): Promise<boolean> {
  const groups = await link
    .call((redis) => redis.xInfoGroups(stream))
    .catch((error: unknown) => {
      if (isReply(error, 'ERR no such key') || isReply(error, 'WRONGTYPE')) return null
      throw error
    })
  if (groups === null) return false
  const group = groups.find(({ name }) => name === GROUP)
  if (group !== undefined && group.pending > 0) return true
  const after = group === undefined ? '-' : `(${group['last-delivered-id']}`
  const [next] = (await link.call((redis) => redis.xRange(stream, after, '+', { COUNT: 1 }))) ?? []
  return next !== undefined
}
