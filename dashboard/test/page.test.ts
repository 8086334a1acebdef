import { randomUUID } from 'node:crypto'
import type { AddressInfo } from 'node:net'
import { type Browser, type Page, chromium as playwright } from 'playwright-core'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { chromium } from '../../../../scripts/testing/services.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import { type TestApp, testApp } from '../../testing/http/app.ts'
import { finish, lease } from '../../testing/http/cloud-worker.ts'
import { contrasts } from '../../testing/store/contrasts.ts'

/** Fetching a browser on the first run may take this long. */
const FETCH_TIMEOUT_MS = 300_000

let browser: Browser
let http: TestApp
let url: string
let page: Page
let complaints: string[]

beforeAll(async () => {
  browser = await playwright.launch(await chromium())
}, FETCH_TIMEOUT_MS)
afterAll(() => browser.close())

beforeEach(async () => {
  http = await testApp('sqlite')
  url = await listen(http)
  page = await newPage()
})
afterEach(async () => {
  await page.close()
  await http.close()
})

async function listen({ app }: TestApp): Promise<string> {
  await app.listen({ port: 0, host: '127.0.0.1' })
  return `http://127.0.0.1:${(app.server.address() as AddressInfo).port}`
}

/** Errors and blocked requests of the browser end up in `complaints`. */
async function newPage(options: Parameters<Browser['newPage']>[0] = {}): Promise<Page> {
  const made = await browser.newPage({ reducedMotion: 'reduce', ...options })
  complaints = []
  made.on('console', (message) => message.type() === 'error' && complaints.push(message.text()))
  made.on('pageerror', (error) => complaints.push(error.message))
  return made
}

const QUEUE = 'cloud.page'

async function submit(payload: unknown = { n: 1 }, key: string | null = null, queue = QUEUE): Promise<string> {
  const outcome = await http.services.submission.submit(
    LOCAL_ADMIN,
    { kind: 'cloud.train', queue, payload, max_attempts: 1 },
    { key },
  )
  if (outcome.kind === 'refused') throw new Error(outcome.refusal.message)
  return outcome.jobId
}

const rowOf = (id: string) => page.locator(`#rows tr[data-id="${id}"]`)
const pill = (id: string, text: string) => rowOf(id).locator('.pill', { hasText: text })
const openDetail = (id: string) => page.getByRole('button', { name: `Details of job ${id.slice(-8)}` }).click()

describe('the page', () => {
  test('is served with its types, a strict policy and ETags', async () => {
    for (const [path, type] of [
      ['/', 'text/html; charset=utf-8'],
      ['/page.js', 'text/javascript; charset=utf-8'],
      ['/page-dom.js', 'text/javascript; charset=utf-8'],
      ['/page-detail.js', 'text/javascript; charset=utf-8'],
      ['/page.css', 'text/css; charset=utf-8'],
      ['/page-icon.svg', 'image/svg+xml'],
    ] as const) {
      const { status, headers } = await http.call('GET', path)
      expect({ status, ...headers }).toMatchObject({
        status: 200,
        'content-type': type,
        'cache-control': 'no-cache',
        'x-content-type-options': 'nosniff',
      })
      expect(headers['content-security-policy']).toMatch(/^default-src 'none'; script-src 'self'; style-src 'self';/)
      const again = await http.call('GET', path, { headers: { 'if-none-match': String(headers.etag) } })
      expect(again).toMatchObject({ status: 304, text: '' })
    }
  })

  test('without jobs shows the command that submits one, and no error', async () => {
    await page.goto(url)
    const line = `ICHIDO_URL=${url} npm run -s ichido -- demo`
    await page.getByText(line).waitFor()
    expect(await page.getByRole('button', { name: 'Copy the command' }).getAttribute('data-copy')).toBe(line)
    await page.locator('#live[data-live="on"]').waitFor()
    expect(await page.getByRole('link', { name: 'API docs' }).getAttribute('href')).toBe('docs')
    expect(complaints).toEqual([])
  })

  test('works under a base path', async () => {
    const under = await testApp('sqlite', { basePath: '/ichido' })
    try {
      const at = `${await listen(under)}/ichido`
      await page.goto(at)
      await page.getByText('No jobs yet').waitFor()
      expect(await page.locator('#demo').textContent()).toBe(`ICHIDO_URL=${at} npm run -s ichido -- demo`)
      expect(new URL(page.url()).pathname).toBe('/ichido/')
      expect(complaints).toEqual([])
    } finally {
      await under.close()
    }
  })
})

