import type { ErrorBody, LeaseShape } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import { type TestApp, testApp } from '../../testing/http/app.ts'
import { registeredWorker, type WorkerCalls } from '../../testing/http/worker-calls.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { sql, unique } from '../../testing/store/store.ts'

/** A report that is late, of another worker or about another state is refused, and changes nothing. */
describe.each(ENGINES)('%s', (engine) => {
  let http: TestApp
  let first: WorkerCalls
  let second: WorkerCalls
  beforeAll(async () => {
    http = await testApp(engine)
    first = await registeredWorker(http)
    second = await registeredWorker(http)
  })
  afterAll(() => http.close())

  async function leased(worker: WorkerCalls, start = true): Promise<LeaseShape> {
    const queue = unique('queue')
    await http.services.submission.submit(LOCAL_ADMIN, { kind: 'work', queue }, { key: null })
    return taken(worker, queue, start)
  }

  async function taken(worker: WorkerCalls, queue: string, start = true): Promise<LeaseShape> {
    const [lease] = await worker.lease(queue, { start })
    if (lease === undefined) throw new Error('There was a run to lease')
    return lease
  }

  /** Everything that a report could change. */
  const everything = async (jobId: string) => {
    const of = (table: string) =>
      sql(http.services.deps.store, `SELECT * FROM ichido.${table} WHERE job_id = $1 ORDER BY 1, 2`, jobId)
    return { runs: await of('runs'), results: await of('results'), events: await of('events') }
  }

  const REPORTS = {
    start: { start_id: 'late' },
    heartbeat: {},
    logs: { chunks: [{ n: 0, stream: 'stdout', text: 'late' }] },
    events: { events: [{ stage: 'progress', seq: 0 }] },
    result: { result: 'late' },
    failed: { error_code: 'LATE', error_message: 'late' },
    release: {},
  }

  async function expectRefused(worker: WorkerCalls, lease: LeaseShape, codes: string[], only?: string): Promise<void> {
    const before = await everything(lease.job_id)
    for (const [verb, body] of Object.entries(REPORTS)) {
      if (only !== undefined && verb !== only) continue
      const answer = await worker.post(`/v1/leases/${lease.lease_id}/${verb}`, body)
      expect(answer.status, verb).toBe(409)
      expect(codes, verb).toContain((answer.body as ErrorBody).error.code)
    }
    expect(await everything(lease.job_id)).toEqual(before)
  }

  test('after reassignment to another worker', async () => {
    const lease = await leased(first, false)
    await sql(
      http.services.deps.store,
      `UPDATE ichido.runs SET state = 'ORPHANED', version = version + 1 WHERE id = $1`,
      lease.run_id,
    )
    const other = await taken(second, lease.queue)
    expect(other).toMatchObject({ run_id: lease.run_id, attempt: 2 })
    await expectRefused(first, lease, ['LEASE_LOST'])
    await expectRefused(first, other, ['LEASE_LOST'])
    expect((await second.post(`/v1/leases/${other.lease_id}/result`, { result: 1 })).status).toBe(200)
  })

  test('from another worker, which knows the lease', async () => {
    await expectRefused(second, await leased(first), ['LEASE_LOST'])
    await expectRefused(second, await leased(first, false), ['LEASE_LOST'])
  })

  test('under an old lease of the same worker', async () => {
    const lease = await leased(first)
    expect((await first.post(`/v1/leases/${lease.lease_id}/release`)).status).toBe(200)
    const again = await taken(first, lease.queue)
    expect(again.run_id).not.toBe(lease.run_id)
    await expectRefused(first, lease, ['ALREADY_ENDED', 'OUTCOME_ALREADY_RECORDED', 'LEASE_LOST'], 'result')
    await expectRefused(first, { ...lease, lease_id: `${again.job_id}.AAAAAAAAAAAAAAAAAAAAAA` }, ['LEASE_LOST'])
  })

  test('with an old version or epoch', async () => {
    const lease = await leased(first)
    const before = await everything(lease.job_id)
    const result = (fields: object) => first.post(`/v1/leases/${lease.lease_id}/result`, { result: 1, ...fields })
    const codeOf = async (fields: object) => ((await result(fields)).body as ErrorBody).error.code
    expect(await codeOf({ version: lease.version - 1 })).toBe('VERSION_MISMATCH')
    expect(await codeOf({ leader_epoch: 99 })).toBe('EPOCH_MISMATCH')
    expect(await everything(lease.job_id)).toEqual(before)
    const right = { version: lease.version, leader_epoch: lease.leader_epoch }
    expect((await result(right)).body).toMatchObject({ state: 'SUCCEEDED', repeated: false })
  })

  test('after the run has ended, whoever ended it', async () => {
    const finished = await leased(first)
    await first.post(`/v1/leases/${finished.lease_id}/result`, { result: 1 })
    await expectRefused(first, finished, ['OUTCOME_ALREADY_RECORDED', 'ALREADY_ENDED', 'LEASE_LOST'])
    const canceled = await leased(first, false)
    await http.services.jobs.cancel(LOCAL_ADMIN, canceled.job_id)
    await expectRefused(first, canceled, ['ALREADY_ENDED', 'LEASE_LOST'])
  })

  test('two concurrent results: one is recorded, and the other is refused', async () => {
    for (let round = 0; round < 10; round++) {
      const lease = await leased(first)
      const answers = await Promise.all(
        [1, 2].map((result) => first.post(`/v1/leases/${lease.lease_id}/result`, { result })),
      )
      expect(answers.map(({ status }) => status).sort()).toEqual([200, 409])
      const recorded = answers.findIndex(({ status }) => status === 200) + 1
      expect(await http.services.jobs.result(LOCAL_ADMIN, lease.job_id, 0)).toMatchObject({ result: recorded })
    }
  })

  test('a result and a cancel: the run ends once, by the first of them', async () => {
    for (let round = 0; round < 10; round++) {
      const lease = await leased(first)
      const [report, canceled] = await Promise.all([
        first.post(`/v1/leases/${lease.lease_id}/result`, { result: 1 }),
        http.call('POST', `/v1/jobs/${lease.job_id}/cancel`),
      ])
      const { state } = await http.services.jobs.get(LOCAL_ADMIN, lease.job_id)
      expect(report.body).toMatchObject({ state })
      expect(canceled.status).toBe(state === 'CANCELED' ? 200 : 409)
    }
  })
})
