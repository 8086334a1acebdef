import { setTimeout as sleep } from 'node:timers/promises'
import {
  type Contestant,
  type Drain,
  type Order,
  order,
  type Reply,
  type Round,
  type Settings,
  type Starts,
  settings,
} from './contestant.ts'
import { flow } from './measure.ts'

// A contestant in its own process. It executes the orders that its parent sends over the channel.

const open: Record<Settings['name'], (settings: Settings) => Promise<Contestant>> = {
  ichido: async (given) => (await import('./ichido/in-process.ts')).openInProcess(given),
  'ichido-http': async (given) => (await import('./ichido/over-http.ts')).openOverHttp(given),
  floor: async (given) => (await import('./ichido/floor.ts')).openFloor(given),
  'pg-boss': async (given) => (await import('./peers/pg-boss.ts')).openPgBoss(given),
  bullmq: async (given) => (await import('./peers/bullmq.ts')).openBullmq(given),
  'graphile-worker': async (given) => (await import('./peers/graphile-worker.ts')).openGraphileWorker(given),
}

const FILL_BATCH = 1_000
const say = (reply: Reply) => process.send?.(reply)
let used = 0

try {
  const given = settings.parse(JSON.parse(process.argv[2] ?? ''))
  const contestant = await open[given.name](given)
  process.on('message', async (message) => {
    try {
      say(await carryOut(contestant, order.parse(message)))
    } catch (error) {
      say({ failed: error instanceof Error ? (error.stack ?? error.message) : String(error) })
    }
  })
  process.on('disconnect', () => void contestant.close().finally(() => process.exit()))
  say({ ready: true })
} catch (error) {
  say({ failed: error instanceof Error ? (error.stack ?? error.message) : String(error) })
  process.disconnect()
}

function carryOut(contestant: Contestant, given: Order): Promise<Reply> {
  if ('jobs' in given) return workOff(contestant, given)
  if ('everyMs' in given) return startOneByOne(contestant, given)
  return submitRound(contestant, given)
}

async function submitRound(contestant: Contestant, { batch, keyed, ...load }: Round): Promise<Reply> {
  const call = (n: number) =>
    batch === 1 ? contestant.submit(used + n) : contestant.submitMany(used + n * batch, batch, keyed)
  const { calls, elapsedMs } = await flow(load, call)
  used += calls * batch
  return { jobsPerSecond: (calls * batch * 1000) / elapsedMs }
}

async function workOff(contestant: Contestant, { jobs }: Drain): Promise<Reply> {
  for (let left = jobs; left > 0; left -= FILL_BATCH) {
    const count = Math.min(left, FILL_BATCH)
    await contestant.submitMany(used, count, false)
    used += count
  }
  const done = Promise.withResolvers<void>()
  const begun = new Set<number>()
  const began = performance.now()
  const stop = await contestant.work('bulk', (n) => {
    begun.add(n)
    if (begun.size === jobs) done.resolve()
  })
  await done.promise
  const elapsedMs = performance.now() - began
  await stop()
  return { jobsPerSecond: (jobs * 1000) / elapsedMs }
}

/** Submits at a steady pace, whether or not the previous job has begun. */
async function startOneByOne(contestant: Contestant, { calls, everyMs }: Starts): Promise<Reply> {
  const waiting = new Map<number, (beganMs: number) => void>()
  const stop = await contestant.work('prompt', (n) => waiting.get(n)?.(performance.now()))
  const starts: Promise<number>[] = []
  const first = performance.now()
  for (let i = 0; i < calls; i++) {
    await sleep(Math.max(0, first + i * everyMs - performance.now()))
    const n = used++
    const sentMs = performance.now()
    starts.push(new Promise((resolve) => waiting.set(n, (beganMs) => resolve(beganMs - sentMs))))
    await contestant.submit(n)
  }
  const startsMs = await Promise.all(starts)
  await stop()
  return { startsMs }
}
