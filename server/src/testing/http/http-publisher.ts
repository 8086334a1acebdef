import { setTimeout as pause } from 'node:timers/promises'
import type { LeaseShape } from '@ichido/sdk/protocol'

const RETRY_MS = 20
const QUEUE = 'published'
/** Long, because this worker sends no heartbeats. */
const LEASE_SECONDS = 3_600

type Post = (path: string, body: unknown) => Promise<unknown>

/** A worker that holds all jobs, and retries each call until it is answered. */
export class HttpPublisher {
  readonly jobIds: readonly string[]
  readonly #post: Post
  readonly #leases: readonly LeaseShape[]
  #seq = 0

  private constructor(post: Post, leases: readonly LeaseShape[]) {
    this.#post = post
    this.#leases = leases
    this.jobIds = leases.map(({ job_id }) => job_id)
  }

  static async begin(url: string, count: number): Promise<HttpPublisher> {
    const jobs = Array.from({ length: count }, () => {
      return { kind: 'scan', queue: QUEUE, payload: null, lease_ttl_seconds: LEASE_SECONDS }
    })
    await post(url, '/v1/jobs/batch', { jobs })
    const { enroll_token } = await post<{ enroll_token: string }>(url, '/v1/workers/enroll-tokens', {})
    const worker = { enroll_token, name: 'publisher' }
    const { worker_token } = await post<{ worker_token: string }>(url, '/v1/workers/register', worker)
    const leases: LeaseShape[] = []
    while (leases.length < count) {
      const request = { queues: [QUEUE], max: count, start: true, start_id: 'publisher' }
      leases.push(...(await post<{ leases: LeaseShape[] }>(url, '/v1/leases', request, worker_token)).leases)
    }
    return new HttpPublisher((path, body) => post(url, path, body, worker_token), leases)
  }

  /** Publishes `count` more events of each job, with one call per event. */
  async publish(count: number): Promise<void> {
    const first = this.#seq
    this.#seq += count
    const events = Array.from({ length: count }, (_, i) => ({ stage: 'progress', seq: first + i, data: first + i }))
    await this.#all('events', { events })
  }

  finish(): Promise<void> {
    return this.#all('result', { result: null })
  }

  async #all(verb: string, body: unknown): Promise<void> {
    await Promise.all(this.#leases.map(({ lease_id }) => this.#post(`/v1/leases/${lease_id}/${verb}`, body)))
  }
}

async function post<T>(url: string, path: string, body: unknown, token?: string): Promise<T> {
  const headers = {
    'content-type': 'application/json',
    ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
  }
  for (;;) {
    const answer = await fetch(url + path, { method: 'POST', headers, body: JSON.stringify(body) })
      .then(async (response) => ({ status: response.status, text: await response.text() }))
      .catch(() => null)
    if (answer !== null && answer.status < 300) return JSON.parse(answer.text) as T
    if (answer !== null && answer.status !== 503) throw new Error(`${path}: ${answer.status} ${answer.text}`)
    await pause(RETRY_MS)
  }
}
