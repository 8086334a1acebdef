import type { AuditShape, Page } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { LOCAL_ADMIN } from '../../../services/access/access.ts'
import { type TestApp, testApp } from '../../../testing/http/app.ts'
import { finish, lease, WORKER } from '../../../testing/http/cloud-worker.ts'
import { ENGINES } from '../../../testing/services/services.ts'
import { leftovers } from '../../../testing/store/retention.ts'
import { sql } from '../../../testing/store/store.ts'
import type { CloudAnswer } from './shapes.ts'

describe.each(ENGINES)('deleting cloud jobs on %s', (engine) => {
  let http: TestApp
  beforeAll(async () => {
    http = await testApp(engine)
  })
  afterAll(() => http.close())

  async function submit(provider: string, body: object = {}): Promise<CloudAnswer> {
    const path = `/api/cloud/jobs/submit?provider=${provider}`
    return (await http.call('POST', path, { body: { config_name_to_load: 'lora', ...body } })).body as CloudAnswer
  }
  const remove = (jobId: string | null, token?: string) =>
    http.call('DELETE', `/api/cloud/jobs/${jobId}`, token === undefined ? {} : { token })
  const show = (jobId: string | null) => http.call('GET', `/api/cloud/jobs/${jobId}`)

  test('an ended job is deleted with its data, and the audit has an entry', async () => {
    const { job_id } = await submit('ended')
    const { lease_id } = await lease(http, 'cloud.ended')
    await http.services.logs.append(WORKER, lease_id, [{ n: 0, stream: 'stdout', text: 'said' }])
    await finish(http, lease_id)
    expect(await remove(job_id)).toMatchObject({ status: 200, body: { success: true, job_id, error: null } })
    expect(await show(job_id)).toMatchObject({ status: 404 })
    expect(await remove(job_id)).toMatchObject({ status: 404, body: { success: false } })
    const { store } = http.services.deps
    expect(await leftovers(store)).toEqual({})
    expect(await sql(store, 'SELECT run_id FROM ichido.run_logs')).toEqual([])
    const { body } = await http.call('GET', `/v1/audit?subject=${job_id}`)
    expect((body as Page<AuditShape>).data).toMatchObject([
      { action: 'job.delete', actor: 'local', subject: job_id, before: { state: 'SUCCEEDED' }, after: null },
    ])
  })

  test('a job that has not ended is not deleted, and the refusal says what to do', async () => {
    const { job_id } = await submit('active')
    const refused = (status: string) => ({
      status: 200,
      body: {
        success: false,
        job_id,
        error: `Job ${job_id} is ${status}; only a job that has ended can be deleted, so cancel it first`,
      },
    })
    expect(await remove(job_id)).toMatchObject(refused('queued'))
    const { lease_id } = await lease(http, 'cloud.active')
    expect(await remove(job_id)).toMatchObject(refused('running'))
    await http.call('POST', `/api/cloud/jobs/${job_id}/cancel`)
    expect(await remove(job_id)).toMatchObject(refused('running'))
    await finish(http, lease_id)
    expect(await show(job_id)).toMatchObject({ status: 200, body: { job: { status: 'cancelled' } } })
    expect(await remove(job_id)).toMatchObject({ body: { success: true } })
  })

  test('the key of a deleted job still names it', async () => {
    const key = { idempotency_key: 'deleted' }
    const { job_id } = await submit('key', key)
    await http.call('POST', `/api/cloud/jobs/${job_id}/cancel`)
    expect(await remove(job_id)).toMatchObject({ body: { success: true } })
    expect(await submit('key', key)).toMatchObject({ success: true, job_id, status: null, idempotent_hit: true })
    expect((await sql(http.services.deps.store, `SELECT id FROM ichido.jobs WHERE queue = 'cloud.key'`)).length).toBe(0)
  })

  test('a dead letter can be deleted', async () => {
    const { job_id } = await submit('dead')
    const { lease_id } = await lease(http, 'cloud.dead')
    const error = { code: 'OOM', message: 'out of memory' }
    await http.services.runs.finish(WORKER, lease_id, { verb: 'fail', error, retryable: false })
    expect(await remove(job_id)).toMatchObject({ body: { success: true } })
    expect(await http.call('GET', `/v1/dead-letters/${job_id}`)).toMatchObject({ status: 404 })
  })

  test('a replacement can be deleted only after the job that it replaced', async () => {
    const { job_id: first } = await submit('replaced')
    await http.call('POST', `/api/cloud/jobs/${first}/cancel`)
    const { job } = await http.services.deadLetters.replace(LOCAL_ADMIN, first ?? '', { changed: true }, null)
    await http.call('POST', `/api/cloud/jobs/${job.job_id}/cancel`)
    expect(await remove(job.job_id)).toMatchObject({
      status: 200,
      body: { success: false, error: `Job ${job.job_id} took the place of job ${first}; delete that one first` },
    })
    for (const id of [first, job.job_id]) expect(await remove(id)).toMatchObject({ body: { success: true } })
  })

  test('a job with many events and logs is deleted in several transactions', async () => {
    const { job_id } = await submit('many')
    await http.call('POST', `/api/cloud/jobs/${job_id}/cancel`)
    const { store } = http.services.deps
    await sql(
      store,
      `INSERT INTO ichido.events WITH RECURSIVE s(n) AS (SELECT 3 UNION ALL SELECT n + 1 FROM s WHERE n < 6001)
        SELECT j.id, n, 'run', n, 'work', '{}', 0 FROM s, ichido.jobs j WHERE j.queue = 'cloud.many'`,
    )
    expect(await remove(job_id)).toMatchObject({ body: { success: true } })
    expect(await leftovers(store)).toEqual({})
  })

  test('only the owner and operators may delete a job', async () => {
    const [ann, bob, eve, op] = [
      await http.token('ann', 'submitter'),
      await http.token('bob', 'submitter'),
      await http.token('eve', 'viewer'),
      await http.token('op', 'operator'),
    ]
    const ended = async () => {
      const body = { config_name_to_load: 'lora' }
      const made = await http.call('POST', '/api/cloud/jobs/submit', { body, token: ann })
      const { job_id } = made.body as CloudAnswer
      await http.call('POST', `/api/cloud/jobs/${job_id}/cancel`, { token: ann })
      return job_id
    }
    const job = await ended()
    expect(await remove(job, bob)).toMatchObject({ status: 404 })
    expect(await remove(job, eve)).toMatchObject({ status: 403 })
    expect(await remove(job, ann)).toMatchObject({ status: 200, body: { success: true } })
    expect(await remove(await ended(), op)).toMatchObject({ status: 200, body: { success: true } })
    const native = await http.call('POST', '/v1/jobs', { body: { kind: 'work' }, token: ann })
    const { job_id } = native.body as CloudAnswer
    await http.call('POST', `/v1/jobs/${job_id}/cancel`, { token: ann })
    expect(await remove(job_id, ann)).toMatchObject({ status: 404 })
  })
})
