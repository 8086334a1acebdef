import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Browser, Page } from 'playwright-core'
import { afterAll, afterEach, beforeAll, expect, onTestFinished, test } from 'vitest'
import { freshDatabase } from '../../scripts/testing/services.ts'
import { size } from '../../scripts/testing/size.ts'
import { killAll, type Serving, serve } from '../../server/src/cli/testing/cli.ts'
import { lease, WORKER } from '../../server/src/testing/http/cloud-worker.ts'
import { lead, redriver } from '../../server/src/testing/store/dead-letters.ts'
import { FETCH_TIMEOUT_MS, openBrowser, setStage } from './stage.ts'
import { QUEUE, submit } from './work.ts'

const FULL_TIMEOUT_MS = 300_000

let browser: Browser
const folder = mkdtempSync(join(tmpdir(), 'ichido-dashboard-test-'))

beforeAll(async () => {
  browser = await openBrowser()
}, FETCH_TIMEOUT_MS)
afterEach(killAll)
afterAll(async () => {
  await browser.close()
  rmSync(folder, { recursive: true })
})

const LEASES_MAX = 100

test(
  `${size(150, 5_000)} dead letters are redriven from the page`,
  async () => {
    const count = size(150, 5_000)
    const stage = await setStage(browser)
    onTestFinished(() => stage.close())
    const { services } = stage.http
    for (let n = 0; n < count; n++) await submit(stage, { queue: 'media' })
    for (let ended = 0; ended < count; ) {
      const asked = { queues: ['media'], kinds: [], max: LEASES_MAX, waitMs: 0, startId: `s${ended}` }
      const leases = await services.runs.lease(WORKER, asked)
      const error = { code: 'DISK_FULL', message: 'No space left' }
      const fail = { verb: 'fail', error, retryable: false } as const
      await Promise.all(leases.map(({ lease_id }) => services.runs.finish(WORKER, lease_id, fail)))
      ended += leases.length
    }
    await stage.visit('/dead-letters')
    await stage.page.getByRole('button', { name: 'Redrive all DISK_FULL of cloud.train' }).click()
    const name = `Redrive ${count.toLocaleString('en-US')} dead letters`
    await stage.page.getByRole('dialog').getByRole('button', { name }).click()
    await stage.page.getByText('The redrive has begun.').waitFor()
    const tick = redriver(services.deps.store, await lead(services.deps.store))
    const pending = async () => {
      await tick()
      return (await services.jobs.counts('active')).PENDING ?? 0
    }
    await expect.poll(pending, { timeout: FULL_TIMEOUT_MS / 2 }).toBe(count)
    await stage.page.getByText(`${count.toLocaleString('en-US')} of ${count.toLocaleString('en-US')}`).waitFor()
    await stage.page.getByText('No dead letters').waitFor()
  },
  FULL_TIMEOUT_MS,
)

/** What the page holds after the garbage is collected. */
async function heapBytes(page: Page): Promise<number> {
  const debug = await page.context().newCDPSession(page)
  await debug.send('HeapProfiler.collectGarbage')
  const { usedSize } = await debug.send('Runtime.getHeapUsage')
  await debug.detach()
  return usedSize
}

test(
  `${size(1_500, 10_000)} live events leave the heap of the page bounded`,
  async () => {
    const count = size(1_500, 10_000)
    const stage = await setStage(browser)
    onTestFinished(() => stage.close())
    const id = await submit(stage, { stages: [{ name: 'train', from: 1, to: count }] })
    const { lease_id } = await lease(stage.http, QUEUE)
    await stage.visit(`/jobs/${id}`)
    const publish = async (from: number, to: number) => {
      for (let seq = from; seq <= to; seq++) {
        const data = { step: seq, note: 'x'.repeat(1_000) }
        await stage.http.services.events.publish('cloud-worker', lease_id, { stage: 'train', seq, data })
      }
      await stage.page.locator('td.data', { hasText: `"step":${to},` }).waitFor()
    }
    // More than the page keeps, so that from here on each event replaces one.
    await publish(1, 500)
    const before = await heapBytes(stage.page)
    await publish(501, count)
    const after = await heapBytes(stage.page)
    console.log(`heap of the page: ${before} bytes after 500 events, ${after} after ${count}`)
    expect(await stage.page.locator('td.data').count()).toBe(300)
    // All the later events together are more than this.
    expect(after - before).toBeLessThan((count - 500) * 500)
  },
  FULL_TIMEOUT_MS,
)

async function post({ url }: Serving, kind: string): Promise<string> {
  const headers = { 'content-type': 'application/json' }
  const answer = await fetch(`${url}/v1/jobs`, { method: 'POST', headers, body: JSON.stringify({ kind }) })
  expect(answer.status).toBe(201)
  return ((await answer.json()) as { job_id: string }).job_id
}

test('an open page says that the killed server is away, and goes on when it is back', async () => {
  const env = { DATA_DIR: mkdtempSync(join(folder, 'd-')) }
  const server = await serve(env)
  const page = await browser.newPage({ locale: 'en-US' })
  onTestFinished(() => page.close())
  const first = await post(server, 'first')
  await page.goto(`${server.url}/jobs`)
  await page.locator(`tr[data-id="${first}"]`).waitFor()
  server.signal('SIGKILL')
  await server.ended
  await page.locator('[data-live="off"]:visible').waitFor()
  // Old data stay in sight.
  expect(await page.locator(`tr[data-id="${first}"]`).count()).toBe(1)
  const again = await serve({ ...env, PORT: new URL(server.url).port })
  const second = await post(again, 'second')
  await page.locator(`tr[data-id="${second}"]`).waitFor()
  await page.locator('[data-live="off"]').first().waitFor({ state: 'detached' })
  await again.stop()
}, 120_000)

test('a page of another node goes on when the leader is killed', async () => {
  const database = await freshDatabase()
  onTestFinished(() => database.leave())
  const env = { DATABASE_URL: database.url, DATA_DIR: mkdtempSync(join(folder, 'd-')) }
  const leader = await serve(env)
  const other = await serve({ ...env, DATA_DIR: mkdtempSync(join(folder, 'd-')) })
  const page = await browser.newPage({ locale: 'en-US' })
  onTestFinished(() => page.close())
  await page.goto(`${other.url}/jobs`)
  await page.getByRole('heading', { name: 'Jobs' }).waitFor()
  leader.signal('SIGKILL')
  await leader.ended
  const id = await post(other, 'after')
  await page.locator(`tr[data-id="${id}"]`).waitFor()
  expect(await page.locator('[data-live="off"]').count()).toBe(0)
  // Only a leader carries out an operation.
  await page.locator(`tr[data-id="${id}"]`).getByRole('checkbox').check()
  await page.getByRole('button', { name: 'Cancel', exact: true }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Start' }).click()
  await page.locator(`tr[data-id="${id}"]`).getByText('Canceled').waitFor({ timeout: 60_000 })
  await other.stop()
}, 120_000)
