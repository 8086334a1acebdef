import { type Contestant, keyOf, payload, type Settings } from '../contestant.ts'
import { HttpConnection } from './http-connection.ts'

/** Drives a server of Ichido's that runs elsewhere; as many connections as calls are under way. */
export async function openOverHttp({ url }: Settings): Promise<Contestant> {
  const idle: HttpConnection[] = []

  async function post(path: string, body: string, status: number): Promise<string> {
    const connection = idle.pop() ?? (await HttpConnection.open(url))
    const answer = await connection.post(path, body, status)
    idle.push(connection)
    return answer
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
    async close() {
      for (const connection of idle) connection.close()
    },
  }
}

function request(n: number, keyed: boolean): string {
  const key = keyed ? `,"idempotency_key":"${keyOf(n)}"` : ''
  return `{"kind":"welcome","payload":${JSON.stringify(payload(n))}${key}}`
}
