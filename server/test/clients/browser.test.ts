import { createHash } from 'node:crypto'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Client, httpTransport } from '@ichido/sdk/client'
import { type Browser, type Page, chromium as playwright } from 'playwright-core'
import { build } from 'vite'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { chromium } from '../../../scripts/testing/services.ts'
import { serveHere } from '../../src/cli/testing/serve-here.ts'
import { Restarted } from '../../src/cli/testing/tormented-events.ts'
import { HttpPublisher } from '../../src/testing/http/http-publisher.ts'

const SDK = join(import.meta.dirname, '../../../sdk/src/client/index.ts')
/** The first run downloads a browser, which may take this long. */
const FETCH_TIMEOUT_MS = 300_000
const EVENTS = 12
/** The job adds three events of its own: PENDING, RUNNING and SUCCEEDED. */
const LAST = EVENTS + 3
const PART_BYTES = 4 * 1024 * 1024
const UPLOAD_BYTES = 2 * PART_BYTES + 1024 * 1024

/** The SDK's client as a script that defines the global `ichido`. */
async function sdkScript(): Promise<string> {
  const lib = { entry: SDK, formats: ['iife' as const], name: 'ichido' }
  const built = await build({ configFile: false, logLevel: 'silent', build: { write: false, lib } })
  const [bundled] = Array.isArray(built) ? built : []
  const [chunk] = bundled?.output ?? []
  if (chunk?.type !== 'chunk') throw new Error('One file in, one file out')
  return chunk.code
}

let folder: string
let server: Restarted
let browser: Browser
let page: Page
const problems: string[] = []

beforeAll(async () => {
  browser = await playwright.launch(await chromium())
  folder = mkdtempSync(join(tmpdir(), 'ichido-client-'))
  server = await Restarted.serve(() => serveHere({ DATA_DIR: folder }))
  page = await browser.newPage()
  page.on('pageerror', (error) => problems.push(error.message))
  // Any page of the same origin will do.
  await page.goto(`${server.url}/healthz`)
  const client = 'new ichido.Client(ichido.httpTransport({ url: location.origin }))'
  await page.evaluate(`${await sdkScript()}; globalThis.ichido = ichido; globalThis.client = ${client}`)
}, FETCH_TIMEOUT_MS)
afterEach(() => expect(problems).toEqual([]))
afterAll(async () => {
  await browser.close()
  await server.close()
  rmSync(folder, { recursive: true, force: true })
})

/** Runs in the page: uploads random bytes, and returns the reported progress, the artifact's id and the SHA-256. */
const uploading = `(async () => {
  const bytes = new Uint8Array(${UPLOAD_BYTES})
  // getRandomValues() fills at most 65,536 bytes per call.
  for (let at = 0; at < bytes.length; at += 65_536) crypto.getRandomValues(bytes.subarray(at, at + 65_536))
  const progress = []
  const onProgress = (told) => progress.push(told)
  const { artifact_id: id } = await client.artifacts.upload(new Blob([bytes]), { name: 'from-a-page', onProgress })
  return { progress, id, sha256: [...new Uint8Array(await crypto.subtle.digest('SHA-256', bytes))] }
})()`

test('an SDK upload in a browser reports progress per part and stores all bytes', async () => {
  const { progress, id, sha256 } = await page.evaluate<{ progress: unknown; id: string; sha256: number[] }>(uploading)
  expect(progress).toEqual(
    [PART_BYTES, 2 * PART_BYTES, UPLOAD_BYTES].map((sentBytes) => ({ sentBytes, totalBytes: UPLOAD_BYTES })),
  )
  const held = createHash('sha256')
  const { artifacts } = new Client(httpTransport({ url: server.url }))
  for await (const chunk of await artifacts.download(id)) held.update(chunk)
  expect([...held.digest()]).toEqual(sha256)
})

/** Runs in the page: follows a job, and collects the cursors and errors in `watched`. */
const watching = (jobId: string) => `
  globalThis.watched = { cursors: [], troubles: 0, over: false }
  void (async () => {
    const onTrouble = (error) => { if (error !== null) watched.troubles++ }
    for await (const { cursor } of client.watch(${JSON.stringify(jobId)}, { onTrouble })) watched.cursors.push(cursor)
    watched.over = true
  })()`

test('watch() in a browser gets each event once, even if the server restarts', async () => {
  const publisher = await HttpPublisher.begin(server.url, 1)
  await page.evaluate(watching(publisher.jobIds[0] ?? ''))
  await publisher.publish(EVENTS / 3)
  await page.waitForFunction('watched.cursors.length > 2')
  await server.kill()
  const meanwhile = publisher.publish(EVENTS / 3)
  await page.waitForFunction('watched.troubles > 0')
  await server.start()
  await meanwhile
  await publisher.publish(EVENTS / 3)
  await publisher.finish()
  await page.waitForFunction('watched.over')
  expect(await page.evaluate('watched.cursors')).toEqual(Array.from({ length: LAST }, (_, i) => i + 1))
})
