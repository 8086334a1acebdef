import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { type Browser, type BrowserContext, type Page, chromium as playwright } from 'playwright-core'
import { afterAll, afterEach, beforeAll, beforeEach, expect, test, vi } from 'vitest'
import { chromium, nodeArgs } from '../../scripts/testing/services.ts'
import { contrasts } from '../../server/src/testing/store/contrasts.ts'
import { type App, startApp } from './app.ts'
import { pageFiles } from './page-files.ts'
import type { BookmarkShape } from './shapes.ts'

/** The first run downloads a browser, which may take this long. */
const FETCH_TIMEOUT_MS = 300_000
const STOP_MS = 2_000
const WAIT = { timeout: 30_000, interval: 50 }
const TEXT = 'The great auk was a flightless bird of the North Atlantic that died out in the 19th century.'

let browser: Browser
let site: Server
let siteUrl: string
let folder: string
let app: App
let context: BrowserContext
const failing = new Set<string>()
const visits: string[] = []
const complaints: string[] = []
/** Paths of the pages that the browser has sent, from any tab. */
const sent: string[] = []

beforeAll(async () => {
  browser = await playwright.launch(await chromium())
  context = await newContext('en-US')
  site = createServer((request, response) => {
    const path = request.url ?? ''
    visits.push(path)
    if (failing.has(path)) response.writeHead(503).end()
    else response.setHeader('content-type', 'text/html').end(`<title>About ${path}</title><main><p>${TEXT}</p></main>`)
  })
  await once(site.listen(0, '127.0.0.1'), 'listening')
  siteUrl = `http://site.test:${(site.address() as AddressInfo).port}`
  folder = mkdtempSync(join(tmpdir(), 'bookmarks-'))
  app = await startApp({
    folder,
    port: 0,
    files: await pageFiles(),
    retryBaseSeconds: 0.02,
    network: { resolve: async () => ['127.0.0.1'], allows: (address) => address === '127.0.0.1' },
    onTrouble: (error) => complaints.push(String(error)),
  })
}, FETCH_TIMEOUT_MS)
afterAll(async () => {
  await browser.close()
  await app.close()
  rmSync(folder, { recursive: true })
  site.closeAllConnections()
  site.close()
})
beforeEach(() => {
  sent.length = 0
})
afterEach(async () => {
  await context.setOffline(false)
  for (const tab of browser.contexts().flatMap((each) => each.pages())) await tab.close()
  expect(complaints).toEqual([])
})

async function newContext(locale: string): Promise<BrowserContext> {
  const made = await browser.newContext({ locale, reducedMotion: 'reduce' })
  made.on('weberror', (error) => complaints.push(error.error().message))
  made.on('request', (request) => {
    if (request.method() === 'POST') sent.push(String(request.postDataJSON()?.url).slice(siteUrl.length))
  })
  return made
}

/** Opens a tab with the page, which the service worker controls. */
async function openTab(within = context): Promise<Page> {
  const tab = await within.newPage()
  await tab.goto(app.url)
  await tab.evaluate(() => navigator.serviceWorker.ready)
  return tab
}

async function enter(tab: Page, url: string): Promise<void> {
  await tab.getByRole('textbox').fill(url)
  await tab.keyboard.press('Enter')
}

async function save(tab: Page, path: string): Promise<void> {
  await enter(tab, siteUrl + path)
  await tab.locator('.item', { hasText: path }).waitFor()
}

const statusOf = (tab: Page, path: string) => tab.locator('.item', { hasText: path }).getAttribute('data-status')
const shows = (tab: Page, path: string, status: string) =>
  tab.locator(`.item[data-status="${status}"]`, { hasText: path }).waitFor(WAIT)

async function bookmarksOf(prefix: string): Promise<string[]> {
  const answer = await fetch(`${app.url}/v1/bookmarks`)
  const { data } = (await answer.json()) as { data: BookmarkShape[] }
  return data.flatMap(({ url }) => (url.startsWith(siteUrl + prefix) ? [url.slice(siteUrl.length)] : [])).reverse()
}

/** Checks that this tab shows each of them as done, and that each was sent once and fetched once. */
async function expectOnceEach(tab: Page, paths: string[]): Promise<void> {
  for (const path of paths) await shows(tab, `About ${path}`, 'done')
  expect(sent).toEqual(paths)
  expect(await bookmarksOf(paths[0]?.slice(0, -1) ?? '')).toEqual(paths)
  for (const path of paths) {
    expect(await tab.locator('.item', { hasText: path }).count()).toBe(1)
    expect(visits.filter((visit) => visit === path)).toEqual([path])
  }
}

test('pages saved offline in a closed tab become one bookmark each once online', async () => {
  const paths = ['/closed-1', '/closed-2', '/closed-3']
  const tab = await openTab()
  await save(tab, '/seen')
  await shows(tab, 'About /seen', 'done')
  await enter(tab, `${siteUrl}/seen#again`)
  await tab.getByText('You have saved this page already.').waitFor(WAIT)
  sent.length = 0
  await context.setOffline(true)
  for (const path of paths) await save(tab, path)
  expect(await Promise.all(paths.map((path) => statusOf(tab, path)))).toEqual(['saving', 'saving', 'saving'])
  await tab.getByText('Offline', { exact: true }).waitFor()
  await tab.close()

  const reopened = await context.newPage()
  await reopened.goto(app.url)
  for (const path of paths) await shows(reopened, path, 'saving')
  await shows(reopened, 'About /seen', 'done')
  expect(await bookmarksOf('/closed')).toEqual([])
  await context.setOffline(false)
  await expectOnceEach(reopened, paths)
})

