import type { JobDetail } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type TestApp, testApp } from '../../testing/http/app.ts'
import { registeredWorker, type WorkerCalls } from '../../testing/http/worker-calls.ts'
import { FAILURE, submitZpe, ZpeWorker } from '../../testing/http/zpe.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { unique } from '../../testing/store/store.ts'

const BROKEN = 'a\u0000b\ud800c'
const MENDED = 'a\ufffdb\ufffdc'
/** Latin-1 text of a program in an old locale. */
const bytes = (json: string) => Buffer.from(json, 'latin1')

describe.each(ENGINES)('text that cannot be stored, on %s', (engine) => {
  let http: TestApp
  let worker: WorkerCalls
  beforeAll(async () => {
    http = await testApp(engine)
    worker = await registeredWorker(http)
  })
  afterAll(() => http.close())

  const detail = async (jobId: string) => (await http.call('GET', `/v1/jobs/${jobId}`)).body as JobDetail

  async function leased() {
    const queue = unique('queue')
    await http.call('POST', '/v1/jobs', { body: { kind: 'work', queue, max_attempts: 1 } })
    const [lease] = await worker.lease(queue, { start: true })
    if (lease === undefined) throw new Error('There was a run to lease')
    return lease
  }

  test('of a failure is replaced, and a repeat is known', async () => {
    const { job_id, lease_id } = await leased()
    const body = { error_code: `E${BROKEN}`, error_message: BROKEN, traceback: BROKEN }
    const failed = () => worker.post(`/v1/leases/${lease_id}/failed`, body)
    expect(await failed()).toMatchObject({ status: 200, body: { dead: true, repeated: false } })
    expect(await failed()).toMatchObject({ status: 200, body: { repeated: true } })
    const [run] = (await detail(job_id)).runs
    expect(run?.error).toEqual({ code: `E${MENDED}`, message: MENDED, traceback: MENDED })
    const dead = await http.call('GET', `/v1/dead-letters/${job_id}`)
    expect(dead).toMatchObject({ status: 200, body: { error_message: MENDED } })
  })

  test('of a failure of an S1 worker is replaced, also bytes that are not UTF-8', async () => {
    const zpe = await ZpeWorker.register(http)
    const jobId = await submitZpe(http)
    await zpe.leased()
    const body = bytes(`{"error_code":"${FAILURE.error_code}","error_message":"f\xfcr \\u0000 \\udc00"}`)
    expect(await zpe.call(`${jobId}/failed`, { body })).toMatchObject({ status: 200, body: { requeued: true } })
    expect((await http.call('GET', `/calc/zpe/jobs/${jobId}`)).body).toMatchObject({
      detail: 'QE_RUNTIME_ERROR: f\ufffdr \ufffd \ufffd',
    })
  })

  test('of a log is replaced', async () => {
    const { job_id, lease_id } = await leased()
    const body = bytes('{"chunks":[{"n":0,"stream":"stdout","text":"\xe9 \\u0000\\ud800\\n"}]}')
    const answer = await http.call('POST', `/v1/leases/${lease_id}/logs`, { body, token: worker.token })
    expect(answer).toMatchObject({ status: 200, body: { accepted: 1 } })
    const { body: page } = await http.call('GET', `/v1/jobs/${job_id}/logs`)
    expect(page).toMatchObject({ data: [{ text: '\ufffd \ufffd\ufffd\n' }] })
  })

  test('of several reports is replaced in failures, and refused in results', async () => {
    const [bad, good, failed] = [await leased(), await leased(), await leased()]
    const { body } = await worker.post('/v1/leases/report', {
      reports: [
        { lease_id: bad.lease_id, result: { note: BROKEN } },
        { lease_id: good.lease_id, result: 1 },
        { lease_id: failed.lease_id, error_code: 'E', error_message: BROKEN },
      ],
    })
    expect(body).toMatchObject({
      data: [
        { status: 400, error: { details: { field: 'result.note' } } },
        { status: 200, state: 'SUCCEEDED' },
        { status: 200, state: 'FAILED' },
      ],
    })
    expect((await detail(bad.job_id)).state).toBe('RUNNING')
    expect((await detail(failed.job_id)).error).toMatchObject({ message: MENDED })
  })

  test('of a result is refused', async () => {
    const { lease_id } = await leased()
    const answer = await worker.post(`/v1/leases/${lease_id}/result`, { result: BROKEN })
    expect(answer).toMatchObject({ status: 400, body: { error: { details: { field: 'result' } } } })
  })
})
