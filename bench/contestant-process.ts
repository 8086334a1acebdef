import { type Contestant, type Reply, round, type Settings, settings } from './contestant.ts'
import { flow } from './measure.ts'

// A contestant in a process of its own: it carries out the rounds that it is told to over the channel to its parent.

const open: Record<Settings['name'], (settings: Settings) => Promise<Contestant>> = {
  ichido: async (given) => (await import('./ichido/in-process.ts')).openInProcess(given),
  'ichido-http': async (given) => (await import('./ichido/over-http.ts')).openOverHttp(given),
  'pg-boss': async (given) => (await import('./peers/pg-boss.ts')).openPgBoss(given),
  bullmq: async (given) => (await import('./peers/bullmq.ts')).openBullmq(given),
  'graphile-worker': async (given) => (await import('./peers/graphile-worker.ts')).openGraphileWorker(given),
}

const say = (reply: Reply) => process.send?.(reply)

try {
  const given = settings.parse(JSON.parse(process.argv[2] ?? ''))
  const contestant = await open[given.name](given)
  let used = 0
  process.on('message', async (message) => {
    try {
      const { batch, keyed, ...load } = round.parse(message)
      const call = (n: number) =>
        batch === 1 ? contestant.submit(used + n) : contestant.submitMany(used + n * batch, batch, keyed)
      const { calls, elapsedMs } = await flow(load, call)
      used += calls * batch
      say({ jobsPerSecond: (calls * batch * 1000) / elapsedMs })
    } catch (error) {
      say({ failed: String(error) })
    }
  })
  process.on('disconnect', () => void contestant.close().finally(() => process.exit()))
  say({ ready: true })
} catch (error) {
  say({ failed: error instanceof Error ? (error.stack ?? error.message) : String(error) })
  process.disconnect()
}