test('two open tabs still create one bookmark each, and both show it', async () => {
  const paths = ['/both-1', '/both-2', '/both-3']
  const [one, other] = [await openTab(), await openTab()]
  await context.setOffline(true)
  await save(one, '/both-1')
  await save(other, '/both-2')
  await save(one, '/both-3')
  await shows(other, '/both-3', 'saving')
  await context.setOffline(false)
  await expectOnceEach(one, paths)
  await expectOnceEach(other, paths)
})

test('a failed summary is shown in Japanese, and 再試行 retries it', async () => {
  failing.add('/down')
  const tab = await openTab(await newContext('ja-JP'))
  await save(tab, '/down')
  await shows(tab, '/down', 'failed')
  const line = tab.locator('.item', { hasText: '/down' })
  expect(await line.locator('.chip').textContent()).toBe('要約に失敗しました')
  await vi.waitFor(async () => expect(await tab.locator('#said').textContent()).toContain('要約に失敗しました'), WAIT)
  failing.delete('/down')
  await line.getByRole('button', { name: '再試行' }).press('Enter')
  await shows(tab, 'About /down', 'done')

  await tab.getByRole('button', { name: 'English' }).click()
  expect(await tab.getByRole('heading', { level: 1 }).textContent()).toBe('Bookmarks')
  await tab.reload()
  expect(await tab.locator('html').getAttribute('lang')).toBe('en')
})

test('a failure that no retry can fix has no retry button', async () => {
  const tab = await openTab()
  await enter(tab, 'http://10.0.0.1/router')
  await shows(tab, '10.0.0.1', 'failed')
  const line = tab.locator('.item', { hasText: '10.0.0.1' })
  expect(await line.locator('.detail').textContent()).toContain('not a public address')
  expect(await line.getByRole('button').count()).toBe(0)
  await enter(tab, 'javascript:alert(1)')
  expect(await tab.getByRole('alert').textContent()).toContain('not the address of a page')
  for (const colorScheme of ['light', 'dark'] as const) {
    await tab.emulateMedia({ colorScheme })
    expect((await tab.evaluate(contrasts)).filter(({ ratio }) => ratio < 4.5)).toEqual([])
  }
})

test('without localStorage the page works, but keeps nothing', async () => {
  const within = await newContext('en-US')
  await within.addInitScript(() => {
    Object.defineProperty(window, 'localStorage', {
      get() {
        throw new DOMException('Access is denied', 'SecurityError')
      },
    })
  })
  const tab = await openTab(within)
  await save(tab, '/unstored')
  await shows(tab, 'About /unstored', 'done')
  await tab.getByRole('button', { name: '日本語' }).click()
  expect(await tab.locator('html').getAttribute('lang')).toBe('ja')
})

test('a reopened stream does not use up an attempt of a waiting page', async () => {
  const within = await newContext('en-US')
  await within.route('**/v1/bookmarks', async (route) => {
    if (route.request().postData()?.includes('/waits')) await route.fulfill({ status: 503, json: {} })
    else await route.continue()
  })
  const tab = await openTab(within)
  const refused = tab.waitForResponse((response) => response.status() === 503)
  await save(tab, '/waits')
  await refused
  const listed = tab.waitForResponse(
    (response) => response.request().method() === 'GET' && response.url().endsWith('/v1/bookmarks'),
  )
  await tab.evaluate(() => document.dispatchEvent(new Event('visibilitychange')))
  await listed
  // Flushes run one after the other: anything that the stream sends is sent before this.
  await save(tab, '/follows')
  await shows(tab, 'About /follows', 'done')
  expect(sent).toEqual(['/waits', '/follows'])
})

const isFilledIn = (tab: Page, url: string) =>
  vi.waitFor(async () => expect(await tab.getByRole('textbox').inputValue()).toBe(url), WAIT)

test('the bookmarklet and Share fill the address in, and the user saves it', async () => {
  const tab = await openTab()
  const code = await tab.getByRole('link', { name: 'Save the page' }).getAttribute('href')
  await tab.goto(`${siteUrl.replace('site.test', '127.0.0.1')}/from-bookmarklet`)
  const popup = context.waitForEvent('page')
  await tab.evaluate(String(code).replace('javascript:', ''))
  await isFilledIn(await popup, tab.url())
  expect(await bookmarksOf('/from')).toEqual([])

  const { share_target } = await (await fetch(`${app.url}/manifest.webmanifest`)).json()
  const shared = new URLSearchParams({ [share_target.params.text]: `Look: ${siteUrl}/from-share` })
  await tab.goto(`${app.url}${share_target.action}&${shared}`)
  await isFilledIn(tab, `${siteUrl}/from-share`)
  await tab.keyboard.press('Enter')
  await shows(tab, 'About /from-share', 'done')
  const answer = await fetch(`${app.url}/v1/bookmarks?limit=1`)
  expect(await answer.json()).toMatchObject({ data: [{ url: `${siteUrl}/from-share`, created_from: 'share' }] })
})

test('the command starts, prints its address, and stops within two seconds', async () => {
  const data = join(folder, 'command')
  const child: ChildProcess = spawn(process.execPath, [...nodeArgs, join(import.meta.dirname, 'main.ts'), data], {
    env: { ...process.env, PORT: '0' },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const ended = once(child, 'exit')
  if (child.stdout === null) throw new Error('No output')
  for await (const line of createInterface(child.stdout)) {
    const url = /^Save a page: (.+)$/.exec(line)?.[1]
    if (url === undefined) continue
    expect((await fetch(`${url}/sw.js`)).status).toBe(200)
    // An open page does not keep it from stopping.
    await fetch(`${url}/v1/bookmarks/events`)
    break
  }
  const beganMs = performance.now()
  child.kill('SIGINT')
  await ended
  expect(child.exitCode).toBe(0)
  expect(performance.now() - beganMs).toBeLessThan(STOP_MS)
})
