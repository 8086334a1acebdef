// An application with one handler: prints its memory before its first job, after it, and at most under load. Plain JavaScript,
// so that no memory is spent on stripping types.
import { setTimeout as sleep } from 'node:timers/promises'

const [name, module, url, settleMs, jobs] = process.argv.slice(2)
const CALLERS = 64
const SAMPLE_MS = 20
let handled = () => {}

const redisAt = () => {
  const { hostname, port, password } = new URL(url)
  return { host: hostname, port: Number(port), password }
}

const OPEN = {
  async ichido({ defineKind, open }) {
    const ichido = await open(url.startsWith('file:') ? { dataDir: new URL(url).pathname } : { databaseUrl: url })
    const kind = defineKind('idle')
    ichido.handle(kind, () => handled(), { concurrency: 100 })
    return { submit: () => ichido.submit(kind, {}), close: () => ichido.close() }
  },
  async 'pg-boss'({ PgBoss }) {
    const boss = new PgBoss({ connectionString: url })
    await boss.start()
    await boss.createQueue('idle')
    await boss.work('idle', { batchSize: 100, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 }, async (got) => {
      for (const _ of got) handled()
    })
    return { submit: () => boss.send('idle', {}), close: () => boss.stop({ graceful: false }) }
  },
  async 'graphile-worker'({ run, makeWorkerUtils, Logger }) {
    const utils = await makeWorkerUtils({ connectionString: url })
    await utils.migrate()
    const taskList = { idle: async () => handled() }
    const logger = new Logger(() => () => {})
    const runner = await run({ connectionString: url, concurrency: 24, noHandleSignals: true, taskList, logger })
    return { submit: () => utils.addJob('idle', {}), close: () => runner.stop() }
  },
  async bullmq({ default: { Queue, Worker } }) {
    const queue = new Queue('idle', { connection: redisAt() })
    const worker = new Worker('idle', async () => handled(), { connection: redisAt(), concurrency: 100 })
    return { submit: () => queue.add('idle', {}), close: () => Promise.all([worker.close(), queue.close()]) }
  },
  async 'bee-queue'({ default: Queue }) {
    const queue = new Queue('idle', { redis: redisAt() })
    queue.process(100, async () => handled())
    return { submit: () => queue.createJob({}).save(), close: () => queue.close() }
  },
  // A worker of a server, which also submits over HTTP.
  async worker({ HandlerLoop, httpWorkerTransport }) {
    const { realWorld: world } = await import(new URL('../../../server/dist/node/world.js', module))
    const post = async (path, body) => {
      const answer = await fetch(`${url}${path}`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify(body),
      })
      if (!answer.ok) throw new Error(await answer.text())
      return answer.json()
    }
    const { enroll_token } = await post('/v1/workers/enroll-tokens', {})
    const { worker_token } = await post('/v1/workers/register', { enroll_token, name: 'bench' })
    const transport = httpWorkerTransport({ url, token: () => worker_token, world })
    const kind = { name: 'idle', queue: 'default', options: {} }
    const loop = new HandlerLoop(
      kind,
      () => handled(),
      { concurrency: 100 },
      { transport, world, onTrouble: console.error },
    )
    return { submit: () => post('/v1/jobs', { kind: 'idle' }), close: () => loop.close(0) }
  },
  // The limit: a connection to PostgreSQL, which writes a row for each job.
  async bare({ default: pg }) {
    const client = new pg.Client(url)
    await client.connect()
    await client.query('CREATE TABLE IF NOT EXISTS idle (n serial)')
    return {
      submit: () => client.query('INSERT INTO idle DEFAULT VALUES').then(() => handled()),
      close: () => client.end(),
    }
  },
}

async function print() {
  await sleep(Number(settleMs))
  console.log(process.memoryUsage.rss())
}

const app = await OPEN[name](await import(module))
await print()
const first = new Promise((resolve) => {
  handled = resolve
})
await app.submit()
await first
await print()

let left = Number(jobs)
let unsubmitted = left
let most = 0
const sampling = setInterval(() => {
  most = Math.max(most, process.memoryUsage.rss())
}, SAMPLE_MS)
const all = new Promise((resolve) => {
  handled = () => {
    if (--left === 0) resolve()
  }
})
await Promise.all(
  Array.from({ length: CALLERS }, async () => {
    while (unsubmitted-- > 0) await app.submit()
  }),
)
await all
clearInterval(sampling)
console.log(Math.max(most, process.memoryUsage.rss()))
await app.close()
process.exit()
