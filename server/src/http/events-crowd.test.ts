import type { ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { expect, test } from 'vitest'
import { size } from '../../../scripts/testing/size.ts'
import { testApp } from '../testing/app.ts'
import { openCrowd } from '../testing/crowd.ts'
import { beginPublishing } from '../testing/publishing.ts'
import { until } from '../testing/store.ts'

const SUBSCRIBERS = size(100, 2_000)
const ASLEEP = SUBSCRIBERS / 10
/** Together more than the system's buffers of a connection hold. */
const EVENTS = 80
const EVENT_BYTES = 60_000
/** Of one stream: what the connection takes before it says no, and one batch. */
const STREAM_BYTES_MAX = 256 * 1024
/** Those who sleep have missed ten times as much at full size. */
const GROWTH_BYTES_MAX = 128 * 1024 * 1024

function memory(): { rss: number; heap: number } {
  globalThis.gc?.()
  const { rss, heapUsed, external } = process.memoryUsage()
  return { rss, heap: heapUsed + external }
}

test('a tenth of many subscribers do not read: little is kept for them, and nobody misses anything', async () => {
  const http = await testApp('sqlite')
  const responses: ServerResponse[] = []
  http.app.server.on('request', (_, response) => void responses.push(response))
  await http.app.listen({ host: '127.0.0.1', port: 0 })
  const { port } = http.app.server.address() as AddressInfo
  const run = await beginPublishing(http.services)
  const path = `/v1/jobs/${run.jobId}/events`
  const crowd = await openCrowd({ port, path, count: SUBSCRIBERS, asleep: ASLEEP, events: EVENTS + 3 })
  await until('all to be there', async () => responses.filter((one) => one.headersSent).length === SUBSCRIBERS)
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
    `${SUBSCRIBERS} subscribers, ${ASLEEP} asleep: ${EVENTS} events of ${EVENT_BYTES} bytes in ` +
      `${((performance.now() - beganMs) / 1000).toFixed(1)} s; at most ${MB(heap)} of heap and ${MB(rss)} of memory more`,
  )
  expect(responses.filter((one) => !one.writableEnded)).toHaveLength(ASLEEP)
  expect(longest).toBeLessThan(STREAM_BYTES_MAX)
  expect(heap).toBeLessThan(GROWTH_BYTES_MAX)
  expect(await crowd.wakeUp()).toEqual({ whole: ASLEEP, problems: [] })
  crowd.close()
  await http.close()
}, 300_000)
