import { createHash, randomUUID } from 'node:crypto'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { size } from '../../../../scripts/testing/size.ts'
import { DEFAULT_SHARDS, type StoredEvent } from '../../core/events/event.ts'
import { anEvent, REDIS_KINDS, RedisScene, type TestRedis, testRedis } from '../../testing/nodes/redis.ts'
import { until } from '../../testing/store/store.ts'
import { shardOf as shardOfShards } from './keys.ts'

const shardOf = (jobId: string) => shardOfShards(jobId, DEFAULT_SHARDS)

test('the shard of a job is the whole MD5 of its id modulo 4', () => {
  // The last digits of `printf job-1 | md5sum` and so on: 84, 2b, 16.
  expect(['job-1', 'job-2', 'job-3'].map(shardOf)).toEqual([0, 3, 2])
  const whole = BigInt(`0x${createHash('md5').update('job-1').digest('hex')}`)
  for (const shards of [1, 3, 7, 64]) expect(shardOfShards('job-1', shards)).toBe(Number(whole % BigInt(shards)))
})

describe.each(REDIS_KINDS)('on a %s Redis', (kind) => {
  let redis: TestRedis
  let scene: RedisScene

  beforeAll(async () => {
    redis = await testRedis(kind)
  })
  afterAll(() => redis.stop())
  beforeEach(async () => {
    // A router would also take the entries of the test before.
    await redis.flushAll()
    scene = new RedisScene(redis.url)
    await scene.up()
  })
  afterEach(() => scene.close())

  test("the seed's own test: published twice, it is true, then false, and one entry is in the stream", async () => {
    const jobId = 'job-1'
    const event = anEvent({ jobId })
    expect(await scene.relay.publish([event])).toEqual([true])
    expect(await scene.relay.publish([event])).toEqual([false])
    const stream = kind === 'single' ? `scan:events:${shardOf(jobId)}` : `scan:events:{${shardOf(jobId)}}`
    expect(scene.link.keys.stream('scan', shardOf(jobId))).toBe(stream)
    const entries = (await scene.entries('scan', jobId)).filter((entry) => entry.job_id === jobId)
    expect(entries).toEqual([
      {
        cursor: 2,
        job_id: jobId,
        domain: 'scan',
        stage: 'vision',
        seq: 10,
        data: { status: 'done' },
        timestamp: new Date(event.createdAtMs).toISOString(),
      },
    ])
    expect(await scene.state('scan', jobId)).toEqual(entries[0])
  })

  test('64 publishers race on the same event: one adds it', async () => {
    const event = anEvent()
    const scenes = Array.from({ length: 4 }, () => new RedisScene(redis.url))
    await Promise.all(scenes.map((each) => each.up()))
    const answers = await Promise.all(Array.from({ length: 64 }, (_, i) => scenes[i % 4]?.relay.publish([event])))
    expect(answers.flat().filter(Boolean)).toHaveLength(1)
    expect((await scene.entries('scan', event.jobId)).filter(({ job_id }) => job_id === event.jobId)).toHaveLength(1)
    await Promise.all(scenes.map((each) => each.close()))
  })

  test('an event that could not be added to its stream counts as not published', async () => {
    const event = anEvent({ domain: `d-${randomUUID()}` })
    const stream = scene.link.keys.stream(event.domain, shardOf(event.jobId))
    await scene.link.call((redis) => redis.set(stream, 'no stream'))
    expect(await scene.relay.publish([event])).toEqual([false])
    expect(scene.relayed).toMatchObject({ added: 0, repeated: 0, skipped: 1 })
    await redis.remove(stream)
    expect(await scene.relay.publish([event])).toEqual([true])
    expect(await scene.entries(event.domain, event.jobId)).toHaveLength(1)
  })

  test('a late event is added and routed, and the newer state stays', async () => {
    const jobId = randomUUID()
    const heard = await hear(scene, [jobId])
    scene.router()
    await scene.relay.publish([anEvent({ jobId, n: 3, stage: 'rule', seq: 20 })])
    await until('the newer event', async () => heard.get(jobId)?.includes(3))
    // The same seq in another stage is another event.
    await scene.relay.publish([anEvent({ jobId, n: 2, stage: 'vision', seq: 20 })])
    await until('the late event', async () => heard.get(jobId)?.includes(2))
    expect(await scene.state('scan', jobId)).toMatchObject({ cursor: 3, stage: 'rule' })
  })

  test('two routers route many events of many jobs and domains, each once', async () => {
    const events = eventsOf(40, 10)
    const heard = await hear(scene, jobsOf(events))
    scene.router()
    scene.router()
    scene.relay.stored(1, events)
    await until('the relay to end', async () => scene.relayed.added + scene.relayed.left === events.length)
    // On a busy machine Redis may have answered too late, and the leader sweeps what was left.
    await publishUntilDone(scene, events)
    await until('the last of every job', async () => [...heard.values()].every((cursors) => cursors.includes(11)))
    for (const jobId of jobsOf(events)) {
      const { domain } = events.find((event) => event.jobId === jobId) ?? anEvent()
      const cursors = (await scene.entries(domain, jobId))
        .filter((one) => one.job_id === jobId)
        .map((one) => one.cursor)
      expect(cursors).toEqual([2, 3, 4, 5, 6, 7, 8, 9, 10, 11])
      expect(heard.get(jobId)).toEqual([...new Set(heard.get(jobId))])
    }
    await statesAreRight(scene, events)
  })

  test('after a restart of Redis everything continues without scripts and groups', async () => {
    const events = eventsOf(8, 3)
    scene.router()
    await scene.relay.publish(events)
    await until('them to be routed', async () => scene.routed.new === events.length)
    await redis.forgetScripts()
    const more = eventsOf(8, 3)
    expect(await scene.relay.publish(more)).not.toContain(false)
    await until('those, too', async () => scene.routed.new === 2 * events.length)
    await redis.restart()
    await scene.up()
    const last = eventsOf(8, 3)
    const heard = await hear(scene, jobsOf(last))
    await publishUntilDone(scene, last)
    await until('the last ones', async () => [...heard.values()].every((cursors) => cursors.includes(4)))
    await statesAreRight(scene, last)
  })

  test('after FLUSHALL the groups are created again and read from the beginning', async () => {
    scene.router()
    const before = eventsOf(8, 3)
    await scene.relay.publish(before)
    await until('them to be routed', async () => scene.routed.new === before.length)
    await redis.flushAll()
    const after = eventsOf(8, 3)
    const heard = await hear(scene, jobsOf(after))
    await scene.relay.publish(after)
    await until('those after it', async () => [...heard.values()].every((cursors) => cursors.includes(4)))
    await statesAreRight(scene, after)
    expect(scene.troubles).toEqual([])
  })

  test('entries that a router did not acknowledge go to another router', async () => {
    const event = anEvent({ domain: `d-${randomUUID()}` })
    const stream = scene.link.keys.stream(event.domain, shardOf(event.jobId))
    await scene.relay.publish([event])
    await scene.link.call((commands) => commands.xGroupCreate(stream, 'router', '0', { MKSTREAM: true }))
    await scene.link.call((commands) => commands.xReadGroup('router', 'dead', [{ key: stream, id: '>' }]))
    const heard = await hear(scene, [event.jobId])
    scene.router({ reclaimAfterMs: 50 })
    await until('it to be reclaimed', async () => heard.get(event.jobId)?.includes(2))
  })

  test('with TTLs of seconds a repeated event never replaces a newer state', async () => {
    scene.ttls = { stateMs: 300, markMs: 300 }
    const jobId = randomUUID()
    const old = anEvent({ jobId, n: 2 })
    const newer = anEvent({ jobId, n: 3, seq: 11 })
    await scene.relay.publish([old, newer])
    await until('the state to expire', async () => (await scene.state('scan', jobId)) === null)
    await until('the mark to expire', async () => {
      await scene.relay.sweep([old], Date.now())
      return scene.relayed.swept === 1
    })
    // Without a state, readers ask the store. An old state would mislead them.
    expect(await scene.state('scan', jobId)).toBeNull()
    const cursors = (await scene.entries('scan', jobId)).filter((one) => one.job_id === jobId).map((one) => one.cursor)
    expect(cursors).toEqual([2, 3, 2])
    scene.router()
    await until('them to be routed', async () => scene.routed.new > 0)
    expect(await scene.state('scan', jobId)).toBeNull()
  })

  test('no state is older than an event that was too old to be the state', async () => {
    const jobId = randomUUID()
    await scene.relay.publish([anEvent({ jobId, n: 2 })])
    expect(await scene.state('scan', jobId)).toMatchObject({ cursor: 2 })
    const old = Date.now() - 2 * scene.ttls.stateMs
    await scene.relay.sweep([anEvent({ jobId, n: 3, seq: 11, createdAtMs: old })], Date.now())
    expect(await scene.state('scan', jobId)).toBeNull()
  })

  test('without a router streams stay bounded, and a router catches up', {
    timeout: 120_000,
  }, async () => {
    const count = size(1_200, 30_000)
    const events = eventsOf(count / 10, 10)
    for (let at = 0; at < count; at += 1_000) await scene.relay.publish(events.slice(at, at + 1_000))
    await statesAreRight(scene, events)
    const last = eventsOf(4, 2)
    const heard = await hear(scene, jobsOf(last))
    await scene.relay.publish(last)
    scene.router()
    await until('the last ones', async () => [...heard.values()].every((cursors) => cursors.includes(3)))
    await statesAreRight(scene, events)
    // MAXLEN ~: whole nodes of a stream go, so it may be a little longer.
    for (const { jobId } of last) expect((await scene.entries('scan-0', jobId)).length).toBeLessThan(10_200)
  })

  test('a Redis that hangs delays nobody for long, and is used again later', async () => {
    const event = anEvent()
    redis.freeze()
    try {
      await expect(scene.relay.publish([event])).rejects.toThrow('Redis does not answer')
      // The connection was closed, so the next command is refused at once.
      await expect(scene.relay.publish([event])).rejects.toThrow('Redis is not connected')
    } finally {
      redis.thaw()
    }
    await scene.up()
    // The event may have been added without an answer. The mark recognizes the repeat.
    await publishUntilDone(scene, [event])
    expect((await scene.entries('scan', event.jobId)).filter(({ job_id }) => job_id === event.jobId)).toHaveLength(1)
  })

  test('an unreachable Redis delays nobody, and is used again when it is back', async () => {
    await redis.kill9()
    const beganMs = performance.now()
    scene.relay.stored(1, eventsOf(10, 10))
    await until('them to be left to the sweep', async () => scene.relayed.left === 100)
    expect(await scene.relay.look()).toBe('away')
    expect(performance.now() - beganMs).toBeLessThan(5_000)
    await redis.restart()
    await scene.up()
    const event = anEvent()
    await scene.relay.sweep([event], Date.now())
    await scene.relay.sweep([event], Date.now())
    expect(scene.relayed.swept).toBe(1)
    expect(await scene.relay.look()).toBe('emptied')
    await scene.relay.remember()
    expect(await scene.relay.look()).toBe('ready')
    expect(scene.troubles.length).toBeGreaterThan(0)
  })
})

