import type { World } from '@ichido/sdk/world'
import type { Bus } from '../bus/port.ts'
import type { Ingest } from '../bus/redis/foreign.ts'
import { RedisLink } from '../bus/redis/link.ts'
import { RedisRelay, type Ttls } from '../bus/redis/relay.ts'
import { Router } from '../bus/redis/router.ts'
import { RedisBus } from '../bus/redis/subscriber.ts'
import type { NodeRole } from '../core/node/node-roles.ts'
import type { Meter } from '../services/system/meter.ts'

export { agreeOnShards } from './redis-shards.ts'

export interface RedisAdaptersOptions {
  world: World
  roles: ReadonlySet<NodeRole>
  meter: Meter
  shards: number
  prefix: string
  ttls(): Ttls
  ingest: Ingest
  onTrouble(where: string, error: unknown): void
}

/** What a node does with Redis; without it the store alone does for everything. */
export interface RedisAdapters {
  relay: RedisRelay
  /** Takes the place of the one it was given. */
  bus: Bus
  /** Before the bus is closed. */
  close(): Promise<void>
}

/** Does not wait for Redis: a node starts without it, and goes on without it. */
export function openRedis(url: string, owner: string, bus: Bus, options: RedisAdaptersOptions): RedisAdapters {
  const { world, roles, meter, shards, prefix, ttls, ingest, onTrouble } = options
  const connect = (onLinkTrouble: (error: unknown) => void) =>
    new RedisLink({ world, url, shards, prefix, onTrouble: onLinkTrouble })
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