test('a submitted job appears, and its row changes in place as the job moves', async () => {
  await page.goto(url)
  await page.getByText('No jobs yet').waitFor()
  const id = await submit()
  await pill(id, 'Pending').waitFor()
  await rowOf(id).evaluate((row) => row.setAttribute('data-seen', 'yes'))
  const { lease_id } = await lease(http, QUEUE)
  await pill(id, 'Running').waitFor()
  await page.locator('.chip', { hasText: 'Running' }).locator('b', { hasText: '1' }).waitFor()
  await finish(http, lease_id)
  await pill(id, 'Succeeded').waitFor()
  expect(await rowOf(id).getAttribute('data-seen')).toBe('yes')
  const later = await submit()
  await pill(later, 'Pending').waitFor()
  expect(await page.locator('#rows tr').evaluateAll((rows) => rows.map((row) => row.getAttribute('data-id')))).toEqual([
    later,
    id,
  ])
  expect(complaints).toEqual([])
})

test('details show payload, key and runs as text, and the job is cancelled there', async () => {
  const markup = '<img src=x onerror=alert(1)>'
  const id = await submit({ note: markup }, 'ci-build-7')
  await page.goto(url)
  await openDetail(id)
  const panel = page.getByRole('region', { name: `Job ${id.slice(-8)}` })
  await panel.getByText(markup).waitFor()
  await panel.getByText('ci-build-7').waitFor()
  expect(await panel.locator('img').count()).toBe(0)
  expect(await panel.locator('#detail-runs tr').count()).toBe(1)
  expect(new URL(page.url()).hash).toBe(`#${id}`)
  // The URL of the job opens the job at once.
  const other = await browser.newPage()
  await other.goto(`${url}/#${id}`)
  await other
    .getByRole('region', { name: `Job ${id.slice(-8)}` })
    .getByText('ci-build-7')
    .waitFor()
  await other.close()

  await panel.getByRole('button', { name: 'Cancel this job' }).click()
  await panel.locator('header .pill', { hasText: 'Canceled' }).waitFor()
  await pill(id, 'Canceled').waitFor()
  expect(await panel.getByRole('button', { name: 'Cancel this job' }).count()).toBe(0)
  expect((await http.services.jobs.get(LOCAL_ADMIN, id)).state).toBe('CANCELED')

  await page.keyboard.press('Escape')
  await panel.waitFor({ state: 'hidden' })
  expect(await page.evaluate(() => document.activeElement?.textContent)).toBe(id.slice(-8))
  expect(complaints).toEqual([])
})

test('a running job is asked to stop, and the page says so; a failed one shows its error', async () => {
  const [running, failing] = [await submit(), await submit({}, null, 'cloud.fails')]
  await lease(http, QUEUE)
  const { lease_id } = await lease(http, 'cloud.fails')
  const error = { code: 'OOM', message: 'out of memory', traceback: 'at step 3' }
  await http.services.runs.finish('cloud-worker', lease_id, { verb: 'fail', error, retryable: false })
  await page.goto(url)
  await rowOf(failing).getByText('OOM: out of memory').waitFor()
  await openDetail(failing)
  await page.locator('#detail-traceback', { hasText: 'at step 3' }).waitFor()
  expect(await page.locator('#detail').getByText('OOM: out of memory').count()).toBe(1)
  expect(await page.locator('#detail').getByRole('heading', { name: 'Result' }).count()).toBe(0)
  await openDetail(running)
  const cancel = page.getByRole('button', { name: 'Cancel this job' })
  await cancel.click()
  await pill(running, 'Canceling').waitFor()
  expect(await cancel.isDisabled()).toBe(true)
})

