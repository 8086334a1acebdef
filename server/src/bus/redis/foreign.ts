import type { ForeignEvent, IngestedEvent } from '../../core/event.ts'
import { type Entry, readForeignEvent } from './event-json.ts'
import { GROUP } from './keys.ts'
import type { RedisLink } from './link.ts'

/** Null stands for an entry that is no event. */
export type Ingest = (events: readonly (ForeignEvent | null)[]) => Promise<(IngestedEvent | null)[]>

/** Entries of one read. */
const EARLIER_MAX = 100

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
  const [first] = entries
  if (first === undefined) return []
  for await (const earlier of earlierThan(link, stream, first.id)) {
    await ingest(earlier.map(foreignIn).filter((event) => event !== null))
  }
  return ingest(entries.map(foreignIn))
}

const foreignIn = ({ message }: Entry) => readForeignEvent(message.data)

async function* earlierThan(link: RedisLink, stream: string, id: string): AsyncGenerator<Entry[]> {
  for (let from = '-'; ; ) {
    const pending = await link.call((redis) => redis.xPendingRange(stream, GROUP, from, `(${id}`, EARLIER_MAX))
    const [first, last] = [pending[0]?.id, pending.at(-1)?.id]
    if (first === undefined || last === undefined) return
    const found = await link.call((redis) => redis.xRange(stream, first, last))
    const ids = new Set(pending.map((entry) => entry.id))
    yield (found ?? []).filter((entry) => ids.has(entry.id))
    if (pending.length < EARLIER_MAX) return
    from = `(${last}`
  }
}
