import { mkdtempSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { EnrollTokenShape, WorkerShape } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest'
import { ichido, killAll, serve } from '../../server/src/cli/testing/cli.ts'
import { selfSigned } from '../../server/src/testing/http/certificate.ts'
import { enlist, firstNote, gone, type Kept, kept, stopped, WITHIN } from './testing/enlist.ts'
import { type Plane, startPlane } from './testing/plane.ts'
import { findPython, killWorkers, notesOf, script, startWorker } from './testing/python.ts'

let python: string
let plane: Plane
beforeAll(async () => {
  ;[python, plane] = await Promise.all([findPython(), startPlane('sqlite')])
})
afterAll(async () => {
  await killWorkers()
  await plane.stop()
  await killAll()
})

describe.concurrent('the identity of a worker', () => {
  test('its token is stored in a file for its owner only, and renewed', async () => {
    const registered = await plane.call<Kept>('POST', '/v1/workers/register', { enroll_token: await plane.enroll() })
    // The worker does not know when this token expires, and learns that by renewing it.
    const { worker, options } = await enlist(python, plane, ['tick'], { enroll: registered.worker_token })
    await vi.waitFor(() => {
      expect(kept(options.tokenFile).worker_token).toMatch(/^ichido_worker_/)
      expect(kept(options.tokenFile).worker_token).not.toBe(registered.worker_token)
    }, WITHIN)
    expect(statSync(options.tokenFile).mode & 0o777).toBe(0o600)
    expect((await stopped(worker)).code).toBe(0)
  })

  test('its name is the one that it was enrolled under, unless it sets another', async () => {
    const nameOf = async (changes: { name?: string }) => {
      const token = await plane.call<EnrollTokenShape>('POST', '/v1/workers/enroll-tokens', { label: 'lab pc' })
      const { worker, options } = await enlist(python, plane, ['tick'], { enroll: token.enroll_token, ...changes })
      await vi.waitFor(() => expect(kept(options.tokenFile).worker_id).toBeDefined(), WITHIN)
      await stopped(worker)
      return (await plane.call<WorkerShape>('GET', `/v1/workers/${kept(options.tokenFile).worker_id}`)).name
    }
    expect([await nameOf({}), await nameOf({ name: 'own' })]).toEqual(['lab pc', 'own'])
  })

  test('a new enroll token does not change its identity, and a revoked worker ends', async () => {
    const { worker, options, queue } = await enlist(python, plane, ['wait'])
    await vi.waitFor(() => expect(kept(options.tokenFile).worker_id).toBeDefined(), WITHIN)
    const before = kept(options.tokenFile)
    await stopped(worker)
    const again = startWorker(python, { ...options, enroll: await plane.enroll() })
    await vi.waitFor(() => expect(kept(options.tokenFile).worker_token).not.toBe(before.worker_token), WITHIN)
    expect(kept(options.tokenFile).worker_id).toBe(before.worker_id)

    const policy = { lease_ttl_seconds: 1, continuation_seconds: 1, backoff: { base_seconds: 0 } }
    const id = await plane.submit({ kind: 'wait', queue, ...policy })
    const { pid } = await firstNote(() => notesOf(options.ledger))
    await plane.call('DELETE', `/v1/workers/${before.worker_id}`)
    await gone(pid)
    const { code, stderr } = await again.ended
    expect([code, stderr]).toEqual([1, expect.stringContaining('This worker was revoked')])
    await plane.jobIn(id, 'PENDING')
  })

  test('without a token it says what it needs', async () => {
    const { worker } = await enlist(python, plane, ['tick'], { enroll: 'ichido_enroll_unknown' })
    const { code, stderr } = await worker.ended
    expect([code, stderr]).toEqual([1, expect.stringContaining('UNAUTHENTICATED')])
  })
})

test('TLS works with an authority that the worker was given', async () => {
  const folder = mkdtempSync(join(plane.folder, 'tls-'))
  const [certFile, keyFile] = [join(folder, 'cert.pem'), join(folder, 'key.pem')]
  const { cert, key } = selfSigned()
  writeFileSync(certFile, cert)
  writeFileSync(keyFile, key)
  const node = await serve({ DATA_DIR: join(folder, 'data'), TLS_CERT_FILE: certFile, TLS_KEY_FILE: keyFile })
  const url = node.url.replace('127.0.0.1', 'localhost')
  const trusting = { ICHIDO_URL: url, NODE_EXTRA_CA_CERTS: certFile }
  const code = `
try:
    print(json.dumps(ichido.Client(os.environ['URL']).submit('k').state))
except ichido.Unreachable as error:
    print(json.dumps([error.retryable, error.message]))`
  const ADVICE = 'Set SSL_CERT_FILE to the file of the authority that signed it'
  const refused = [false, expect.stringMatching(`CERTIFICATE_VERIFY_FAILED.*${ADVICE}$`)]
  expect(await script(python, code, { URL: url })).toEqual([refused])
  const env = { URL: url, SSL_CERT_FILE: certFile }
  expect(await script(python, code, env)).toEqual(['PENDING'])
  // The certificate is trusted but for another name, so the advice would not help.
  const elsewhere = { ...env, URL: node.url }
  expect(await script(python, code, elsewhere)).toEqual([[false, expect.not.stringContaining(ADVICE)]])

  const enroll = JSON.parse((await ichido(['workers', 'enroll', 'tls', '--queue', 'tls', '--json'], trusting)).stdout)
  const [ledger, tokenFile] = [join(folder, 'ledger'), join(folder, 'token.json')]
  const options = { url, queue: 'tls', enroll: enroll.enroll_token, tokenFile, ledger, handlers: ['talk'], env }
  // This error does not go away by itself, and the user is still there to see it.
  const { code: status, stderr } = await startWorker(python, { ...options, env: {} }).ended
  expect([status, stderr]).toEqual([1, expect.stringContaining(ADVICE)])
  const worker = startWorker(python, options)
  const work = `
client = ichido.Client(os.environ['URL'])
print(json.dumps(client.result(client.submit('talk', 1, queue='tls').id)['attempt']))`
  expect(await script(python, work, env)).toEqual([1])

  // Once the worker has connected, an untrusted certificate is treated as an outage.
  const served = { DATA_DIR: join(folder, 'data'), TLS_KEY_FILE: keyFile, PORT: new URL(url).port }
  await node.stop()
  const other = selfSigned()
  const [otherCert, otherKey] = [join(folder, 'other-cert.pem'), join(folder, 'other-key.pem')]
  writeFileSync(otherCert, other.cert)
  writeFileSync(otherKey, other.key)
  const strange = await serve({ ...served, TLS_CERT_FILE: otherCert, TLS_KEY_FILE: otherKey })
  const refusal = /cannot be reached: .*CERTIFICATE_VERIFY_FAILED/
  await vi.waitFor(() => expect(worker.said()).toMatch(refusal), WITHIN)
  await strange.stop()
  const back = await serve({ ...served, TLS_CERT_FILE: certFile })
  expect(await script(python, work, env)).toEqual([1])
  // The worker waits in a poll, which is aborted.
  expect((await stopped(worker)).code).toBe(0)
  await back.stop()
})
