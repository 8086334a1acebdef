import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import { z } from 'zod'
import { HttpPublisher } from '../../server/src/testing/http/http-publisher.ts'
import { serve } from '../ichido/server-process.ts'
import { flow, interleave } from '../measure.ts'
import type { Comparison } from '../report/comparison.ts'
import type { Stage } from '../stage.ts'

/**
 * Enough that the server always has an event to write. With two, a publish, which waits for the disk, took longer than
 * the writes to 1,000 readers. The publish was then the measured time, which `reach` measures better.
 */
const UNDER_WAY = 4
/** A job's first two events say that it was created and is running. */
const AFTER = 2

interface FanOut {
  /** Returns deliveries per second. */
  round(): Promise<number>
  close(): Promise<void>
}

/** Measures deliveries to many readers of one job, beside a loop that writes the same frames to as many sockets. */
export async function fanOut({ size, database, program, say }: Stage, subscribers: number): Promise<Comparison> {
  const many = subscribers.toLocaleString('en-US')
  const server = await serve(await database(`events_fan_out_${subscribers}`), {}, program)
  const opened: FanOut[] = []
  try {
    const publisher = await HttpPublisher.begin(server.url, 1)
    const path = `/v1/jobs/${publisher.jobIds[0]}/events?after=${AFTER}`
    const port = Number(new URL(server.url).port)
    const ours = await openFanOut({ port, path, count: subscribers }, size.roundMs, () => publisher.publish(1))
    opened.push(ours)
    const bare = await openBare(subscribers, size.roundMs)
    opened.push(bare)
    say(`events to ${many} subscribers`)
    const measures = { bare: () => bare.round(), ours: () => ours.round() }
    const found = await interleave(size, measures)
    return {
      what: `fan-out to ${many} subscribers`,
      unit: '/s',
      ours: found.ours,
      against: 'bare socket.write loop',
      theirs: found.bare,
      rival: 'limit',
      target: { least: 0.7 },
    }
  } finally {
    for (const one of opened) await one.close()
    await server.stop()
  }
}

async function openBare(subscribers: number, roundMs: number): Promise<FanOut> {
  const writer = start('writer-process.ts')
  const [said] = await once(writer, 'message')
  const { port } = z.object({ port: z.int() }).parse(said)
  let seq = 0
  const write = async () => {
    const event = { cursor: seq + AFTER, stage: 'progress', seq, data: seq++, timestamp: new Date().toISOString() }
    writer.send({ write: `id: ${event.cursor}\ndata: ${JSON.stringify(event)}\n\n` })
  }
  const { round, close } = await openFanOut({ port, path: '/', count: subscribers }, roundMs, write)
  return {
    round,
    async close() {
      await close()
      await end(writer)
    },
  }
}

const report = z.union([z.object({ opened: z.literal(true) }), z.object({ all: z.int() })])

/** Publishes one event after the other, with a limit on the events that some reader has not yet received. */
async function openFanOut(
  readers: { port: number; path: string; count: number },
  durationMs: number,
  publish: () => Promise<void>,
): Promise<FanOut> {
  const child = start('reader-process.ts', JSON.stringify(readers))
  const gone = once(child, 'exit').then(() => Promise.reject(new Error('The readers have gone')))
  gone.catch(() => {})
  const opened = Promise.withResolvers<void>()
  const waiting = new Map<number, () => void>()
  child.on('message', (message) => {
    const found = report.parse(message)
    if ('opened' in found) opened.resolve()
    else waiting.get(found.all)?.()
  })
  await Promise.race([opened.promise, gone])
  let sent = 0
  async function send(): Promise<void> {
    const n = ++sent
    const reached = new Promise<void>((resolve) => waiting.set(n, resolve))
    await publish()
    await Promise.race([reached, gone])
    waiting.delete(n)
  }
  return {
    async round() {
      const { calls, elapsedMs } = await flow({ callers: UNDER_WAY, durationMs }, send)
      return (calls * readers.count * 1_000) / elapsedMs
    },
    close: () => end(child),
  }
}

function start(file: string, ...args: string[]): ChildProcess {
  const program = fileURLToPath(new URL(file, import.meta.url))
  return fork(program, args, { execArgv: ['--conditions=ichido-source'] })
}

async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  const exited = once(child, 'exit')
  child.disconnect()
  await exited
}
