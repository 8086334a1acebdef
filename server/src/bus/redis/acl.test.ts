import { readFileSync } from 'node:fs'
import { createClient, type RedisClientType } from '@redis/client'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import type { IngestedEvent } from '../../core/events/event.ts'
import { anEvent, REDIS_KINDS, RedisScene, type TestRedis, testRedis } from '../../testing/nodes/redis.ts'
import { until } from '../../testing/store/store.ts'
import { findUnread } from './streams.ts'

/** The documented ACL line is enough for everything that nodes do, and for no more. */

const page = readFileSync(new URL('../../../../docs/operations/redis.md', import.meta.url), 'utf8')
const words = (/^ACL SETUSER ichido .*$/m.exec(page)?.[0] ?? '').split(' ')

describe.each(REDIS_KINDS)('on a %s Redis', (kind) => {
  let redis: TestRedis
  let scene: RedisScene
  beforeAll(async () => {
    redis = await testRedis(kind)
  })
  afterEach(() => scene.close())
  afterAll(() => redis.stop())

  test.each(['', 'team-a:'])(
    'the documented user may do all that a node does, with the prefix "%s"',
    async (prefix) => {
      const withPrefix = (word: string) => (/^[~&]/.test(word) ? `${word[0]}${prefix}*` : word)
      await redis.command(...(prefix === '' ? words : words.map(withPrefix)))
      const url = redis.url.replace(/\/\/:[^@]*@/, '//ichido:PASSWORD@')
      scene = new RedisScene(url, prefix)
      await scene.up()
      await scene.relay.remember()
      expect(await scene.relay.look()).toBe('ready')
      const own = anEvent()
      const heard = new Promise((resolve) => scene.bus().subscribe(`job:${own.jobId}`, (news) => news && resolve(news)))
      const stored: number[] = []
      const ingest = async (events: readonly unknown[]): Promise<(IngestedEvent | null)[]> => {
        stored.push(events.length)
        return events.map(() => null)
      }
      await scene.relay.publish([own])
      await scene.link.call((commands) => commands.xGroupCreate(streamOf(scene, own.jobId), 'router', '0'))
      await scene.link.call((commands) =>
        commands.xReadGroup('router', 'dead', [{ key: streamOf(scene, own.jobId), id: '>' }]),
      )
      scene.router({ reclaimAfterMs: 50, ingest })
      expect(await heard).toMatchObject({ cursor: 2 })
      const add = `return redis.call('XADD', KEYS[1], '*', 'data', ARGV[1])`
      const foreign = JSON.stringify({ job_id: own.jobId, domain: 'scan', stage: 'vision', seq: 11, data: {} })
      await scene.link.call((commands) =>
        commands.eval(add, { keys: [streamOf(scene, own.jobId)], arguments: [foreign] }),
      )
      await until('an event of another program', async () => stored.length > 0)
      await until('all to be read', async () => (await findUnread(scene.link)).length === 0)
      expect(await scene.relay.missing([own])).toEqual([])
      expect(await scene.relay.evicts()).toBe(false)
      expect(scene.troubles).toEqual([])
      for (const { port } of redis.nodes) await isTight(`redis://ichido:PASSWORD@127.0.0.1:${port}`)
      await redis.command('ACL', 'SETUSER', 'ichido', '-info')
      const uninformed = new RedisScene(url, prefix)
      await uninformed.up()
      expect(await uninformed.relay.evicts(), 'what cannot be learned is feared').toBe(true)
      expect(uninformed.troubles).toEqual([])
      await uninformed.close()
    },
  )
})

const streamOf = ({ link: { keys } }: RedisScene, jobId: string) => keys.stream('scan', keys.shardOf(jobId))

async function isTight(url: string): Promise<void> {
  const client: RedisClientType = createClient({ url })
  await client.connect()
  const refused = [['FLUSHALL'], ['CONFIG', 'GET', '*'], ['KEYS', '*'], ['GET', 'ichido:memory:0'], ['ACL', 'LIST']]
  for (const command of refused) await expect(client.sendCommand(command)).rejects.toThrow('NOPERM')
  await expect(client.set('orders:1', 'x')).rejects.toThrow('NOPERM')
  await expect(client.publish('orders', 'x')).rejects.toThrow('NOPERM')
  client.destroy()
}
