import { randomUUID } from 'node:crypto'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { full } from '../../../../scripts/testing/size.ts'
import { anEvent, REDIS_KINDS, RedisScene, type TestRedis, testRedis } from '../../testing/nodes/redis.ts'
import { until } from '../../testing/store/store.ts'

/** Other programs use the same Redis: their keys stay unchanged, and block nothing. */

/** At full size on every kind: acl.test.ts and redis.test.ts run on a cluster in each size. */
const KINDS = full ? REDIS_KINDS : (['single'] as const)

describe.each(KINDS)('on a %s Redis', (kind) => {
  let redis: TestRedis
  let scene: RedisScene
  beforeAll(async () => {
    redis = await testRedis(kind)
  })
  afterAll(() => redis.stop())
  beforeEach(async () => {
    await redis.flushAll()
    scene = new RedisScene(redis.url)
    await scene.up()
  })
  afterEach(() => scene.close())

  const streamOf = (jobId: string, domain: string) => scene.link.keys.stream(domain, scene.link.keys.shardOf(jobId))
  const groupsOf = (stream: string) => scene.link.call((commands) => commands.xInfoGroups(stream))

  /** Like a program that knows nothing of Ichido. */
  async function addForeign(stream: string, count: number): Promise<void> {
    const lines = Array.from({ length: count }, () => `redis.call('XADD', KEYS[1], '*', 'order', '1')`)
    await scene.link.call((commands) => commands.eval(lines.join('\n'), { keys: [stream], arguments: [] }))
  }

  async function ttlOf(key: string): Promise<number> {
    const text = `return redis.call('PTTL', KEYS[1])`
    return Number(await scene.link.call((commands) => commands.eval(text, { keys: [key], arguments: [] })))
  }

  async function lengthOf(key: string): Promise<number> {
    const text = `return redis.call('XLEN', KEYS[1])`
    return Number(await scene.link.call((commands) => commands.eval(text, { keys: [key], arguments: [] })))
  }

  test('a stream of another program stays exactly as it is', async () => {
    const event = anEvent({ domain: 'orders' })
    const stream = streamOf(event.jobId, 'orders')
    await addForeign(stream, 150)
    scene.router()
    const own = anEvent({ jobId: event.jobId, domain: 'scan', seq: 11 })
    expect(await scene.relay.publish([event, own])).toEqual([false, true])
    await until('our own event', async () => scene.routed.new === 1)
    expect(await lengthOf(stream)).toBe(150)
    expect(await ttlOf(stream)).toBe(-1)
    expect(await groupsOf(stream)).toEqual([])
    expect(scene.relayed).toMatchObject({ added: 1, skipped: 1 })
    expect(scene.skipped).toBeGreaterThan(0)
    expect(String(scene.troubles)).toContain('set REDIS_PREFIX')
    expect(await scene.state('orders', event.jobId)).toBeNull()
  })

  test('S4’s streams are used and do not expire; streams of nodes expire', async () => {
    const event = anEvent({ domain: 'theirs' })
    const theirs = streamOf(event.jobId, 'theirs')
    const text = JSON.stringify({ job_id: event.jobId, domain: 'theirs', stage: 'vision', seq: 1, data: {} })
    const add = `return redis.call('XADD', KEYS[1], '*', 'data', ARGV[1])`
    await scene.link.call((commands) => commands.eval(add, { keys: [theirs], arguments: [text] }))
    const own = anEvent({ jobId: event.jobId, domain: 'ours', seq: 11 })
    expect(await scene.relay.publish([event, own])).toEqual([true, true])
    expect(await lengthOf(theirs)).toBe(2)
    expect(await ttlOf(theirs)).toBe(-1)
    expect(await ttlOf(streamOf(event.jobId, 'ours'))).toBeGreaterThan(0)
  })

  test('a key of another type is skipped and reported, and other streams go on', async () => {
    const jobId = randomUUID()
    scene.router()
    await scene.relay.publish([anEvent({ jobId, domain: 'broken' }), anEvent({ jobId, domain: 'whole', seq: 20 })])
    await until('both', async () => scene.routed.new === 2)
    const stream = streamOf(jobId, 'broken')
    await scene.link.call((commands) => commands.set(stream, 'no stream'))
    await until('it to be met', async () => scene.skipped > 0)
    const more = [
      anEvent({ jobId, domain: 'broken', n: 3, seq: 11 }),
      anEvent({ jobId, domain: 'whole', n: 3, seq: 21 }),
    ]
    await scene.relay.publish(more)
    await until('the other stream', async () => scene.routed.new === 3)
    expect(await scene.state('whole', jobId)).toMatchObject({ cursor: 3 })
    expect(String(scene.troubles)).toContain(stream)
  })

  test('a state of another type is skipped and reported, and other jobs go on', async () => {
    const [jobId, other] = [randomUUID(), randomUUID()]
    const list = `return redis.call('RPUSH', KEYS[1], 'x')`
    const state = scene.link.keys.state('scan', jobId)
    await scene.link.call((commands) => commands.eval(list, { keys: [state], arguments: [] }))
    scene.router()
    expect(await scene.relay.publish([anEvent({ jobId }), anEvent({ jobId: other })])).toEqual([true, true])
    await until('both', async () => scene.routed.new === 2)
    expect(await scene.state('scan', other)).toMatchObject({ cursor: 2 })
    expect(scene.skipped).toBe(2)
    expect(String(scene.troubles)).toContain(jobId)
  })

  test('of the set of domains only 1,000 valid entries are read', async () => {
    const jobId = randomUUID()
    const domains = scene.link.keys.domains(scene.link.keys.shardOf(jobId))
    const fill = `for i = 1, 1200 do redis.call('ZADD', KEYS[1], i, ARGV[1] .. i) end`
    for (const name of ['old-', 'no domain {', '']) {
      await scene.link.call((commands) => commands.eval(fill, { keys: [domains], arguments: [name] }))
    }
    await scene.relay.publish([anEvent({ jobId })])
    scene.router({ reclaimAfterMs: 50 })
    await until('the one that is used', async () => scene.routed.new === 1)
    await until('the others to go', async () => (await scene.link.call((commands) => commands.zCard(domains))) <= 1_000)
    let streams = 0
    await redis.each((key) => {
      streams += key.includes(':events:') ? 1 : 0
      expect(key).not.toContain('no domain')
    })
    expect(streams).toBeLessThanOrEqual(1_000)
    expect(scene.troubles).toEqual([])
  })

  test('an entry with another domain, or without a job, changes no other key', async () => {
    const jobId = randomUUID()
    await scene.relay.publish([anEvent({ jobId })])
    const forged = [
      { job_id: jobId, domain: 'other' },
      { job_id: '{a}', domain: 'scan' },
      { job_id: jobId, domain: 'scan', stage: '{a}' },
    ]
    const add = `for i = 1, #ARGV do redis.call('XADD', KEYS[1], '*', 'data', ARGV[i]) end`
    const entries = forged.map((one) =>
      JSON.stringify({ cursor: 9, stage: 'vision', seq: 99, data: {}, timestamp: new Date().toISOString(), ...one }),
    )
    await scene.link.call((commands) => commands.eval(add, { keys: [streamOf(jobId, 'scan')], arguments: entries }))
    scene.router()
    await until('all to be acknowledged', async () => {
      const [group] = await groupsOf(streamOf(jobId, 'scan')).catch(() => [])
      return group?.['entries-read'] === 4 && group.pending === 0
    })
    expect(await scene.state('other', jobId)).toBeNull()
    expect(await scene.state('scan', jobId)).toMatchObject({ cursor: 2 })
    expect(scene.troubles).toEqual([])
  })

  test('a second Ichido with the same names is reported, with a prefix it is not', async () => {
    await scene.relay.remember()
    const second = new RedisScene(redis.url, '', 'second')
    const prefixed = new RedisScene(redis.url, 'team-b:', 'second')
    await Promise.all([second.up(), prefixed.up()])
    expect(await second.relay.look()).toBe('ready')
    expect(String(second.troubles)).toContain('in use by another Ichido')
    expect(await scene.relay.look()).toBe('ready')
    expect(await prefixed.relay.look()).toBe('emptied')
    expect([...scene.troubles, ...prefixed.troubles]).toEqual([])
    await Promise.all([second.close(), prefixed.close()])
  })

  test('with a prefix all keys and channels have it, and no others are read', async () => {
    const prefixed = new RedisScene(redis.url, 'team-a:')
    await prefixed.up()
    const [jobId, other] = [randomUUID(), randomUUID()]
    await scene.relay.publish([anEvent({ jobId: other })])
    const bus = prefixed.bus()
    const heard = new Promise((resolve) => bus.subscribe(`job:${jobId}`, (news) => news && resolve(news)))
    prefixed.router()
    await prefixed.relay.publish([anEvent({ jobId })])
    await prefixed.relay.remember()
    expect(await heard).toMatchObject({ cursor: 2 })
    await until('it to be counted', async () => prefixed.routed.new === 1)
    expect(await scene.state('scan', jobId)).toBeNull()
    await prefixed.close()
    await redis.remove('team-a:*')
    const left = new Set<string>()
    await redis.each((key) => void left.add(key))
    expect([...left].filter((key) => key.includes(jobId))).toEqual([])
    // The keys of the scene without a prefix: stream, state, mark and domains.
    expect(left.size).toBe(4)
  })
})
