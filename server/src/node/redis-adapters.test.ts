import { createClient, type RedisClientType } from '@redis/client'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import type { Redis } from '../../../scripts/services/redis.ts'
import { privateRedis } from '../../../scripts/testing/services.ts'
import { GROUP } from '../bus/redis/keys.ts'
import { changeShards, claimRedisOwner } from '../store/events/relay.ts'
import { seize } from '../testing/nodes/reaper.ts'
import { ENGINES } from '../testing/services/services.ts'
import { sql, type TestStore, testStore } from '../testing/store/store.ts'
import { agreeOnShards } from './redis-adapters.ts'
import { realWorld as world } from './world.ts'

let redis: Redis
let client: RedisClientType
beforeAll(async () => {
  redis = await privateRedis()
  client = createClient({ url: redis.url })
  await client.connect()
})
afterAll(async () => {
  client.destroy()
  await redis.stop()
})

describe.each(ENGINES)('%s', (engine) => {
  let opened: TestStore
  beforeEach(async () => {
    await client.flushAll()
    opened = await testStore(engine)
  })
  afterEach(() => opened.close())

  const agree = (shards: number, url = redis.url) => agreeOnShards({ world, store: opened.store, url, shards })
  const vacate = () => sql(opened.store, 'UPDATE ichido.leadership SET holder = NULL')

  test('all nodes use the first number, and it changes while nothing waits', async () => {
    await agree(4)
    await agree(4)
    await agree(8)
    await agree(8)
    await agree(2)
  })

  test('is not changed while a stream has unread entries', async () => {
    await agree(4)
    const id = await client.xAdd('scan:events:3', '*', { data: '{"job_id":"a","stage":"b","seq":1}' })
    await expect(agree(2), 'there is no group yet').rejects.toThrow(
      /^SHARDS is 2, .* made for 4, and no router has read all entries of scan:events:3\. Start with SHARDS=4/,
    )
    await client.xGroupCreate('scan:events:3', GROUP, '0')
    await expect(agree(2), 'not handed out').rejects.toThrow('Start with SHARDS=4 until they are read')
    await client.xReadGroup(GROUP, 'one', [{ key: 'scan:events:3', id: '>' }])
    await expect(agree(2), 'not acknowledged').rejects.toThrow('scan:events:3')
    await client.xAck('scan:events:3', GROUP, id)
    await agree(2)
  })

  test('is changed beside a stream of another program', async () => {
    await agree(4)
    await client.xAdd('orders:events:3', '*', { data: '{"order":1}' })
    await agree(2)
  })

  test('is not changed while a node leads', async () => {
    await agree(4)
    await seize(opened.store)
    await expect(agree(8)).rejects.toThrow('a node that uses them is running. Stop all nodes before you change it')
    await agree(4)
    await vacate()
    await agree(8)
  })

  test('is not changed while Redis is unreachable', async () => {
    await agree(4)
    const hasty = { ...world, after: (ms: number, then: () => void) => world.after(Math.min(ms, 200), then) }
    const away = agreeOnShards({ world: hasty, store: opened.store, url: 'redis://127.0.0.1:1', shards: 8 })
    await expect(away).rejects.toThrow('Redis does not answer')
  })

  test('if two nodes name the owner at once, both get the same name', async () => {
    const claim = (name: string) => opened.store.write(claimRedisOwner(name))
    const names = await Promise.all([claim('one'), claim('two')])
    expect(new Set(names).size).toBe(1)
    expect(await claim('three')).toBe(names[0])
  })

  test('if two nodes change it at once, one succeeds', async () => {
    await agree(4)
    const changes = [8, 16].map((shards) => opened.store.write(changeShards(4, shards)))
    expect((await Promise.all(changes)).sort()).toEqual([false, true])
  })
})
