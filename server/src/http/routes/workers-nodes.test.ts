import type { ErrorBody, LeaseShape } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type FreshDatabase, freshDatabase } from '../../../../scripts/testing/services.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import { type Answer, type TestApp, testApp } from '../../testing/http/app.ts'
import { registeredWorker, type WorkerCalls } from '../../testing/http/worker-calls.ts'
import { enrolled } from '../../testing/services/workers.ts'
import { openNode, unique } from '../../testing/store/store.ts'

const code = (answer: Answer) => (answer.body as ErrorBody).error.code

/** The second node trusts the worker's token without asking the store when the first node revokes it. */
describe('a worker that is revoked at another node', () => {
  let database: FreshDatabase
  let [here, there]: TestApp[] = []
  beforeAll(async () => {
    database = await freshDatabase()
    const node = async () =>
      testApp('postgres', { opened: { store: await openNode(database.url), remove: async () => {} } })
    ;[here, there] = [await node(), await node()]
  })
  afterAll(async () => {
    await here?.close()
    await there?.close()
    await database.leave()
  })

  function nodes(): { here: TestApp; there: TestApp } {
    if (here === undefined || there === undefined) throw new Error('The nodes are open while tests run')
    return { here, there }
  }

  async function leased(start: boolean): Promise<{ worker: WorkerCalls; lease: LeaseShape; queue: string }> {
    const { here, there } = nodes()
    const queue = unique('queue')
    const worker = await registeredWorker(there)
    await here.call('POST', '/v1/jobs', { body: { kind: 'work', queue } })
    const [lease] = await worker.lease(queue, { start })
    if (lease === undefined) throw new Error('There is a job to lease')
    return { worker, lease, queue }
  }

  const revoke = async ({ workerId }: WorkerCalls) => {
    const { here } = nodes()
    expect(await here.services.workers.revoke(LOCAL_ADMIN, workerId)).toMatchObject({ fenced_leases: 1 })
  }

  test('changes nothing there', async () => {
    const { worker, lease } = await leased(true)
    await revoke(worker)
    const report = { result: { ok: true } }
    const path = `/v1/leases/${lease.lease_id}`
    for (const [call, body] of [
      ['heartbeat', {}],
      ['result', report],
      ['failed', { error_code: 'BROKEN', error_message: 'it broke' }],
      ['release', {}],
      ['events', { events: [{ stage: 'progress', seq: 1, data: {} }] }],
    ] as const) {
      const answer = await worker.post(`${path}/${call}`, body)
      expect([call, code(answer)]).toEqual([call, expect.stringMatching(/^(LEASE_LOST|FORBIDDEN)$/)])
    }
    const job = await nodes().here.call('GET', `/v1/jobs/${lease.job_id}`)
    expect(job).toMatchObject({ body: { state: 'RUNNING', runs: [{ assigned_worker_id: worker.workerId }] } })
  })

  test('leases nothing there, and its runs go to others', async () => {
    const { worker, lease, queue } = await leased(false)
    await revoke(worker)
    const polled = await worker.post('/v1/leases', { queues: [queue], wait_seconds: 0 })
    expect([204, 403]).toContain(polled.status)
    const other = await registeredWorker(nodes().there)
    expect(await other.lease(queue)).toMatchObject([{ job_id: lease.job_id, attempt: 2 }])
  })

  test('gets nothing from a poll that it began before', async () => {
    const { here, there } = nodes()
    const queue = unique('queue')
    const worker = await registeredWorker(there)
    const waiting = worker.post('/v1/leases', { queues: [queue], wait_seconds: 1 })
    await here.services.workers.revoke(LOCAL_ADMIN, worker.workerId)
    const { body } = await here.call('POST', '/v1/jobs', { body: { kind: 'work', queue } })
    there.services.deps.bus.wake([`queue:${queue}`])
    expect([204, 403]).toContain((await waiting).status)
    const { job_id } = body as { job_id: string }
    expect(await here.call('GET', `/v1/jobs/${job_id}`)).toMatchObject({ body: { state: 'PENDING', attempt: 0 } })
  })

  test('gets no new token there', async () => {
    const { worker } = await leased(true)
    await revoke(worker)
    expect(await worker.post('/v1/workers/renew', undefined)).toMatchObject({ status: 403 })
    const anew = { enroll_token: await enrolled(nodes().there.services), worker_id: worker.workerId }
    const registered = await nodes().there.call('POST', '/v1/workers/register', {
      body: { ...anew, worker_token: worker.token },
    })
    expect(registered).toMatchObject({ status: 403, body: { error: { message: 'This worker was revoked' } } })
  })

  test('is refused as soon as its token is checked again', async () => {
    const { worker, lease } = await leased(true)
    await revoke(worker)
    await expect
      .poll(async () => (await worker.post(`/v1/leases/${lease.lease_id}/heartbeat`)).status, { timeout: 10_000 })
      .toBe(403)
  })
})
