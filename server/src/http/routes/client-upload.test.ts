import { openAsBlob, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { Client, httpTransport, type UploadOptions, type UploadProgress } from '@ichido/sdk/client'
import { platformTimers } from '@ichido/sdk/world'
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'
import { TcpProxy } from '../../../../scripts/testing/proxy.ts'
import { type TestApp, testApp } from '../../testing/http/app.ts'
import { sha256Of, someBytes, testBlobs } from '../../testing/services/artifacts.ts'
import { thrownBy } from '../../testing/services/embedded.ts'
import { unique } from '../../testing/store/store.ts'

const PART = 4 * 1024 * 1024
const BYTES = PART + 1024 * 1024
const MINUTE_MS = 60_000

let http: TestApp
let proxy: TcpProxy
let client: Client
let folder: string
let close: () => Promise<void>
/** Bytes that were sent to the server. */
let up: number
beforeAll(async () => {
  const place = await testBlobs()
  folder = place.folder
  http = await testApp('sqlite', { deps: { blobs: place.blobs } })
  const through = await TcpProxy.before(await http.app.listen({ host: '127.0.0.1', port: 0 }))
  proxy = through.proxy
  // The pauses between tries are shorter. The timeout of a try is not, for busy machines.
  const after = (ms: number, callback: () => void) => platformTimers.after(ms < MINUTE_MS ? ms / 100 : ms, callback)
  const world = { after }
  client = new Client(httpTransport({ url: through.url, world }))
  close = async () => {
    await proxy.close()
    await http.close()
    place.remove()
  }
})
afterAll(() => close())
beforeEach(() => {
  up = 0
  cutAt(Number.POSITIVE_INFINITY)
})

/** Cuts the connection once after this many bytes; with `down`, when the server answers after that. */
function cutAt(bytes: number, direction: 'up' | 'down' = 'up'): void {
  let cut = false
  proxy.rule = (chunk) => {
    if (chunk.direction === 'up') up += chunk.data.length
    if (cut || up < bytes || chunk.direction !== direction) return 'pass'
    cut = true
    return 'cut'
  }
}

const bytes = someBytes(BYTES)
const upload = (options: Partial<UploadOptions> = {}, content: Blob | Uint8Array = bytes) =>
  client.artifacts.upload(content, { name: unique('file'), ...options })

test('an upload that breaks in a part continues within it', async () => {
  cutAt(PART + 512 * 1024)
  const told: number[] = []
  const path = join(folder, 'sent-from-here')
  writeFileSync(path, bytes)
  const onProgress = ({ sentBytes }: UploadProgress) => void told.push(sentBytes)
  const sent = await upload({ onProgress }, await openAsBlob(path))
  expect(sent).toMatchObject({ state: 'ready', sha256: sha256Of(bytes) })
  // Only the bytes in the broken connection were sent twice, and no part started again.
  expect(up).toBeLessThan(BYTES + 1024 * 1024)
  expect(told[0]).toBe(PART)
  expect(told.at(-1)).toBe(BYTES)
})

test('an upload that breaks in its first part starts again', async () => {
  cutAt(1024 * 1024)
  expect(await upload()).toMatchObject({ state: 'ready', sha256: sha256Of(bytes) })
})

test('a lost answer to the last part does no harm', async () => {
  const job = await client.submit(unique('waits'), null, { artifacts: [{ name: 'its' }] })
  up = 0
  cutAt(BYTES, 'down')
  expect(await upload({ name: 'its', jobId: job.id })).toMatchObject({ state: 'ready', sha256: sha256Of(bytes) })
  expect(up).toBeLessThan(BYTES + 100_000)
  expect(await job.get()).toMatchObject({ awaits_artifacts: false })
  cutAt(1_000, 'down')
  up = 0
  const short = bytes.subarray(0, 1_000)
  expect(await upload({}, short)).toMatchObject({ state: 'ready', sha256: sha256Of(short) })
})

test('with a hash, an upload continues the one of another process', async () => {
  const given = { name: unique('file'), sha256: sha256Of(bytes) }
  const controller = new AbortController()
  const onProgress = ({ sentBytes }: UploadProgress) => sentBytes === PART && controller.abort(new Error('gone'))
  expect(await thrownBy(upload({ ...given, signal: controller.signal, onProgress }))).toMatchObject({ message: 'gone' })
  up = 0
  expect(await upload(given)).toMatchObject({ state: 'ready', sha256: given.sha256 })
  expect(up).toBeLessThan(BYTES - PART + 100_000)
  up = 0
  expect(await upload(given)).toMatchObject({ state: 'ready', sha256: given.sha256 })
  expect(up).toBeLessThan(100_000)
})

test('without a hash, an upload does not continue the one of another call', async () => {
  const name = unique('file')
  const controller = new AbortController()
  const stop = () => controller.abort(new Error('gone'))
  await thrownBy(upload({ name, signal: controller.signal, onProgress: stop }))
  const others = someBytes(BYTES)
  expect(await upload({ name }, others)).toMatchObject({ sha256: sha256Of(others) })
})
