import { expect, test } from 'vitest'
import { beginPublishing } from '../../testing/services/publishing.ts'
import { testServices } from '../../testing/services/services.ts'
import { JobFeed } from './job-feed.ts'

test('readers with the same cursor share a read, within limits', async () => {
  const { services, close } = await testServices('sqlite')
  const { store } = services.deps
  const run = await beginPublishing(services)
  await run.progress(4, 'x'.repeat(20_000))
  let reads = 0
  const counting: typeof store = {
    engine: store.engine,
    write: (command) => store.write(command),
    read(command) {
      reads++
      return store.read(command)
    },
    health: () => store.health(),
    requireRoom: () => store.requireRoom(),
    vacuum: async () => [],
    close: async () => {},
  }
  const feed = new JobFeed(counting, ({ n, data }) => `${n} ${data}\n`, run.jobId, 6)
  const follow = (count: number) => {
    for (let i = 0; i < count; i++) feed.followers.add({ pump() {}, fail() {} })
  }
  follow(1)
  await feed.readAfter(2, 64)
  // The limit is 16 KiB for each reader, too little for one reader.
  expect([reads, feed.keptAfter(2)]).toEqual([1, undefined])
  follow(9)
  const [one, other] = await Promise.all([feed.readAfter(0, 64), feed.readAfter(0, 1)])
  expect([reads, one?.batches.map(({ last }) => last)]).toEqual([2, [5, 6]])
  expect(other).toBe(one)
  expect([feed.keptAfter(0), feed.keptAfter(5)]).toEqual(one?.batches)
  // Ten readers have 160 KiB, and the oldest batches are dropped.
  for (const cursor of [1, 2, 3]) await feed.readAfter(cursor, 64)
  expect([feed.keptAfter(0), feed.keptAfter(3)?.last]).toEqual([undefined, 6])
  await close()
})
