import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type FreshDatabase, freshDatabase } from '../../../../scripts/testing/services.ts'
import { full, size } from '../../../../scripts/testing/size.ts'
import { serveHere } from '../../../src/cli/testing/serve-here.ts'
import { Restarted, Watcher } from '../../../src/cli/testing/tormented-events.ts'
import { ALL_NODE_ROLES, type NodeRole } from '../../../src/core/node/node.ts'
import { publishBatch } from '../../../src/store/events/publish.ts'
import type { Leased } from '../../../src/store/leasing/lease-runs.ts'
import { HttpPublisher } from '../../../src/testing/http/http-publisher.ts'
import { REDIS_KINDS, RedisScene, type TestRedis, testRedis } from '../../../src/testing/nodes/redis.ts'
import { Gate } from '../../../src/testing/store/gate.ts'
import { Scene } from '../../../src/testing/store/scene.ts'
import { openNode, sql, until } from '../../../src/testing/store/store.ts'

/** Hazard 14: marks and states that expire too early, a router that is down, and a Redis that loses its data. */

/** The parts of the bus have their own tests, which use both kinds of Redis at any size. */
const KINDS = full ? REDIS_KINDS : (['single'] as const)
const JOBS = size(3, 10)
const EVENTS_PER_JOB = size(60, 3_000)
const CALL_MAX = 100
const TTL_SECONDS = '1'
const LATE_MS = size(300, 2_000)
/** The job adds three events of its own: PENDING, RUNNING and SUCCEEDED. */
const LAST = EVENTS_PER_JOB + 3

describe.each(KINDS)('with a %s Redis that keeps marks and states for a second', (kind) => {
  let redis: TestRedis
  let database: FreshDatabase
  beforeAll(async () => {
    ;[redis, database] = await Promise.all([testRedis(kind), freshDatabase()])
  })
  afterAll(async () => {
    await redis.stop()
    await database.leave()
  })

  const serve = (roles: ReadonlySet<NodeRole>) => {
    const ttls = { EVENT_STATE_TTL_SECONDS: TTL_SECONDS, EVENT_MARK_TTL_SECONDS: TTL_SECONDS }
    const env = { DATABASE_URL: database.url, REDIS_URL: redis.url, RELAY_INTERVAL_SECONDS: '0.05', ...ttls }
    return Restarted.serve(() => serveHere(env, roles))
  }

  async function publish(publisher: HttpPublisher, count: number): Promise<void> {
    for (let left = count; left > 0; left -= CALL_MAX) await publisher.publish(Math.min(left, CALL_MAX))
  }

  async function allIsRight(url: string, watchers: readonly Watcher[], jobIds: readonly string[]): Promise<void> {
    await Promise.all(watchers.map(({ ended }) => ended))
    for (const { seen, resets } of watchers) {
      expect(seen.map(({ cursor }) => cursor)).toEqual(upTo(LAST))
      expect([seen.at(-1)?.data, resets]).toEqual([{ state: 'SUCCEEDED', attempt: 1 }, 0])
    }
    for (const jobId of jobIds) {
      const state = await (await fetch(`${url}/v1/jobs/${jobId}/state`)).json()
      expect(state).toMatchObject({ state: 'SUCCEEDED', event: { cursor: LAST } })
    }
    await swept()
    const scene = new RedisScene(redis.url)
    await scene.up()
    // An old state would mislead a reader of Redis. A missing state only sends the reader to the API.
    for (const jobId of jobIds) expect([LAST, undefined]).toContain((await scene.state('scan', jobId))?.cursor)
    await scene.close()
  }

  /** Resolves when the leader has offered every event to Redis. */
  async function swept(): Promise<void> {
    const store = await openNode(database.url)
    const text = `SELECT (w.tx, w.job_id::text, w.n) >= (e.tx, e.job_id::text, e.n) AS swept FROM ichido.relay_watermark w,
      (SELECT tx, job_id, n FROM ichido.events ORDER BY tx DESC, job_id DESC, n DESC LIMIT 1) e`
    await until('all events to be swept', async () => (await sql(store, text))[0]?.swept)
    await store.close()
  }

  test(`streams and states survive a missing router and a FLUSHALL`, async () => {
    const server = await serve(new Set(['api', 'leader', 'gateway']))
    const publisher = await HttpPublisher.begin(server.url, JOBS)
    const watchers = publisher.jobIds.map((jobId) => new Watcher(server.url, jobId))
    await publish(publisher, EVENTS_PER_JOB / 2)
    await redis.flushAll()
    await publish(publisher, EVENTS_PER_JOB / 2)
    const router = await serve(new Set(['router']))
    await publisher.finish()
    await allIsRight(server.url, watchers, publisher.jobIds)
    await Promise.all([server.close(), router.close()])
  })

  test('events survive a restart of a server with all roles, and two FLUSHALLs', async () => {
    const server = await serve(ALL_NODE_ROLES)
    const publisher = await HttpPublisher.begin(server.url, JOBS)
    const watchers = publisher.jobIds.map((jobId) => new Watcher(server.url, jobId))
    await publish(publisher, EVENTS_PER_JOB / 3)
    const meanwhile = publish(publisher, EVENTS_PER_JOB / 3)
    await server.kill()
    await redis.flushAll()
    await server.start()
    await meanwhile
    await redis.flushAll()
    await publish(publisher, EVENTS_PER_JOB / 3)
    await publisher.finish()
    await allIsRight(server.url, watchers, publisher.jobIds)
    await server.close()
  })

  test('if one of two publishers commits late, Redis and followers miss nothing', async () => {
    const server = await serve(ALL_NODE_ROLES)
    const [store, other, gates] = [
      await openNode(database.url),
      await openNode(database.url),
      new pg.Client(database.url),
    ]
    await gates.connect()
    const scene = new Scene(store)
    const [late, early] = [await scene.running(), await scene.running()]
    const watchers = [late, early].map(({ jobId }) => new Watcher(server.url, jobId))
    const publishing = (lease: Leased, seq: number) =>
      publishBatch([{ ...scene.startItem(lease), events: [{ stage: 'progress', seq, data: 'null' }] }], true)
    const gate = await Gate.shut(gates)
    const held = store.write(gate.hold(publishing(late, 1)))
    await gate.reached()
    let seq = 0
    for (const untilMs = performance.now() + LATE_MS; performance.now() < untilMs; )
      await other.write(publishing(early, ++seq))
    await gate.open()
    await held
    for (const lease of [late, early]) await scene.finish(lease)
    await Promise.all(watchers.map(({ ended }) => ended))
    const lists = [upTo(4), upTo(seq + 3)]
    expect(watchers.map(({ seen }) => seen.map(({ cursor }) => cursor))).toEqual(lists)
    await swept()
    const found = new RedisScene(redis.url)
    await found.up()
    for (const [i, { jobId, kind: domain }] of [late, early].entries()) {
      const cursors = (await found.entries(domain, jobId))
        .filter(({ job_id }) => job_id === jobId)
        .map((one) => one.cursor)
      expect([...new Set(cursors)]).toEqual(lists[i])
    }
    await found.close()
    await Promise.all([server.close(), store.close(), other.close(), gates.end()])
  })
})

const upTo = (last: number) => Array.from({ length: last }, (_, i) => i + 1)
