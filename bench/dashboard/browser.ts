import { setTimeout as sleep } from 'node:timers/promises'
import { type Browser, chromium, type Request } from 'playwright-core'
import { findChromium } from '../../scripts/services/chromium.ts'

export const openBrowser = async (): Promise<Browser> => chromium.launch(await findChromium())

const LOOK = { reducedMotion: 'reduce', locale: 'en-US' } as const
const SETTLE_MS = 20

/** What a page asks the server for. */
export interface Asked {
  /** How often it asked for each path. */
  calls: ReadonlyMap<string, { times: number; cacheControl: string }>
  /** The paths of its streams, which stay open. */
  streams: readonly string[]
}

/** Opens a page, and records what it asks for until it has drawn all its data, and for some time after that. */
export async function recordCalls(browser: Browser, url: string, address: string, watchMs: number): Promise<Asked> {
  const page = await browser.newPage(LOOK)
  const calls = new Map<string, { times: number; cacheControl: string }>()
  const streams: string[] = []
  const problems: string[] = []
  const open = new Set<Request>()
  page.on('request', (request) => {
    if (request.method() === 'GET' && request.url().startsWith(`${url}/v1/`)) open.add(request)
  })
  page.on('response', (response) => {
    const request = response.request()
    if (!open.delete(request)) return
    const path = request.url().slice(url.length)
    if (!response.ok()) problems.push(`${path} answered ${response.status()}`)
    if (response.headers()['content-type']?.startsWith('text/event-stream')) {
      streams.push(path)
      return
    }
    const cacheControl = request.headers()['cache-control'] ?? ''
    calls.set(path, { times: (calls.get(path)?.times ?? 0) + 1, cacheControl })
  })
  page.on('requestfailed', (request) => open.delete(request))
  await page.goto(`${url}${address}`)
  await page.locator('main h2').first().waitFor()
  await page.locator('.skeleton').first().waitFor({ state: 'detached' })
  await sleep(watchMs)
  while (open.size > 0) await sleep(SETTLE_MS)
  await page.close()
  if (calls.size === 0) problems.push('it made no calls')
  if (problems.length > 0) throw new Error(`The page ${address}: ${problems.join(', ')}`)
  return { calls, streams }
}

/** The milliseconds until a browser that has nothing in its cache shows the figures and charts of the first page. */
export async function firstPage(browser: Browser, url: string): Promise<number> {
  const context = await browser.newContext(LOOK)
  const page = await context.newPage()
  const began = performance.now()
  await page.goto(url, { waitUntil: 'commit' })
  await page.waitForFunction(() => {
    const figures = [...document.querySelectorAll('.figures b')]
    const isDrawn = figures.length > 0 && figures.every(({ textContent }) => textContent !== '–')
    return isDrawn && document.querySelector('.chart canvas') !== null
  })
  const ms = performance.now() - began
  await context.close()
  return ms
}
