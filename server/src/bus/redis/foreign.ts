import type { ForeignEvent, IngestedEvent } from '../../core/events/event.ts'
import { type Entry, readForeignEvent } from './event-json.ts'
import { GROUP } from './keys.ts'
import type { RedisLink } from './link.ts'

/** Null stands for an entry that is no event. */
export type Ingest = (events: readonly (ForeignEvent | null)[]) => Promise<(IngestedEvent | null)[]>

/** Entries of one read. */
const PAGE_MAX = 100

/**
 * Has events of other programs stored, in the order of their stream. Routers share a stream: one may hold an entry while another
 * was handed the next one. So whatever was handed out before and not acknowledged goes first, whoever holds it; to store an
 * event again changes nothing. An entry that is neither handed out nor acknowledged cannot be older than one that is.
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
  // One that is not among them was taken over and acknowledged by another router.
  return entries.map(({ id }) => ingested.get(id) ?? null)
}

/** Up to an id, in their order. */
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

/** An entry that another router holds; null when it is one of a node's own, or is gone. */
async function readForeign(link: RedisLink, stream: string, id: string): Promise<Entry | null> {
  const [entry] = (await link.call((redis) => redis.xRange(stream, id, id))) ?? []
  return entry === undefined || readForeignEvent(entry.message.data) === null ? null : entry
}
