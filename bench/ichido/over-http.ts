import { type HandlerContext, HandlerLoop, httpWorkerTransport } from '@ichido/sdk/worker'
import { z } from 'zod'
import { realWorld } from '../../server/src/node/world.ts'
import { type Contestant, keyOf, numberIn, payload, type Settings } from '../contest/contestant.ts'
import { HttpConnection } from './http-connection.ts'
import { CONCURRENCY, welcome } from './in-process.ts'

/** Uses separate servers of Ichido in turn, with as many connections as concurrent calls. */
export async function openOverHttp({ url }: Settings): Promise<Contestant> {
  const urls = url.split(',')
  const idle: HttpConnection[] = []
  let opened = 0

  async function post(path: string, body: string, status: number): Promise<string> {
    const connection = idle.shift() ?? (await HttpConnection.open(urls[opened++ % urls.length] ?? url))
    const answer = await connection.post(path, body, status)
    idle.push(connection)
    return answer
  }

  /** Registers like a worker on another machine. */
  async function register(): Promise<string> {
    const { enroll_token } = enrolled.parse(JSON.parse(await post('/v1/workers/enroll-tokens', '{}', 201)))
    const body = JSON.stringify({ enroll_token, name: 'bench' })
    return registered.parse(JSON.parse(await post('/v1/workers/register', body, 201))).worker_token
  }

  return {
    async submit(n) {
      await post('/v1/jobs', request(n, true), 201)
    },
    async submitMany(first, count, keyed) {
      const jobs = Array.from({ length: count }, (_, i) => request(first + i, keyed))
      const answer = await post('/v1/jobs/batch', `{"jobs":[${jobs.join(',')}]}`, 200)
      const created = answer.split('{"status":201,').length - 1
      if (created !== count) throw new Error(`${created} of ${count} jobs were accepted: ${answer.slice(0, 500)}`)
    },
    async work(pace, handle) {
      const onTrouble = (error: unknown) => process.stderr.write(`ichido: ${String(error)}\n`)
      const handler = (run: HandlerContext<unknown>) => handle(numberIn(run.payload), run.progress)
      const concurrency = Math.ceil(CONCURRENCY[pace] / urls.length)
      const loops: HandlerLoop<unknown, unknown>[] = []
      for (const url of urls) {
        const token = await register()
        const transport = httpWorkerTransport({ url, token: () => token, world: realWorld })
        loops.push(new HandlerLoop(welcome, handler, { concurrency }, { transport, world: realWorld, onTrouble }))
      }
      return async () => void (await Promise.all(loops.map((loop) => loop.close(0))))
    },
    async close() {
      for (const connection of idle) connection.close()
    },
  }
}

const enrolled = z.object({ enroll_token: z.string() })
const registered = z.object({ worker_token: z.string() })

function request(n: number, keyed: boolean): string {
  const key = keyed ? `,"idempotency_key":"${keyOf(n)}"` : ''
  return `{"kind":"welcome","payload":${JSON.stringify(payload(n))}${key}}`
}