test('a job that succeeded shows its result, and a worker with a long name takes one line', async () => {
  const worker = `worker-${'long'.repeat(40)}`
  const id = await submit()
  const request = { queues: [QUEUE], kinds: ['cloud.train'], max: 1, waitMs: 0, startId: randomUUID() }
  const [leased] = await http.services.runs.lease(worker, request)
  if (leased === undefined) throw new Error('There is nothing to lease')
  await page.goto(url)
  await openDetail(id)
  const cell = page.locator('#detail-runs .clip')
  await cell.waitFor()
  expect(await cell.getAttribute('title')).toBe(worker)
  const [name, run] = [await cell.boundingBox(), await page.locator('#detail-runs td').first().boundingBox()]
  expect(name?.height).toBe(run?.height)
  expect(name?.width).toBeGreaterThan(60)
  expect(await page.locator('#detail-outcome').isVisible()).toBe(false)
  const none = { summaryText: null, freqsCsv: null, meta: null, costMicros: null }
  await http.services.runs.finish(worker, leased.lease_id, { verb: 'finish', result: '{"sum": 7}', ...none })
  await page.locator('#detail-result', { hasText: '"sum": 7' }).waitFor()
  expect(complaints).toEqual([])
})

test('jobs are filtered by state and queue', async () => {
  const [one, other] = [await submit(), await submit({}, null, 'other')]
  await http.services.jobs.cancel(LOCAL_ADMIN, other)
  await page.goto(url)
  await rowOf(one).waitFor()
  const canceled = page.getByRole('button', { name: '1 Canceled' })
  await canceled.click()
  await rowOf(one).waitFor({ state: 'detached' })
  expect(await rowOf(other).count()).toBe(1)
  expect(await canceled.getAttribute('aria-pressed')).toBe('true')
  await page.getByLabel('Queue').fill(QUEUE)
  await page.getByText('No job matches').waitFor()
  await page.getByRole('button', { name: 'Show all jobs' }).click()
  await rowOf(one).waitFor()
  await rowOf(other).waitFor()
})

test('it shows an outage of the server, and recovers by itself', async () => {
  const id = await submit()
  await page.goto(url)
  await rowOf(id).waitFor()
  await page.context().setOffline(true)
  await page.getByRole('alert').getByText('The server cannot be reached').waitFor()
  expect(await rowOf(id).count()).toBe(1)
  const later = await submit()
  await page.context().setOffline(false)
  await rowOf(later).waitFor()
  expect(await page.getByRole('alert').count()).toBe(0)
  expect(await page.locator('#live').innerText()).toBe('Live')
})

test('a hidden tab sends no requests', async () => {
  await page.clock.install()
  await page.goto(url)
  await page.locator('#live[data-live="on"]').waitFor()
  let asked = 0
  page.on('request', () => asked++)
  const setHidden = (hidden: boolean) =>
    page.evaluate((value) => {
      Object.defineProperty(document, 'hidden', { value, configurable: true })
      document.dispatchEvent(new Event('visibilitychange'))
    }, hidden)
  await page.clock.runFor(1_100)
  await expect.poll(() => asked).toBeGreaterThan(0)
  await setHidden(true)
  await page.locator('#live', { hasText: 'Paused' }).waitFor()
  // Requests are reported in order, so no earlier one follows this one.
  await page.evaluate(() => fetch('healthz').then((answer) => answer.text()))
  asked = 0
  await page.clock.runFor(30_000)
  expect(asked).toBe(0)
  await setHidden(false)
  await expect.poll(() => asked).toBeGreaterThan(0)
})

test('with credentials required it asks for a token, and keeps it for the tab', async () => {
  const id = await submit()
  const token = await http.token('local', 'admin')
  await page.goto(url)
  const field = page.getByLabel('API token')
  await field.waitFor()
  const command = page.locator('#sign-in pre')
  const lines = await command.evaluate((pre) => pre.clientHeight / Number.parseFloat(getComputedStyle(pre).lineHeight))
  expect(lines).toBeLessThan(3)
  expect(await page.locator('#rows tr').count()).toBe(0)
  await field.fill('ichido_wrong')
  await page.keyboard.press('Enter')
  await page.getByRole('alert').getByText('unknown, expired or revoked').waitFor()
  await field.fill(token)
  await page.getByRole('button', { name: 'Sign in' }).click()
  await rowOf(id).waitFor()
  await page.reload()
  await rowOf(id).waitFor()
  await page.getByRole('button', { name: 'Forget token' }).click()
  await field.waitFor()
})

test('a submitter sees its own jobs, without the counts of all', async () => {
  await submit()
  const token = await http.token('ann', 'submitter')
  const mine = await http.call('POST', '/v1/jobs', { body: { kind: 'work' }, token })
  await page.goto(url)
  await page.getByLabel('API token').fill(token)
  await page.keyboard.press('Enter')
  await rowOf((mine.body as { job_id: string }).job_id).waitFor()
  expect(await page.locator('#rows tr').count()).toBe(1)
  expect(await page.locator('.chip b').first().innerText()).toBe('–')
})

