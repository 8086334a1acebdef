import type { LeaseShape } from '@ichido/sdk/protocol'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import { unique } from '../store/store.ts'
import type { Answer, TestApp } from './app.ts'

/** A registered worker, and its calls over HTTP. */
export interface WorkerCalls {
  workerId: string
  token: string
  post(path: string, body?: unknown): Promise<Answer>
  /** Polls without waiting. The list is empty if there is no work. */
  lease(queue: string, changes?: object): Promise<LeaseShape[]>
}

export async function registeredWorker(
  { services, call }: Pick<TestApp, 'services' | 'call'>,
  queues?: string[],
): Promise<WorkerCalls> {
  const { enroll_token } = await services.workers.enroll(LOCAL_ADMIN, queues === undefined ? {} : { queues })
  const registered = await services.workers.register({ enrollToken: enroll_token, name: unique('worker') })
  if (registered === null) throw new Error('A fresh enroll token registers a worker')
  const { worker_id: workerId, worker_token: token } = registered
  const post = (path: string, body: unknown = {}) => call('POST', path, { body, token })
  return {
    workerId,
    token,
    post,
    async lease(queue, changes = {}) {
      const answer = await post('/v1/leases', { queues: [queue], wait_seconds: 0, ...changes })
      if (answer.status === 204) return []
      if (answer.status !== 200) throw new Error(answer.text)
      return (answer.body as { leases: LeaseShape[] }).leases
    },
  }
}
