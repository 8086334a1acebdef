import { readdirSync, writeFileSync } from 'node:fs'
import { request } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import type { ArtifactShape } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { PARTS_MAX } from '../../blobs/disk.ts'
import { DEFAULT_LIMITS } from '../../services/deps.ts'
import { promoteDue } from '../../store/leasing/promote-runs.ts'
import { type Call, type TestApp, testApp } from '../../testing/http/app.ts'
import { sha256Of, someBytes, testBlobs } from '../../testing/services/artifacts.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { registered } from '../../testing/services/workers.ts'
import { unique, until } from '../../testing/store/store.ts'

const BYTES_MAX = 300_000
const BYTES = { 'content-type': 'application/octet-stream' }

describe.each(ENGINES)('%s', (engine) => {
  let http: TestApp
  let folder: string
  let [ann, bob, worker, workerId] = ['', '', '', '']
  let close: () => Promise<void>
  beforeAll(async () => {
    const place = await testBlobs()
    folder = place.folder
    const limits = { ...DEFAULT_LIMITS, artifactBytesMax: BYTES_MAX }
    http = await testApp(engine, { deps: { blobs: place.blobs, limits } })
    ann = await http.token('ann', 'submitter')
    bob = await http.token('bob', 'submitter')
    const made = await registered(http.services)
    worker = made.worker_token
    workerId = made.worker_id
    close = async () => {
      await http.close()
      place.remove()
    }
  })
  afterAll(() => close())

  async function submit(artifacts: object[], token = ann) {
    const body = { kind: 'work', queue: unique('queue'), artifacts }
    const answer = await http.call('POST', '/v1/jobs', { body, token })
    expect(answer.status, answer.text).toBe(201)
    return answer.body as { job_id: string; queue: string }
  }
  const send = (query: Record<string, string>, bytes: Buffer, { headers = {}, token = ann }: Call = {}) =>
    http.call('POST', `/v1/artifacts?${new URLSearchParams(query)}`, {
      body: bytes,
      token,
      headers: { ...BYTES, ...headers },
    })
  const idOf = ({ body }: { body: unknown }) => (body as ArtifactShape).artifact_id
  /** The bytes, not their text. */
  async function fetchBytes(id: string, headers: Record<string, string> = {}, token = ann) {
    const url = `/v1/artifacts/${id}`
    const all = { host: 'localhost:8001', authorization: `Bearer ${token}`, ...headers }
    return http.app.inject({ method: 'GET', url, headers: all })
  }

  test('an artifact is sent, listed and fetched, whole and in ranges', async () => {
    const bytes = someBytes(1_000)
    const { job_id } = await submit([{ name: '結果 (1).bin' }])
    const sent = await send({ name: '結果 (1).bin', job_id }, bytes)
    expect(sent).toMatchObject({ status: 201, headers: { 'upload-offset': '1000' } })
    const etag = `"${sha256Of(bytes)}"`
    expect(await http.call('GET', `/v1/jobs/${job_id}/artifacts`, { token: ann })).toMatchObject({
      status: 200,
      body: { data: [sent.body] },
    })
    const whole = await fetchBytes(idOf(sent))
    expect(whole).toMatchObject({
      statusCode: 200,
      headers: {
        'content-type': 'application/octet-stream',
        'content-length': '1000',
        'accept-ranges': 'bytes',
        'x-content-type-options': 'nosniff',
        'content-disposition': `attachment; filename="__ (1).bin"; filename*=UTF-8''%E7%B5%90%E6%9E%9C%20%281%29.bin`,
        etag,
      },
    })
    expect(whole.rawPayload).toEqual(bytes)
    const part = await fetchBytes(idOf(sent), { range: 'bytes=100-199', 'if-range': etag })
    expect(part).toMatchObject({
      statusCode: 206,
      headers: { 'content-range': 'bytes 100-199/1000', 'content-length': '100' },
    })
    expect(part.rawPayload).toEqual(bytes.subarray(100, 200))
    expect((await fetchBytes(idOf(sent), { range: 'bytes=100-199', 'if-range': '"old"' })).statusCode).toBe(200)
    expect(await fetchBytes(idOf(sent), { range: 'bytes=1000-' })).toMatchObject({
      statusCode: 416,
      headers: { 'content-range': 'bytes */1000' },
    })
    expect(await http.call('HEAD', `/v1/artifacts/${idOf(sent)}`, { token: ann })).toMatchObject({
      status: 200,
      headers: { 'upload-offset': '1000', 'upload-complete': '?1', 'content-length': '1000', etag },
      text: '',
    })
  })

  test('stored content is not sent again', async () => {
    const bytes = someBytes(100)
    const { job_id } = await submit([{ name: 'a' }])
    const query = { name: 'a', job_id, sha256: sha256Of(bytes) }
    const first = await send(query, bytes)
    expect(await send(query, Buffer.alloc(0), { headers: { 'upload-offset': '100' } })).toMatchObject({
      status: 200,
      body: first.body,
    })
    expect(await send({ name: 'a', job_id }, bytes)).toMatchObject({ status: 200 })
    expect(await send({ name: 'a', job_id }, someBytes(100))).toMatchObject({
      status: 409,
      body: { error: { code: 'ARTIFACT_CONFLICT' } },
    })
  })

  test('an upload in parts is put together', async () => {
    const bytes = someBytes(3_000)
    const { job_id } = await submit([{ name: 'a', size_bytes: 3_000, sha256: sha256Of(bytes) }])
    const query = { name: 'a', job_id }
    const first = await send(query, bytes.subarray(0, 1_000))
    expect(first).toMatchObject({ status: 202, headers: { 'upload-offset': '1000' }, body: { state: 'awaited' } })
    expect(await http.call('HEAD', `/v1/artifacts/${idOf(first)}`, { token: ann })).toMatchObject({
      status: 200,
      headers: { 'upload-offset': '1000', 'upload-complete': '?0' },
    })
    const asked = await send({ ...query, size_bytes: '3000' }, Buffer.alloc(0), { headers: { 'upload-offset': '0' } })
    expect(asked).toMatchObject({ status: 409, headers: { 'upload-offset': '1000' } })
    expect(await http.call('GET', `/v1/artifacts/${idOf(first)}`, { token: ann })).toMatchObject({
      status: 409,
      headers: { 'should-retry': 'true' },
      body: { error: { code: 'ARTIFACT_NOT_READY' } },
    })
    expect(await send(query, bytes, { headers: { 'upload-offset': '2000' } })).toMatchObject({
      status: 400,
      body: { error: { code: 'INVALID_PAYLOAD' } },
    })
    const ahead = await send(query, bytes.subarray(2_000), { headers: { 'upload-offset': '2000' } })
    expect(ahead).toMatchObject({
      status: 409,
      headers: { 'upload-offset': '1000' },
      body: { error: { code: 'UPLOAD_OFFSET_MISMATCH', details: { upload_offset: 1000 } } },
    })
    expect(await send(query, bytes.subarray(1_000), { headers: { 'upload-offset': '1000' } })).toMatchObject({
      status: 201,
    })
    expect((await fetchBytes(idOf(first))).rawPayload).toEqual(bytes)
  })

  test('an upload in too many parts is refused, to the sender and to readers', async () => {
    const { job_id } = await submit([{ name: 'a', size_bytes: 2_000 }])
    const first = await send({ name: 'a', job_id }, someBytes(1))
    const uploads = join(folder, 'uploads', idOf(first))
    for (let i = 1; i < PARTS_MAX; i++) writeFileSync(join(uploads, `${String(i).padStart(16, '0')}.x`), 'x')
    const headers = { 'upload-offset': String(PARTS_MAX) }
    expect(await send({ name: 'a', job_id }, someBytes(1), { headers })).toMatchObject({
      status: 400,
      body: { error: { code: 'INVALID_PAYLOAD', message: expect.stringContaining('send larger ones') } },
    })
    expect((await http.call('HEAD', `/v1/artifacts/${idOf(first)}`, { token: ann })).status).toBe(400)
    expect((await send({ name: 'a', job_id }, someBytes(2_000))).status).toBe(201)
  })

  test('a broken upload continues after a reconnect', async () => {
    const bytes = someBytes(200_000)
    const { job_id } = await submit([{ name: 'a', sha256: sha256Of(bytes) }])
    const [{ artifact_id }] = (
      (await http.call('GET', `/v1/jobs/${job_id}/artifacts`, { token: ann })).body as { data: [ArtifactShape] }
    ).data
    await http.app.listen({ port: 0, host: '127.0.0.1' }).catch(() => {})
    const { port } = http.app.server.address() as AddressInfo
    const sending = request({
      port,
      method: 'POST',
      path: `/v1/artifacts?name=a&job_id=${job_id}`,
      headers: { ...BYTES, authorization: `Bearer ${ann}`, 'content-length': bytes.length },
    })
    sending.on('error', () => {})
    sending.write(bytes.subarray(0, 120_000))
    const offset = async () =>
      Number((await http.call('HEAD', `/v1/artifacts/${artifact_id}`, { token: ann })).headers['upload-offset'])
    await until('the bytes to arrive', async () => (await offset()) === 120_000)
    const closed = new Promise((resolve) => sending.once('close', resolve))
    sending.destroy()
    await closed
    const rest = await send({ name: 'a', job_id }, bytes.subarray(120_000), { headers: { 'upload-offset': '120000' } })
    expect(rest).toMatchObject({ status: 201, body: { sha256: sha256Of(bytes), size_bytes: 200_000 } })
  })

  test('a bad upload is refused with the reason, and nothing is stored', async () => {
    const bytes = someBytes(50)
    const { job_id } = await submit([{ name: 'a' }])
    const error = (status: number, code: string, message: RegExp = /./) => ({
      status,
      body: { error: { code, message: expect.stringMatching(message) } },
    })
    const query = { name: 'a', job_id }
    expect(await send({ ...query, sha256: sha256Of(someBytes(1)) }, bytes)).toMatchObject(
      error(400, 'INVALID_PAYLOAD', /^The bytes have the SHA-256/),
    )
    expect(await send({ ...query, sha256: 'abc' }, bytes)).toMatchObject(error(400, 'INVALID_PAYLOAD', /sha256/))
    expect(await send({ ...query, size_bytes: '49' }, bytes)).toMatchObject(error(400, 'INVALID_PAYLOAD'))
    expect(await send({ ...query, size_bytes: String(BYTES_MAX + 1) }, bytes)).toMatchObject(
      error(413, 'PAYLOAD_TOO_LARGE'),
    )
    expect(await send(query, someBytes(BYTES_MAX + 1))).toMatchObject({
      ...error(413, 'PAYLOAD_TOO_LARGE'),
      headers: { connection: 'close' },
    })
    for (const name of ['', '../a', 'a/b', '..', '.hidden', 'a\u0000', '..%2f']) {
      expect(await send({ ...query, name }, bytes), name).toMatchObject(error(400, 'INVALID_PAYLOAD', /name/))
    }
    expect(await send({ ...query, name: 'b' }, bytes)).toMatchObject(error(404, 'NOT_FOUND', /no artifact named "b"/))
    expect(await send({ ...query, job_id: crypto.randomUUID() }, bytes)).toMatchObject(error(404, 'NOT_FOUND'))
    expect(await send(query, bytes, { token: bob })).toMatchObject(error(404, 'NOT_FOUND'))
    expect(await send(query, bytes, { headers: { 'upload-offset': '-1' } })).toMatchObject(
      error(400, 'INVALID_PAYLOAD'),
    )
    for (const headers of [{ 'content-type': 'text/plain' }, { 'content-encoding': 'gzip' }]) {
      expect(await send(query, bytes, { headers })).toMatchObject(error(415, 'UNSUPPORTED_MEDIA_TYPE', /as/))
    }
    expect(await http.call('POST', '/v1/jobs', { body: Buffer.from('x'), headers: BYTES, token: ann })).toMatchObject(
      error(415, 'UNSUPPORTED_MEDIA_TYPE', /JSON/),
    )
    for (const path of [crypto.randomUUID(), 'none', '..%2F..%2Fichido.db']) {
      expect(await http.call('GET', `/v1/artifacts/${path}`, { token: ann })).toMatchObject(error(404, 'NOT_FOUND'))
    }
    expect(readdirSync(join(folder, 'uploads'))).toEqual([])
    expect(await http.call('GET', `/v1/jobs/${job_id}`, { token: ann })).toMatchObject({
      body: { state: 'PENDING', awaits_artifacts: true },
    })
    for (const artifacts of [[{ name: '../x' }], [{ name: 'a' }, { name: 'a' }], [{ name: 'a', sha256: 'x' }], [{}]]) {
      expect(await http.call('POST', '/v1/jobs', { body: { kind: 'k', artifacts }, token: ann })).toMatchObject({
        status: 400,
      })
    }
  })

  test('a worker reads inputs and sends outputs while it holds the lease', async () => {
    const [input, output] = [someBytes(10), someBytes(20)]
    const { job_id, queue } = await submit([{ name: 'in' }])
    const sent = await send({ name: 'in', job_id }, input)
    expect((await fetchBytes(idOf(sent), {}, worker)).statusCode).toBe(404)
    await http.services.deps.store.write(promoteDue(1_000, []))
    const [lease] = await http.services.runs.lease(workerId, {
      queues: [queue],
      kinds: [],
      max: 1,
      waitMs: 0,
      startId: 's',
    })
    if (lease === undefined) throw new Error('There is a run to lease')
    expect(lease.artifacts).toEqual([{ artifact_id: idOf(sent), name: 'in', sha256: sha256Of(input), size_bytes: 10 }])
    expect((await fetchBytes(idOf(sent), {}, worker)).rawPayload).toEqual(input)
    const made = await send({ name: 'out', lease_id: lease.lease_id }, output, { token: worker })
    expect(made).toMatchObject({ status: 201, body: { job_id, run_id: lease.run_id, name: 'out' } })
    expect(await send({ name: 'out' }, output, { token: worker })).toMatchObject({ status: 400 })
    expect(await send({ name: 'out', lease_id: lease.lease_id }, output)).toMatchObject({ status: 403 })
    await http.services.workers.revoke({ userId: 'op', role: 'admin' }, workerId)
    expect((await fetchBytes(idOf(sent), {}, worker)).statusCode).toBe(403)
    expect((await fetchBytes(idOf(made))).rawPayload).toEqual(output)
    expect((await fetchBytes(idOf(made), {}, bob)).statusCode).toBe(404)
  })
})

test('without a folder, only jobs with artifacts are refused', async () => {
  const http = await testApp('sqlite')
  const off = { status: 503, body: { error: { code: 'ARTIFACTS_OFF' } } }
  expect(await http.call('POST', '/v1/jobs', { body: { kind: 'k', artifacts: [{ name: 'a' }] } })).toMatchObject(off)
  expect(await http.call('POST', '/v1/artifacts?name=a', { body: Buffer.from('x'), headers: BYTES })).toMatchObject(off)
  expect(await http.call('POST', '/v1/jobs', { body: { kind: 'k', artifacts: [] } })).toMatchObject({ status: 201 })
  await http.close()
})