/** Events of each job in their order, `each` of them, in two domains. */
function eventsOf(jobs: number, each: number): StoredEvent[] {
  return Array.from({ length: jobs }, (_, j) => {
    const jobId = randomUUID()
    return Array.from({ length: each }, (_, i) => anEvent({ jobId, domain: `scan-${j % 2}`, n: i + 2, seq: i }))
  }).flat()
}

const jobsOf = (events: readonly StoredEvent[]) => [...new Set(events.map(({ jobId }) => jobId))]

/** The cursors that are heard of each job from now on. */
async function hear(scene: RedisScene, jobIds: readonly string[]): Promise<Map<string, number[]>> {
  const bus = scene.bus()
  const listening = Promise.withResolvers<void>()
  const heard = new Map(jobIds.map((jobId): [string, number[]] => [jobId, []]))
  for (const [jobId, cursors] of heard) {
    bus.subscribe(`job:${jobId}`, (news) => (news === undefined ? listening.resolve() : cursors.push(news.cursor)))
  }
  await listening.promise
  return heard
}

async function statesAreRight(scene: RedisScene, events: readonly StoredEvent[]): Promise<void> {
  const last = new Map(events.map((event) => [event.jobId, event]))
  for (const { jobId, domain, n } of last.values())
    expect(await scene.state(domain, jobId)).toMatchObject({ cursor: n })
}

/** A connection of a cluster may still be on its way. */
const publishUntilDone = (scene: RedisScene, events: readonly StoredEvent[]) =>
  until('them to be published', () => scene.relay.publish(events).catch(() => null))
