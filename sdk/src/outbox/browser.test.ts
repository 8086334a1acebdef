import { once } from 'node:events'
import { createServer, type Server } from 'node:http'
import { text } from 'node:stream/consumers'
import { type Browser, type BrowserContext, type Page, chromium as playwright } from 'playwright-core'
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest'
import { chromium } from '../../../scripts/testing/services.ts'
import { bundle } from '../testing/bundle.ts'

/** Fetching a browser on the first run may take this long. */
const FETCH_TIMEOUT_MS = 300_000
const WITHIN = { timeout: 30_000, interval: 20 }

const PAGE = `<!doctype html><title>outbox</title><script type="module">
  import { openOutbox } from '/outbox.js'
  const send = ({ key, body }, signal) => fetch('/items', { method: 'POST', body: key + ' ' + body, signal })
  window.told = []
  window.opened = openOutbox({ name: 'test', send }).then((outbox) => {
    window.outbox = outbox
    outbox.onChange(({ item, dropped }) => told.push(item.body + ' ' + (dropped ? 'dropped' : item.status)))
    return 'open'
  }, (error) => error.name + ': ' + error.message)
</script>`

let browser: Browser
let server: Server
let origin: string
let context: BrowserContext
/** The arrived items, as key and body. */
let arrived: string[]
/** The fates of the next items that arrive. */
let answering: 'answer' | 'hang up' | 'wait'

beforeAll(async () => {
  const [launched, { code }] = await Promise.all([
    chromium().then((found) => playwright.launch(found)),
    bundle('outbox/index.ts'),
  ])
  browser = launched
  server = createServer(async (request, response) => {
    if (request.method === 'POST') {
      const item = await text(request)
      if (answering === 'hang up') return void request.socket.destroy()
      arrived.push(item)
      if (answering === 'answer') response.writeHead(201).end('{}')
      return
    }
    const script = request.url === '/outbox.js'
    response.writeHead(200, { 'content-type': script ? 'text/javascript' : 'text/html' }).end(script ? code : PAGE)
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address()
  origin = `http://127.0.0.1:${typeof address === 'object' ? address?.port : ''}`
}, FETCH_TIMEOUT_MS)
afterAll(async () => {
  await browser.close()
  server.closeAllConnections()
  server.close()
})
beforeEach(async () => {
  arrived = []
  answering = 'answer'
  context = await browser.newContext()
})
afterEach(() => context.close())

async function openTab(): Promise<Page> {
  const page = await context.newPage()
  await page.goto(origin)
  expect(await page.evaluate('opened')).toBe('open')
  return page
}

const put = (page: Page, ...bodies: string[]) =>
  page.evaluate(
    `(async () => { for (const body of ${JSON.stringify(bodies)}) await outbox.put(body, { key: 'k-' + body }) })()`,
  )
const list = (page: Page): Promise<string[]> =>
  page.evaluate(
    `outbox.list().then((items) => items.map((item) => item.body + ' ' + item.status + ' ' + item.attempts))`,
  )
const told = (page: Page): Promise<string[]> => page.evaluate('told')

test('items of a closed offline tab arrive once when the network is back', async () => {
  const before = await openTab()
  await context.setOffline(true)
  await put(before, 'a', 'b', 'c')
  expect(await list(before)).toEqual(['a queued 0', 'b queued 0', 'c queued 0'])
  await before.close()
  await context.setOffline(false)
  answering = 'hang up'
  const after = await openTab()
  expect(await list(after)).toHaveLength(3)
  answering = 'answer'
  await expect.poll(() => list(after), WITHIN).toEqual([])
  expect(arrived).toEqual(['k-a a', 'k-b b', 'k-c c'])
  expect((await told(after)).filter((line) => line.endsWith('sent'))).toEqual(['a sent', 'b sent', 'c sent'])
})

test('one of two tabs sends, both are notified, and the other takes over', async () => {
  const [one, other] = [await openTab(), await openTab()]
  await context.setOffline(true)
  for (const [page, name] of [
    [one, 'x'],
    [other, 'y'],
    [one, 'z'],
  ] as const)
    await put(page, `${name}1`, `${name}2`)
  await context.setOffline(false)
  await expect.poll(() => list(one), WITHIN).toEqual([])
  const all = ['x1', 'x2', 'y1', 'y2', 'z1', 'z2']
  expect(arrived).toEqual(all.map((body) => `k-${body} ${body}`))
  for (const page of [one, other]) {
    await expect
      .poll(async () => (await told(page)).filter((line) => line.endsWith('sent')), WITHIN)
      .toEqual(all.map((body) => `${body} sent`))
  }

  answering = 'wait'
  await put(one, 'cut')
  await expect.poll(() => arrived.at(-1), WITHIN).toBe('k-cut cut')
  answering = 'answer'
  await one.close()
  await expect.poll(() => list(other), WITHIN).toEqual([])
  expect(arrived.slice(all.length)).toEqual(['k-cut cut', 'k-cut cut'])
})

test('a full, missing or newer IndexedDB is reported', async () => {
  const page = await openTab()
  const session = await context.newCDPSession(page)
  await session.send('Storage.overrideQuotaForOrigin', { origin, quotaSize: 100_000 })
  const full = await page.evaluate(
    `outbox.put('x'.repeat(1_000_000)).catch((error) => error.name + ': ' + error.message)`,
  )
  expect(full).toMatch(/^OutboxFull: The browser has no more storage for this site, so the item was not stored/)
  expect(await list(page)).toEqual([])
  await session.send('Storage.overrideQuotaForOrigin', { origin })
  await put(page, 'fits')

  await page.evaluate(`outbox.close().then(() => new Promise((resolve) => {
    indexedDB.open('ichido-outbox-test', 2).onsuccess = ({ target }) => { target.result.close(); resolve() }
  }))`)
  await page.reload()
  expect(await page.evaluate('opened')).toMatch(/^OutboxTooNew: .* reload the page$/)

  const bare = await context.newPage()
  await bare.addInitScript(`Object.defineProperty(globalThis, 'indexedDB', { value: undefined })`)
  await bare.goto(origin)
  expect(await bare.evaluate('opened')).toMatch(/^OutboxUnavailable: .*private window.*no IndexedDB$/)
})

test('an invalid row is moved aside; the others are sent', async () => {
  const page = await openTab()
  await context.setOffline(true)
  await put(page, 'a')
  await page.evaluate(`new Promise((resolve) => {
    indexedDB.open('ichido-outbox-test').onsuccess = ({ target: { result: db } }) => {
      const transaction = db.transaction('items', 'readwrite')
      transaction.objectStore('items').add({ id: 'wrong', key: 'k-b', attempts: 'many' })
      transaction.oncomplete = () => resolve(db.close())
    }
  })`)
  const warning = page.waitForEvent('console', (message) => message.type() === 'warning')
  expect(await list(page)).toEqual(['a queued 0'])
  expect((await warning).text()).toContain('cannot be read: body is missing. It was moved to "damaged"')
  await put(page, 'b')
  await context.setOffline(false)
  await expect.poll(() => arrived, WITHIN).toEqual(['k-a a', 'k-b b'])
})
