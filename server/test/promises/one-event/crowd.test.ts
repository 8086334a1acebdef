import type { ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { expect, test } from 'vitest'
import { full, size } from '../../../../scripts/testing/size.ts'
import { type TestApp, testApp } from '../../../src/testing/http/app.ts'
import { openCrowd } from '../../../src/testing/nodes/crowd.ts'
import { REDIS_KINDS, type RedisKind, RedisScene, testRedis } from '../../../src/testing/nodes/redis.ts'
import { beginPublishing } from '../../../src/testing/services/publishing.ts'
import { ENGINES, type Engine } from '../../../src/testing/services/services.ts'
import { until } from '../../../src/testing/store/store.ts'

const SUBSCRIBERS = size(100, 2_000)
const ASLEEP = SUBSCRIBERS / 10
/** Together these are more bytes than the socket buffers of a connection hold. */
const EVENTS = 80
const EVENT_BYTES = 60_000
/** Maximum per stream: the bytes that the connection accepts before it is full, plus one batch. */
const STREAM_BYTES_MAX = 256 * 1024
/** At full size the subscribers that do not read have missed ten times as much. */
const GROWTH_BYTES_MAX = 128 * 1024 * 1024

function memory(): { rss: number; heap: number } {
  globalThis.gc?.()
  const { rss, heapUsed, external } = process.memoryUsage()
  return { rss, heap: heapUsed + external }
}

type Way = Engine | RedisKind
const WAYS: readonly Way[] = full ? [...ENGINES, ...REDIS_KINDS] : ['sqlite']

/** A node that gets events from its own store, and with Redis also from a router. */
async function nodeOn(way: Way): Promise<TestApp> {
  if (way === 'sqlite' || way === 'postgres') return testApp(way)
  const redis = await testRedis(way)
  const scene = new RedisScene(redis.url)
  await scene.up()
  scene.router()
  const http = await testApp('postgres', { deps: { bus: scene.bus() } })
  http.services.deps.relay = scene.relay
  const close = async () => {
    await http.close()
    await scene.close()
    await redis.stop()
  }
  return { ...http, close }
}

test.each(WAYS)(
  'a tenth of the subscribers do not read: little is buffered, no event is lost: %s',
  async (way) => {
    const http = await nodeOn(way)
    const responses: ServerResponse[] = []
    http.app.server.on('request', (_, response) => void responses.push(response))
    await http.app.listen({ host: '127.0.0.1', port: 0 })
    const { port } = http.app.server.address() as AddressInfo
    const run = await beginPublishing(http.services)
    const path = `/v1/jobs/${run.jobId}/events`
    const crowd = await openCrowd({ port, path, count: SUBSCRIBERS, asleep: ASLEEP, events: EVENTS + 3 })
    await until(
      'all subscribers to be connected',
      async () => responses.filter((one) => one.headersSent).length === SUBSCRIBERS,
    )
    const before = memory()
    let [rss, heap, longest] = [0, 0, 0]
    const look = () => {
      const now = memory()
      rss = Math.max(rss, now.rss - before.rss)
      heap = Math.max(heap, now.heap - before.heap)
      longest = Math.max(longest, ...responses.map((one) => one.writableLength))
    }
    const beganMs = performance.now()
    for (let i = 0; i < EVENTS; i++) {
      await run.progress(1, 'x'.repeat(EVENT_BYTES))
      look()
    }
    await run.succeed()
    const looking = setInterval(look, 50)
    expect(await crowd.readers).toEqual({ whole: SUBSCRIBERS - ASLEEP, problems: [] })
    clearInterval(looking)
    look()
    const MB = (bytes: number) => `${(bytes / 2 ** 20).toFixed(0)} MiB`
    console.log(
      `${way}, ${SUBSCRIBERS} subscribers, ${ASLEEP} asleep: ${EVENTS} events of ${EVENT_BYTES} bytes in ` +
        `${((performance.now() - beganMs) / 1000).toFixed(1)} s; at most ${MB(heap)} of heap and ${MB(rss)} of memory more`,
    )
    expect(responses.filter((one) => !one.writableEnded)).toHaveLength(ASLEEP)
    expect(longest).toBeLessThan(STREAM_BYTES_MAX)
    expect(heap).toBeLessThan(GROWTH_BYTES_MAX)
    expect(await crowd.wakeUp()).toEqual({ whole: ASLEEP, problems: [] })
    crowd.close()
    await http.close()
  },
  300_000,
)
