import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { createExpireUploads } from '../../../leader/duties/tidy-artifacts.ts'
import { promoteDue } from '../../../store/leasing/promote-runs.ts'
import type { Answer, TestApp } from '../../../testing/http/app.ts'
import { lease } from '../../../testing/http/cloud-worker.ts'
import { artifactApp, sha256Of, someBytes } from '../../../testing/services/artifacts.ts'
import { ENGINES } from '../../../testing/services/services.ts'
import { sql } from '../../../testing/store/store.ts'
import type { CloudAnswer, CloudJob } from './shapes.ts'

describe.each(ENGINES)('cloud jobs that wait for artifacts, on %s', (engine) => {
  let http: TestApp
  beforeAll(async () => {
    http = await artifactApp(engine)
  })
  afterAll(() => http.close())

  const submit = (provider: string, body: object) =>
    http.call('POST', `/api/cloud/jobs/submit?provider=${provider}`, { body: { config_name_to_load: 'lora', ...body } })
  const said = ({ body }: Answer) => body as CloudAnswer
  const statusOf = async (id: string | null) =>
    ((await http.call('GET', `/api/cloud/jobs/${id}`)).body as { job: CloudJob }).job.status
  const send = (id: string | null, name: string, bytes: Buffer) =>
    http.call('POST', `/v1/artifacts?job_id=${id}&name=${name}`, {
      body: bytes,
      headers: { 'content-type': 'application/octet-stream' },
    })

  test('are uploading until all artifacts have arrived, and then queued', async () => {
    const body = { idempotency_key: 'k', artifacts: [{ name: 'a' }, { name: 'b' }] }
    const first = said(await submit('wait', body))
    expect(first).toMatchObject({ success: true, status: 'uploading', data_uploaded: false, idempotent_hit: false })
    const replay = async () => said(await submit('wait', body))
    expect(await replay()).toMatchObject({ status: 'uploading', data_uploaded: false, idempotent_hit: true })
    await send(first.job_id, 'a', someBytes(5))
    expect(await statusOf(first.job_id)).toBe('uploading')
    const list = await http.call('GET', '/api/cloud/jobs?provider=wait&status=uploading')
    expect(list.body).toMatchObject({ jobs: [{ job_id: first.job_id, status: 'uploading' }], total: 1 })
    await send(first.job_id, 'b', someBytes(5))
    expect(await statusOf(first.job_id)).toBe('queued')
    expect(await replay()).toMatchObject({ status: 'queued', data_uploaded: true, idempotent_hit: true })
    await http.services.deps.store.write(promoteDue(100, []))
    const leased = await lease(http, 'cloud.wait')
    expect(leased).toMatchObject({ job_id: first.job_id, artifacts: [{ name: 'a' }, { name: 'b' }] })
    // The awaited artifacts are not part of the payload.
    expect(leased.payload).toEqual({ config_name_to_load: 'lora', provider: 'wait' })
    expect(await statusOf(first.job_id)).toBe('running')
  })

  test('say at once if no artifact is missing', async () => {
    const bytes = someBytes(9)
    await http.call('POST', '/v1/artifacts?name=data', {
      body: bytes,
      headers: { 'content-type': 'application/octet-stream' },
    })
    const artifacts = [{ name: 'data', sha256: sha256Of(bytes) }]
    const first = said(await submit('known', { artifacts }))
    expect(first).toMatchObject({ status: 'uploading', data_uploaded: true })
    expect(await statusOf(first.job_id)).toBe('queued')
    expect(said(await submit('known', { artifacts: null }))).toMatchObject({ data_uploaded: true })
  })

  test('are cancelled when no artifact arrives', async () => {
    const { job_id } = said(await submit('late', { artifacts: [{ name: 'a' }], upload_ttl_seconds: 5 }))
    const { store } = http.services.deps
    await sql(store, 'UPDATE ichido.upload_waits SET expires_at = expires_at - 5001 WHERE job_id = $1', job_id)
    await createExpireUploads(http.services.deps)()
    expect(await statusOf(job_id)).toBe('cancelled')
    expect(await http.call('POST', `/api/cloud/jobs/${job_id}/cancel`)).toMatchObject({ status: 200 })
  })
})
