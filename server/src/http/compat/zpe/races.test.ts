import type { JobDetail } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { freshDatabase } from '../../../../../scripts/testing/services.ts'
import { size } from '../../../../../scripts/testing/size.ts'
import { type Answer, type TestApp, testApp } from '../../../testing/http/app.ts'
import { ageJob, FAILURE, RESULT, submitZpe, ZpeWorker } from '../../../testing/http/zpe.ts'
import { Reaper } from '../../../testing/nodes/reaper.ts'
import { openNode, sql } from '../../../testing/store/store.ts'

const ROUNDS = size(10, 200)
const SECOND = { ...RESULT, result: { zpe_ev: 0.1 } }

/** Two nodes on one PostgreSQL; then one on SQLite, where both are the same. */
const PLACES = {
  async 'two nodes on postgres'(): Promise<[TestApp, TestApp]> {
    const { url, leave } = await freshDatabase()
    const [a, b] = [await openNode(url), await openNode(url)]
    return [
      await testApp('postgres', { opened: { store: a, remove: leave } }),
      await testApp('postgres', { opened: { store: b, remove: async () => {} } }),
    ]
  },
  async sqlite(): Promise<[TestApp, TestApp]> {
    const http = await testApp('sqlite')
    return [http, http]
  },
}

describe.each(Object.entries(PLACES))('at the same time, on %s', (_, open) => {
  let nodes: [TestApp, TestApp]
  let workers: [ZpeWorker, ZpeWorker]
  beforeAll(async () => {
    nodes = await open()
    const worker = await ZpeWorker.register(nodes[0])
    workers = [worker, worker.at(nodes[1])]
  })
  afterAll(async () => {
    for (const node of new Set(nodes.toReversed())) await node.close()
  })

  async function given(): Promise<{ jobId: string; lease_id: string }> {
    const jobId = await submitZpe(nodes[1])
    return { jobId, lease_id: (await workers[0].leased()).lease_id }
  }

  const statuses = (answers: Answer[]) => answers.map((answer) => answer.status)
  const detail = async (jobId: string) => (await nodes[0].call('GET', `/v1/jobs/${jobId}`)).body as JobDetail
  const kept = async (jobId: string) => (await nodes[0].call('GET', `/calc/zpe/jobs/${jobId}/result`)).body

  test('two different results: one is kept, the other refused', async () => {
    for (let round = 0; round < ROUNDS; round++) {
      const { jobId, lease_id } = await given()
      const reports = [
        { lease_id, ...RESULT },
        { lease_id, ...SECOND },
      ] as const
      const answers = await Promise.all([workers[0].result(jobId, reports[0]), workers[1].result(jobId, reports[1])])
      expect(statuses(answers).sort()).toEqual([200, 409])
      const winner = reports[answers[0]?.status === 200 ? 0 : 1]
      expect(await kept(jobId)).toEqual({ result: winner.result })
      expect((await detail(jobId)).runs).toHaveLength(1)
    }
  })

  test('the same result twice: both are accepted, one as a repeat', async () => {
    for (let round = 0; round < ROUNDS; round++) {
      const { jobId } = await given()
      const answers = await Promise.all(workers.map((worker) => worker.result(jobId)))
      expect(statuses(answers)).toEqual([200, 200])
      const repeats = answers.map((answer) => (answer.body as { idempotent: boolean }).idempotent)
      expect(repeats.sort()).toEqual([false, true])
    }
  })

  test('a result and a failure: the job is finished or retried, never both', async () => {
    for (let round = 0; round < ROUNDS; round++) {
      const { jobId, lease_id } = await given()
      const [result, failed] = await Promise.all([
        workers[0].result(jobId, { lease_id, ...RESULT }),
        workers[1].failed(jobId, { lease_id, ...FAILURE }),
      ])
      expect(statuses([result, failed]).sort()).toEqual([200, 409])
      const { state, runs } = await detail(jobId)
      expect({ state, runs: runs.length }).toEqual(
        result.status === 200 ? { state: 'SUCCEEDED', runs: 1 } : { state: 'PENDING', runs: 2 },
      )
      // Otherwise its next run would be due during another test.
      await nodes[0].call('POST', `/v1/jobs/${jobId}/cancel`)
    }
  })

  test('the last failure twice: one dead letter', async () => {
    for (let round = 0; round < ROUNDS; round++) {
      const { jobId, lease_id } = await given()
      const { store } = nodes[0].services.deps
      await sql(store, 'UPDATE ichido.runs SET retry_count = 3 WHERE job_id = $1', jobId)
      const answers = await Promise.all(workers.map((worker) => worker.failed(jobId, { lease_id, ...FAILURE })))
      for (const { body } of answers) expect(body).toEqual({ ok: true, requeued: false, retry_count: 4 })
      expect(await sql(store, 'SELECT 1 AS one FROM ichido.dead_letters WHERE job_id = $1', jobId)).toHaveLength(1)
    }
  })

  test('many workers on two nodes: each job goes to one of them', async () => {
    const jobs = await Promise.all(Array.from({ length: ROUNDS }, (_, i) => submitZpe(i % 2 ? nodes[0] : nodes[1])))
    const answers = await Promise.all(Array.from({ length: ROUNDS * 2 }, (_, i) => workers[i % 2 ? 0 : 1].lease()))
    const leased = answers.filter((answer) => answer.status === 200).map((answer) => answer.body as { job_id: string })
    // A worker that polled while others held the rest found nothing, and polls again.
    for (let next = await workers[0].lease(); next.status === 200; next = await workers[0].lease()) {
      leased.push(next.body as { job_id: string })
    }
    expect(leased.map((lease) => lease.job_id).sort()).toEqual(jobs.sort())
  })

  test('a late result and the next lease: the job has one holder, and one result', async () => {
    const { store } = nodes[0].services.deps
    const reaper = await Reaper.of(store)
    const other = (await ZpeWorker.register(nodes[0])).at(nodes[1])
    for (let round = 0; round < ROUNDS; round++) {
      const { jobId, lease_id } = await given()
      await ageJob(store, jobId, 3_601_000)
      await reaper.reapAll()
      await ageJob(store, jobId, 400_000)
      const [late, lease] = await Promise.all([workers[0].result(jobId, { lease_id, ...RESULT }), other.lease()])
      expect([
        [200, 204],
        [409, 200],
      ]).toContainEqual([late.status, lease.status])
      if (lease.status === 200) expect(await other.result(jobId, SECOND)).toMatchObject({ status: 200 })
      expect(await kept(jobId)).toEqual({ result: (lease.status === 200 ? SECOND : RESULT).result })
      expect((await detail(jobId)).runs.map(({ state }) => state)).toEqual(['TIMED_OUT', 'SUCCEEDED'])
    }
  })

  test('a result and a revocation: the result counts, or the job is reassigned', async () => {
    for (let round = 0; round < Math.ceil(ROUNDS / 4); round++) {
      const worker = await ZpeWorker.register(nodes[0])
      const jobId = await submitZpe(nodes[0])
      await worker.leased()
      const [result] = await Promise.all([
        worker.at(nodes[1]).result(jobId),
        nodes[0].call('DELETE', `/calc/zpe/compute/servers/${worker.id}`),
      ])
      const { state } = await detail(jobId)
      expect([
        [200, 'SUCCEEDED'],
        [403, 'RUNNING'],
        [409, 'RUNNING'],
      ]).toContainEqual([result.status, state])
      expect((await worker.result(jobId)).status).toBe(403)
    }
  })
})