describe('accessibility', () => {
  test('every control has a name, and the table its caption and headings', async () => {
    await submit()
    await page.goto(url)
    await page.locator('#rows tr').waitFor()
    await page.locator('#rows .open').click()
    await page.locator('#detail-runs tr').waitFor()
    expect(await page.getByRole('table', { name: 'The latest jobs, newest first' }).count()).toBe(1)
    const controls = page.locator('button:visible, input:visible, a:visible')
    const named = page.locator('body').getByRole('button', { name: /\S/ })
    const [all, buttons] = [await controls.count(), await named.count()]
    const inputs = (await page.getByLabel('Queue').count()) + (await page.getByRole('link', { name: /\S/ }).count())
    expect(buttons + inputs).toBe(all)
    expect(await page.locator('th:not([scope])').count()).toBe(0)
    expect(await page.locator('h1').count()).toBe(1)
    expect(await page.locator('html').getAttribute('lang')).toBe('en')
    expect(await page.locator('#summary').getAttribute('aria-live')).toBe('polite')
  })

  test('a job is opened, copied and closed with the keyboard alone', async () => {
    const id = await submit()
    await page.context().grantPermissions(['clipboard-read', 'clipboard-write'])
    await page.goto(url)
    await rowOf(id).locator('.open').focus()
    await page.keyboard.press('Tab')
    await page.keyboard.press('Enter')
    await rowOf(id).getByText('Copied').waitFor()
    expect(await page.evaluate(() => navigator.clipboard.readText())).toBe(id)
    await page.keyboard.press('Shift+Tab')
    await page.keyboard.press('Enter')
    await page.locator('#detail:focus').waitFor()
    await page.keyboard.press('Escape')
    await page.locator('.open:focus').waitFor()
  })

  test.each(['light', 'dark'] as const)('text has enough contrast in %s', async (colorScheme) => {
    await submit()
    await submit()
    await http.services.jobs.cancel(LOCAL_ADMIN, await submit())
    await lease(http, QUEUE)
    await page.close()
    page = await newPage({ colorScheme })
    await page.goto(url)
    await pill(await submit(), 'Pending').waitFor()
    await page.locator('#rows .open').first().click()
    await page.locator('#detail-runs tr').waitFor()
    const faint = (await page.evaluate(contrasts)).filter(({ ratio }) => ratio < 4.5)
    expect(faint).toEqual([])
  })

  /** Wider letter spacing stands for the wider fonts of other systems. */
  test.each(['0', '0.12em'])('on a phone nothing is wider than the screen, letters %s apart', async (space) => {
    await page.close()
    page = await newPage({ viewport: { width: 390, height: 844 } })
    const id = await submit({ url: `https://example.org/${'long'.repeat(60)}` }, 'k'.repeat(200), 'q'.repeat(100))
    const { lease_id } = await lease(http, 'q'.repeat(100))
    await finish(http, lease_id)
    await page.goto(url)
    await page.evaluate((letterSpacing) => {
      const sheet = new CSSStyleSheet()
      sheet.replaceSync(`* { letter-spacing: ${letterSpacing} !important }`)
      document.adoptedStyleSheets = [sheet]
    }, space)
    await pill(id, 'Succeeded').waitFor()
    const overflow = () => page.evaluate(() => document.documentElement.scrollWidth - innerWidth)
    /** The list hides overflowing content. */
    const beyond = (table: string) =>
      page
        .locator(table)
        .evaluate((one) => one.getBoundingClientRect().right - (one.parentElement?.getBoundingClientRect().right ?? 0))
    expect(await overflow()).toBe(0)
    expect(await beyond('#table')).toBeLessThanOrEqual(0)
    await rowOf(id).locator('.open').click()
    await page.locator('#detail-runs tr').waitFor()
    expect(await overflow()).toBe(0)
    expect(await beyond('#detail table')).toBeLessThanOrEqual(0)
    const detail = await page.locator('#detail').evaluate((panel) => panel.scrollWidth - panel.clientWidth)
    expect(detail).toBe(0)
    await page.keyboard.press('Escape')
  })
})
