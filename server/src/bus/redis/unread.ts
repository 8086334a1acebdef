import { GROUP, isDomain } from './keys.ts'
import type { RedisLink } from './link.ts'
import { isReply } from './script.ts'
import { holdsEvents } from './whose.ts'

/** The streams that hold entries which no router has read, or has read and not acknowledged. */
export async function findUnread(link: RedisLink): Promise<string[]> {
  const unread: string[] = []
  for (const stream of await findStreams(link)) if (await isUnread(link, stream)) unread.push(stream)
  return unread.sort()
}

/** Those that routers know, and those that other programs have begun. */
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
