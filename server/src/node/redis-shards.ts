import { sleep, type World } from '@ichido/sdk/world'
import { RedisLink } from '../bus/redis/link.ts'
import { findUnread } from '../bus/redis/unread.ts'
import { changeShards, claimShards } from '../store/events/shards.ts'
import type { Store } from '../store/port.ts'

/** Nodes would not find each other's streams; the message says why, and what to do. */
export class ShardsRefused extends Error {
  override readonly name = 'ShardsRefused'
}

export interface ShardsOptions {
  world: World
  store: Store
  url: string
  shards: number
  prefix?: string | undefined
}

const CONNECT_WITHIN_MS = 5_000
const NAMED_MAX = 3

/**
 * All nodes spread events over the same number of streams: the first one writes it into the store. It changes only while no
 * node runs, and nothing waits in the streams: what waits in a stream that nobody reads any more would be read by nobody.
 */
export async function agreeOnShards(options: ShardsOptions): Promise<void> {
  const { store, shards } = options
  const agreed = await store.write(claimShards(shards))
  if (agreed === shards) return
  const refuse = (why: string) =>
    new ShardsRefused(`SHARDS is ${shards}, but the streams in Redis were made for ${agreed}, and ${why}.`)
  const unread = await lookForUnread(options, agreed)
  if (unread === null) {
    throw refuse(`Redis does not answer to tell whether all of them were read. Start Redis, or set SHARDS=${agreed}`)
  }
  if (unread.length > 0) {
    const named = unread.slice(0, NAMED_MAX).join(', ') + (unread.length > NAMED_MAX ? ' and others' : '')
    throw refuse(
      `no router has read all entries of ${named}. Start with SHARDS=${agreed} until they are read, then change it`,
    )
  }
  if (!(await store.write(changeShards(agreed, shards)))) {
    throw refuse(`a node that uses them is running. Stop all nodes before you change it, or set SHARDS=${agreed}`)
  }
}

/** Null when Redis is away. */
async function lookForUnread({ world, url, prefix }: ShardsOptions, shards: number): Promise<string[] | null> {
  const link = new RedisLink({ world, url, shards, prefix, onTrouble() {} })
  const done = new AbortController()
  try {
    const connected = new Promise<true>((resolve) => link.onConnect(() => resolve(true)))
    const inTime = await Promise.race([connected, sleep(world, CONNECT_WITHIN_MS, done.signal)])
    return inTime === true ? await findUnread(link) : null
  } finally {
    done.abort()
    link.close()
  }
}
