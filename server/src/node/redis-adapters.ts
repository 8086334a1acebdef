import { sleep, type World } from '@ichido/sdk/world'
import { RedisLink } from '../bus/redis/link.ts'
import { RedisRelay } from '../bus/redis/relay.ts'
import { Router } from '../bus/redis/router.ts'
import { findUnread } from '../bus/redis/streams.ts'
import { RedisBus } from '../bus/redis/subscriber.ts'
import { DEFAULT_SHARDS } from '../core/events/event.ts'
import { AdvisedError } from '../core/node/store-errors.ts'
import { changeShards, claimRedisOwner, claimShards } from '../store/events/relay.ts'
import type { Store } from '../store/port.ts'
import type { Redis, RedisAdapters, RedisOptions } from './redis-port.ts'

interface RedisAddress {
  url: string
  /** The number of streams for each domain; all nodes have the same. */
  shards?: number | undefined
  /** Stands before all names of keys and channels; all nodes have the same. */
  prefix?: string | undefined
}

export function redisAt({ url, shards = DEFAULT_SHARDS, prefix = '' }: RedisAddress): Redis {
  return {
    async prepare(world, store) {
      const owner = await store.write(claimRedisOwner(world.uuid()))
      await agreeOnShards({ world, store, url, shards, prefix })
      return (options) => openRedis({ url, shards, prefix }, owner, options)
    },
  }
}

/** It does not wait for Redis: a node works without it. */
function openRedis(
  address: { url: string; shards: number; prefix: string },
  owner: string,
  { bus, world, roles, meter, ttls, ingest, onTrouble }: RedisOptions,
): RedisAdapters {
  const connect = (onLinkTrouble: (error: unknown) => void) =>
    new RedisLink({ world, ...address, onTrouble: onLinkTrouble })
  // One connection reports for all of them that Redis is unreachable.
  const link = connect((error) => onTrouble('redis', error))
  const quiet = () => connect(() => {})
  const relay = new RedisRelay({ world, link, owner, ttls, meter, onTrouble: (error) => onTrouble('redis', error) })
  const router = roles.has('router')
    ? new Router({ world, connect: quiet, ttls, meter, ingest, onTrouble: (error) => onTrouble('router', error) })
    : null
  return {
    relay,
    bus: roles.has('gateway') ? new RedisBus(bus, quiet()) : bus,
    async close() {
      await Promise.all([router?.close(), relay.close()])
      link.close()
    },
  }
}

/** The nodes would not find each other's streams. The message says why, and what to do. */
class ShardsRefused extends AdvisedError {
  override readonly name = 'ShardsRefused'
}

interface ShardsOptions {
  world: World
  store: Store
  url: string
  shards: number
  prefix?: string | undefined
}

const CONNECT_WITHIN_MS = 5_000
const NAMED_MAX = 3

/**
 * All nodes use the same number of streams, which the first node writes into the store. The number changes only while
 * no node runs and all entries were read: nobody would read the entries of the old streams.
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

/** Returns null if Redis is unreachable. */
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
