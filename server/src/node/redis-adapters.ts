import { RedisLink } from '../bus/redis/link.ts'
import { RedisRelay } from '../bus/redis/relay.ts'
import { Router } from '../bus/redis/router.ts'
import { RedisBus } from '../bus/redis/subscriber.ts'
import { DEFAULT_SHARDS } from '../core/events/shards.ts'
import { claimRedisOwner } from '../store/events/shards.ts'
import type { Redis, RedisAdapters, RedisOptions } from './redis-port.ts'
import { agreeOnShards } from './redis-shards.ts'

export interface RedisAddress {
  url: string
  /** How many streams there are in Redis for each domain; all nodes have the same. */
  shards?: number | undefined
  /** Before all names of keys and channels in Redis; all nodes have the same. */
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

/** Does not wait for Redis: a node starts without it, and goes on without it. */
function openRedis(
  address: { url: string; shards: number; prefix: string },
  owner: string,
  { bus, world, roles, meter, ttls, ingest, onTrouble }: RedisOptions,
): RedisAdapters {
  const connect = (onLinkTrouble: (error: unknown) => void) =>
    new RedisLink({ world, ...address, onTrouble: onLinkTrouble })
  // One connection tells for all of them that Redis is away.
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
