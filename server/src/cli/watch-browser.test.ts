import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { chromium as playwright } from 'playwright-core'
import { build } from 'vite'
import { expect, test } from 'vitest'
import { chromium } from '../../../scripts/testing/services.ts'
import { HttpPublisher } from '../testing/http-publisher.ts'
import { serveHere } from './testing/serve-here.ts'
import { Restarted } from './testing/tormented-events.ts'

const SDK = join(import.meta.dirname, '../../../sdk/src/client/index.ts')
const EVENTS = 12
/** PENDING, RUNNING, SUCCEEDED. */
const LAST = EVENTS + 3

/** The SDK's client, as a script that leaves it in `ichido`. */
async function sdkScript(): Promise<string> {
  const lib = { entry: SDK, formats: ['iife' as const], name: 'ichido' }
  const built = await build({ configFile: false, logLevel: 'silent', build: { write: false, lib } })
  const [bundled] = Array.isArray(built) ? built : []
  const [chunk] = bundled?.output ?? []
  if (chunk?.type !== 'chunk') throw new Error('One file in, one file out')
  return chunk.code
}

/** Runs in the page: follows a job, and notes in `watched` what it is told. */
const watching = (jobId: string) => `
  globalThis.watched = { cursors: [], troubles: 0, over: false }
  void (async () => {
    const client = new ichido.Client(ichido.httpTransport({ url: location.origin }))
    const onTrouble = (error) => { if (error !== null) watched.troubles++ }
    for await (const { cursor } of client.watch(${JSON.stringify(jobId)}, { onTrouble })) watched.cursors.push(cursor)
    watched.over = true
  })()`

test('watch() of the SDK in a browser goes on after a restart of the server: each event once, to the end', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'ichido-watch-'))
  const server = await Restarted.serve(() => serveHere({ DATA_DIR: folder }))
  const browser = await playwright.launch(await chromium())
  try {
    const publisher = await HttpPublisher.begin(server.url, 1)
    const page = await browser.newPage()
    const problems: string[] = []
    page.on('pageerror', (error) => problems.push(error.message))
    // Any page of the same origin will do.
    await page.goto(`${server.url}/healthz`)
    await page.evaluate(`${await sdkScript()}; globalThis.ichido = ichido`)
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
    expect(problems).toEqual([])
  } finally {
    await browser.close()
    await server.close()
    rmSync(folder, { recursive: true, force: true })
  }
}, 300_000)
