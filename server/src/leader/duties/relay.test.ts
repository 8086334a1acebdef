import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { size } from '../../../../scripts/testing/size.ts'
import { FIRST_EVENT } from '../../store/events/all-events.ts'
import { beginWatermark, moveWatermark } from '../../store/events/relay.ts'
import { seize, trusting } from '../../testing/nodes/reaper.ts'
import { anEvent, RedisScene, type TestRedis, testRedis } from '../../testing/nodes/redis.ts'
import { beginPublishing } from '../../testing/services/publishing.ts'
import { ENGINES, type TestServices, testServices } from '../../testing/services/services.ts'
import { settingsOf } from '../../testing/store/retention.ts'
import { sql, until } from '../../testing/store/store.ts'
import { createRelay } from './relay.ts'

/** The size of an event: some hundreds of them fill a small Redis. */
const DATA = 'x'.repeat(4_000)

let redis: TestRedis
beforeAll(async () => {
  redis = await testRedis('single')
})
afterAll(() => redis.stop())

describe.each(ENGINES)('%s', (engine) => {
  let opened: TestServices
  let scene: RedisScene
  const services = () => opened.services
  const store = () => opened.services.deps.store
  beforeAll(async () => {
    opened = await testServices(engine)
  })
  afterAll(() => opened.close())
  beforeEach(async () => {
    await sql(store(), 'DELETE FROM ichido.relay_watermark')
    await redis.flushAll()
    scene = new RedisScene(redis.url)
    await scene.up()
  })
  afterEach(() => scene.close())

  /** The duty of a new leader, until there is nothing left to do. */
  async function leader(batchMax = 100, relay = scene.relay, between: () => unknown = () => {}) {
    const settings = settingsOf({ relay_batch_max: batchMax, event_state_ttl_seconds: 3_600 })
    const tick = createRelay({ store: store(), relay, settings }, trusting(await seize(store())))
    return async () => {
      await settled()
      while ((await tick()) === 0) await between()
    }
  }

  /** Transactions of other databases delay readers in the order of the server's transactions. */
  async function settled(): Promise<void> {
    if (engine === 'sqlite') return
    const text = `SELECT coalesce(max(tx::text::bigint), 0) < pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS settled
      FROM ichido.events`
    await until('older transactions to end', async () => (await sql(store(), text))[0]?.settled)
  }

  const cursors = async (jobId: string, domain = 'work') =>
    (await scene.entries(domain, jobId)).filter(({ job_id }) => job_id === jobId).map(({ cursor }) => cursor)

  test('events that no node relayed are swept once, in order', async () => {
    const before = await beginPublishing(services())
    await before.succeed()
    const sweep = await leader(3)
    await sweep()
    const job = await beginPublishing(services())
    await job.progress(4)
    await job.succeed()
    await sweep()
    await sweep()
    expect(await cursors(job.jobId)).toEqual([1, 2, 3, 4, 5, 6, 7])
    expect(await cursors(before.jobId)).toEqual([])
    expect(scene.relayed.swept).toBe(7)
    expect(await scene.state('work', job.jobId)).toMatchObject({ cursor: 7, data: { state: 'SUCCEEDED' } })
    // The next leader goes on from there.
    await (await leader())()
    expect(scene.relayed.swept).toBe(7)
  })

  test('events that nodes relayed are left alone', async () => {
    await (await leader())()
    const sweep = await leader()
    services().deps.relay = scene.relay
    const job = await beginPublishing(services(), { domain: 'scan' })
    await job.progress(5)
    await until('the node to relay them', async () => scene.relayed.added === 5)
    delete services().deps.relay
    await sweep()
    expect(await cursors(job.jobId, 'scan')).toHaveLength(7)
    expect(scene.relayed.swept).toBe(2)
  })

  test('after FLUSHALL all events that may be a state are sent again', async () => {
    const sweep = await leader()
    await sweep()
    const job = await beginPublishing(services())
    await job.progress(3)
    await sweep()
    await redis.flushAll()
    await sweep()
    expect(await cursors(job.jobId)).toEqual([1, 2, 3, 4, 5])
    expect(await scene.state('work', job.jobId)).toMatchObject({ cursor: 5 })
    await sweep()
    expect(scene.relayed.swept).toBe(10)
  })

  test('while Redis is unreachable everything works, and it catches up later', async () => {
    const sweep = await leader()
    await sweep()
    const watermark = await store().write(beginWatermark())
    await redis.kill9()
    services().deps.relay = scene.relay
    const job = await beginPublishing(services())
    await job.progress(20)
    await job.succeed()
    await until('the node to give up', async () => scene.relayed.left === 20)
    delete services().deps.relay
    await sweep()
    expect(await store().write(beginWatermark())).toEqual(watermark)
    await redis.restart()
    await scene.up()
    await sweep()
    expect(await cursors(job.jobId)).toEqual(Array.from({ length: 23 }, (_, i) => i + 1))
    expect(await scene.state('work', job.jobId)).toMatchObject({ cursor: 23 })
  })

  test('a Redis that evicts gets everything once, and then only new events', { timeout: 600_000 }, async () => {
    const evicting = await testRedis('single', { settings: { maxmemory: '3mb', 'maxmemory-policy': 'allkeys-lru' } })
    const there = new RedisScene(evicting.url)
    try {
      await there.up()
      const count = size(400, 30_000)
      let ticks = 0
      const sweep = await leader(100, there.relay, () => {
        // Two passes, with some tolerance: without the limit it would restart with every lost key.
        expect(++ticks).toBeLessThan((3 * count) / 100 + 100)
        return evicting.remove('ichido:memory:*')
      })
      await sweep()
      const jobs = await Promise.all(Array.from({ length: 4 }, () => beginPublishing(services())))
      for (let at = 0; at < count; at += 400) for (const job of jobs) await job.progress(100, DATA)
      await sweep()
      const last = await beginPublishing(services())
      await sweep()
      expect(await there.state('work', last.jobId)).toMatchObject({ cursor: 2 })
      expect(there.relayed.swept).toBeLessThan(2 * (count + 20))
      expect(there.redisTroubles).toEqual(new Set(['evicts']))
      expect(String(there.troubles)).toContain('allkeys-lru')
    } finally {
      await there.close()
      await evicting.stop()
    }
  })

  test('a full Redis is left alone until it has space, and then gets everything', async () => {
    const small = await testRedis('single', { settings: { maxmemory: '2mb', 'maxmemory-policy': 'noeviction' } })
    const there = new RedisScene(small.url)
    try {
      await there.up()
      const sweep = await leader(100, there.relay)
      await sweep()
      const job = await beginPublishing(services())
      await small.command('CONFIG', 'SET', 'maxmemory', '1')
      const before = await small.calls('evalsha')
      await expect(sweep()).rejects.toThrow('Redis is full')
      const watermark = await store().write(beginWatermark())
      // A storm would try in every turn.
      for (let i = 0; i < 50; i++) await sweep()
      for (let i = 0; i < 50; i++) there.relay.stored(1, [anEvent()])
      await until('them to be left', async () => there.relayed.left === 50)
      expect((await small.calls('evalsha')) - before).toBeLessThanOrEqual(2)
      expect(await there.relay.look()).toBe('full')
      expect(await store().write(beginWatermark())).toEqual(watermark)
      expect(there.redisTroubles).toEqual(new Set(['full']))
      expect(there.troubles.filter((error) => String(error).includes('Redis is full'))).toHaveLength(1)
      await small.command('CONFIG', 'SET', 'maxmemory', '0')
      await until('it to have room', async () => (await there.relay.look()) !== 'full')
      await sweep()
      expect(await there.state('work', job.jobId)).toMatchObject({ cursor: 2 })
      expect(there.redisTroubles).toEqual(new Set())
    } finally {
      await there.close()
      await small.stop()
    }
  })

  test('a leader whose term is over does not move the watermark', async () => {
    const sweep = await leader()
    await sweep()
    const job = await beginPublishing(services())
    const term = await seize(store())
    const before = await store().write(beginWatermark())
    await sweep()
    expect(await store().write(beginWatermark())).toEqual(before)
    expect(
      await store().write(moveWatermark({ ...term, epoch: term.epoch - 1 }, { place: FIRST_EVENT, checkpoints: [] })),
    ).toBe(false)
    expect(await cursors(job.jobId)).toEqual([1, 2])
  })

  test('a watermark of another store is replaced', async () => {
    const place = { ...FIRST_EVENT, tx: Number.MAX_SAFE_INTEGER }
    await store().write(moveWatermark(await seize(store()), { place, checkpoints: [] }))
    const sweep = await leader()
    await sweep()
    const job = await beginPublishing(services())
    await sweep()
    expect(await cursors(job.jobId)).toEqual([1, 2])
  })

  // SQLite names no transactions.
  if (engine === 'postgres') {
    const taken = () => scene.relay.taken(0, Number.MAX_SAFE_INTEGER).length
    /** Like a killed Redis that had not written them to its disk. */
    const forgetMarks = (jobId: string) => redis.remove(`published:${jobId}:*`)

    /** Each call is a transaction that the node takes to Redis. */
    async function relayed(publish: () => Promise<unknown>, transactions: number): Promise<void> {
      services().deps.relay = scene.relay
      await publish()
      await until('the node to relay it', async () => taken() === transactions)
      delete services().deps.relay
    }

    test('events of its own node are not read, until Redis may have lost them', async () => {
      const sweep = await leader()
      await sweep()
      const job = await beginPublishing(services())
      for (const transactions of [1, 2, 3]) await relayed(() => job.progress(2), transactions)
      await forgetMarks(job.jobId)
      await sweep()
      expect(await cursors(job.jobId)).toEqual([3, 4, 5, 6, 7, 8, 1, 2])
      await relayed(() => job.progress(1), 4)
      await forgetMarks(job.jobId)
      await redis.hangUp()
      await until('a new connection', async () => taken() === 0)
      await scene.up()
      await sweep()
      expect((await cursors(job.jobId)).slice(8)).toEqual([9, 9])
    })

    test('the watermark stays if Redis vanishes between two looks', async () => {
      const kept = await testRedis('single', { appendfsync: 'always' })
      const there = new RedisScene(kept.url)
      try {
        await there.up()
        const sweep = await leader(100, there.relay)
        const job = await beginPublishing(services())
        await sweep()
        services().deps.relay = there.relay
        await job.progress(2)
        await until('the node to relay it', async () => there.relay.taken(0, Number.MAX_SAFE_INTEGER).length === 1)
        delete services().deps.relay
        const { look } = there.relay
        const looks = ['first', 'second']
        there.relay.look = async () => {
          if (looks.shift() === 'second') {
            await kept.remove(`published:${job.jobId}:progress:*`)
            await kept.kill9()
          }
          return look.call(there.relay)
        }
        await sweep()
        there.relay.look = look
        await kept.restart()
        await there.up()
        expect(await there.relay.look(), 'it has what it was told to remember').toBe('ready')
        await sweep()
        expect(there.relayed.swept).toBe(2)
      } finally {
        await there.close()
        await kept.stop()
      }
    })

    test('the watermark moves past events that are not read', async () => {
      const sweep = await leader()
      const job = await beginPublishing(services())
      await sweep()
      await relayed(() => job.progress(2), 1)
      await sweep()
      await forgetMarks(job.jobId)
      await (await leader())()
      expect(await cursors(job.jobId)).toHaveLength(2)
    })

    test('a new leader does not trust what its node relayed before', async () => {
      const other = new RedisScene(redis.url)
      await other.up()
      const sweep = await leader(100, other.relay)
      await sweep()
      const job = await beginPublishing(services())
      await relayed(() => job.progress(2), 1)
      await sweep()
      await redis.flushAll()
      other.relay.missing = () => Promise.reject(new Error('killed'))
      await expect(sweep()).rejects.toThrow('killed')
      await (await leader())()
      expect(await cursors(job.jobId)).toEqual([1, 2, 3, 4])
      expect(await scene.state('work', job.jobId)).toMatchObject({ cursor: 4 })
      await other.close()
    })
  }
})
