import { setTimeout as sleep } from 'node:timers/promises'
import { Client, httpTransport } from '@ichido/sdk'
import { HttpPublisher } from '../../server/src/testing/http/http-publisher.ts'
import { serve } from '../ichido/server-process.ts'
import type { Comparison } from '../report/comparison.ts'
import type { Stage } from '../stage.ts'

const EVERY_MS = 10
const WITHIN_MS = 10

/** Measures from a worker's call until `watch` delivers the event, at 100 events per second, with Redis. */
export async function reach({ size, database, program, say }: Stage, redisUrl: string): Promise<Comparison> {
  const warmUp = Math.ceil(size.calls / 10)
  const server = await serve(await database('events_reach'), { REDIS_URL: redisUrl }, program)
  try {
    say(`from publish to a reader, ${1000 / EVERY_MS} events a second`)
    const publisher = await HttpPublisher.begin(server.url, 1)
    const watching = watch(server.url, publisher.jobIds[0] ?? '')
    const sentMs: number[] = []
    const calls: Promise<void>[] = []
    const first = performance.now()
    for (let i = 0; i < warmUp + size.calls; i++) {
      await sleep(Math.max(0, first + i * EVERY_MS - performance.now()))
      sentMs.push(performance.now())
      calls.push(publisher.publish(1))
    }
    await Promise.all(calls)
    await publisher.finish()
    const seenMs = await watching
    return {
      what: `from publish to reader, ${1000 / EVERY_MS} events a second, p50`,
      unit: 'ms',
      ours: sentMs.map((sent, seq) => (seenMs.get(seq) ?? Number.POSITIVE_INFINITY) - sent).slice(warmUp),
      against: 'the time it may take',
      theirs: [WITHIN_MS],
      rival: 'self',
      target: { most: 1 },
    }
  } finally {
    await server.stop()
  }
}

/** The arrival time of each event, by its seq. */
async function watch(url: string, jobId: string): Promise<Map<number, number>> {
  const seenMs = new Map<number, number>()
  for await (const { stage, seq } of new Client(httpTransport({ url })).watch(jobId)) {
    if (stage !== 'run') seenMs.set(seq, performance.now())
  }
  return seenMs
}
