import { LOCAL_ADMIN } from '../../services/access/access.ts'
import type { Services } from '../../services/index.ts'
import { failed, finished } from '../store/scene.ts'

const WORKER = 'worker'

/** Runs real jobs, so that the alert rules find something. */
export class AlertHistory {
  readonly #services: Services
  #keys = 0

  constructor(services: Services) {
    this.#services = services
  }

  /** Jobs that end as dead letters. */
  async deadLetters(count: number): Promise<void> {
    for (let i = 0; i < count; i++) {
      await this.#submit({ queue: 'dead', max_attempts: 1 })
      await this.#run('dead', 'fail')
    }
  }

  /** Jobs that fail once and are retried; `failed` of them fail again. */
  async retries(count: number, failed: number): Promise<void> {
    for (let i = 0; i < count; i++) {
      await this.#submit({ queue: 'retried', max_attempts: 2, backoff: { base_seconds: 0 } })
      await this.#run('retried', 'fail')
      await this.#run('retried', i < failed ? 'fail' : 'finish')
    }
  }

  /** Submits with different keys, then `repeated` duplicates of the first, then `mistaken` other requests with its key. */
  async submissions(count: number, repeated: number, mistaken = 0): Promise<void> {
    const submit = (n: number, payload: unknown) =>
      this.#services.submission.submit(LOCAL_ADMIN, { kind: 'work', queue: 'keyed', payload }, { key: `key-${n}` })
    for (let i = 0; i < count; i++) await submit(this.#keys++, 1)
    for (let i = 0; i < repeated; i++) await submit(0, 1)
    for (let i = 0; i < mistaken; i++) await submit(0, 2)
  }

  /** Jobs that start only after a wait. */
  async delays(count: number, wait: () => Promise<void>): Promise<void> {
    for (let i = 0; i < count; i++) await this.#submit({ queue: 'late' })
    await wait()
    for (let i = 0; i < count; i++) await this.#run('late', 'finish')
  }

  async #submit(input: object): Promise<void> {
    await this.#services.submission.submit(LOCAL_ADMIN, { kind: 'work', ...input }, { key: null })
  }

  async #run(queue: string, how: 'finish' | 'fail'): Promise<void> {
    const { runs } = this.#services
    const [lease] = await runs.lease(WORKER, { queues: [queue], kinds: ['work'], max: 1, waitMs: 0, startId: 'p' })
    if (lease === undefined) throw new Error(`Nothing to lease from ${queue}`)
    const outcome = await runs.finish(WORKER, lease.lease_id, how === 'finish' ? finished() : failed())
    if (outcome.kind !== 'recorded') throw new Error(`The report was ${outcome.kind}`)
  }
}
