import type { Browser, BrowserContext, Page, Route } from 'playwright-core'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { full } from '../../scripts/testing/size.ts'
import { LOCAL_ADMIN } from '../../server/src/services/access/access.ts'
import { turnAlerts } from '../../server/src/store/system/alerts.ts'
import { lease, WORKER } from '../../server/src/testing/http/cloud-worker.ts'
import { seize } from '../../server/src/testing/nodes/reaper.ts'
import { registered } from '../../server/src/testing/services/workers.ts'
import { barriers } from './axe.ts'
import { type Filled, fillStage, PAGES, settled } from './filled.ts'
import { FETCH_TIMEOUT_MS, openBrowser, type Stage, setStage, shoot, watch } from './stage.ts'
import { shortId, submit } from './work.ts'

const TIMEOUT_MS = 240_000
/** A page reads what rarely changes every ten seconds. */
const LIVE = { timeout: 30_000 }

let browser: Browser
let stage: Filled
let context: BrowserContext

beforeAll(async () => {
  browser = await openBrowser()
  stage = await fillStage(browser)
  context = await stage.enter(stage.adminToken)
}, FETCH_TIMEOUT_MS)
afterEach(async () => {
  await context.unrouteAll()
  for (const page of context.pages()) await page.close()
})
afterAll(async () => {
  await context.close()
  await stage.close()
  await browser.close()
})

const nameOf = (path: string) => path.slice(1).replaceAll(/\W+/g, '-') || 'overview'

/** Each page in a tab of its own. They need one answer or one moment together, not one after the other. */
async function openAll(): Promise<[path: string, page: Page][]> {
  return Promise.all(
    PAGES.map(async (path): Promise<[string, Page]> => {
      const page = await context.newPage()
      await page.goto(`${stage.url}${stage.placeOf(path)}`)
      return [path, page]
    }),
  )
}

/** What a page shows of its data: the rows of its tables, its cards and its facts. */
const shown = (page: Page) => page.locator('main :is(tbody tr, dl > *, article, .figures li)').count()
const alerts = (page: Page) => page.locator('main').getByRole('alert')

/** A page that becomes visible again reads its data at once. */
const look = (page: Page) => page.evaluate(() => void window.dispatchEvent(new Event('visibilitychange')))

test(
  'while the data load, each page says so; the data appear without a reload',
  async () => {
    let release = () => {}
    const released = new Promise<void>((resolve) => {
      release = resolve
    })
    await context.route('**/v1/**', async (route) => {
      if (!route.request().url().includes('/v1/session')) await released
      await route.continue()
    })
    const pages = await openAll()
    for (const [path, page] of pages) {
      await page.getByRole('status', { name: 'Loading' }).first().waitFor()
      await shoot(page, `${nameOf(path)} loading`)
      expect([path, await barriers({ page })]).toEqual([path, []])
    }
    release()
    for (const [path, page] of pages) {
      await settled(page)
      await expect.poll(async () => [path, (await shown(page)) > 0], LIVE).toEqual([path, true])
    }
  },
  TIMEOUT_MS,
)

const FAILURES = {
  'the server fails': (route: Route) => route.fulfill({ status: 500, json: problem('INTERNAL', 'The server failed') }),
  'the server is overloaded': (route: Route) =>
    route.fulfill({ status: 503, json: problem('UNAVAILABLE', 'The store does not answer') }),
  'the server is away': (route: Route) => route.abort('connectionrefused'),
}
const problem = (code: string, message: string) => ({ error: { code, message } })

test(
  'when the server fails or is away, each page says so, keeps its data, and recovers by itself',
  async () => {
    const pages = await openAll()
    const before = new Map<Page, number>()
    for (const [, page] of pages) {
      await settled(page)
      before.set(page, await shown(page))
    }
    for (const [name, fail] of Object.entries(FAILURES)) {
      await context.route('**/v1/**', fail)
      await Promise.all(pages.map(([, page]) => look(page)))
      for (const [place, [path, page]] of pages.entries()) {
        await alerts(page).first().waitFor(LIVE)
        const said = (await alerts(page).allInnerTexts()).join(' ')
        expect([path, said]).toEqual([path, expect.stringMatching(/[A-Z]\w* \w+ \w+/)])
        expect([path, await shown(page)]).toEqual([path, before.get(page)])
        // The words of a problem look alike on all pages.
        if (!full && place > 0) continue
        await shoot(page, `${nameOf(path)} when ${name}`)
        expect([path, await barriers({ page })]).toEqual([path, []])
      }
      await context.unrouteAll()
      await Promise.all(pages.map(([, page]) => look(page)))
      for (const [path, page] of pages) {
        await expect.poll(async () => [path, await alerts(page).count()], LIVE).toEqual([path, 0])
      }
    }
  },
  TIMEOUT_MS,
)

test(
  'a page that never had an answer says so, and has its data when the server answers',
  async () => {
    await context.route('**/v1/**', (route) =>
      route.request().url().includes('/v1/session') ? route.continue() : FAILURES['the server is overloaded'](route),
    )
    const pages = await openAll()
    for (const [path, page] of pages) {
      await alerts(page).first().waitFor(LIVE)
      await expect.poll(async () => [path, await page.locator('main .skeleton').count()], LIVE).toEqual([path, 0])
    }
    await context.unrouteAll()
    for (const [path, page] of pages) {
      await page.getByRole('button', { name: 'Try again' }).first().click()
      await expect.poll(async () => [path, (await shown(page)) > 0], LIVE).toEqual([path, true])
    }
  },
  TIMEOUT_MS,
)

/** A change on the server for each page, and the text that the open page must show. */
async function changeAll(): Promise<Record<string, string>> {
  const { http } = stage
  const { services } = http
  const by = { ...LOCAL_ADMIN, userId: 'live-user' }
  const job = await submit(stage, { queue: 'live-queue', key: 'live-key' })
  await submit(stage, { queue: 'live-dead' })
  const { lease_id } = await lease(http, 'live-dead')
  const error = { code: 'LIVE_ERROR', message: 'It broke' }
  await services.runs.finish(WORKER, lease_id, { verb: 'fail', error, retryable: false })
  await services.jobs.cancel(LOCAL_ADMIN, stage.jobs.running)
  await registered(services, { name: 'live-worker' })
  await services.definitions.create(by, 'live-definition', { kind: 'report' })
  await services.definitions.update(by, 'nightly', { kind: 'live-kind' }, null)
  await services.quotas.put(by, 'live-limited', { max_concurrent: 3, cost_limit: null, period: 'day' })
  await services.access.createToken(by, { userId: 'live-user', role: 'viewer', name: 'live-token', ttlSeconds: null })
  const alert = { rule: 'queue_unserved' as const, subject: 'live-alert', message: 'It waits', alertId: job }
  const turn = { open: [alert], close: [], keepMs: 0, batchMax: 10 }
  await services.deps.store.write(turnAlerts(await seize(services.deps.store), turn))
  const [webhook] = (await services.webhooks.list(1, null)).data
  await services.webhooks.change(by, webhook?.webhook_id ?? '', { description: 'live-webhook' })
  await services.settings.put(by, 'retain_batch_max', 700)
  const loop = { name: 'live-loop', intervalMs: 5_000, lastEndedAtMs: Date.now(), lastTookMs: 12, late: false }
  services.system.watch(() => ({ epoch: 1, leadsSinceMs: null, loops: [loop] }))
  const { PENDING } = (await http.call('GET', '/v1/stats', { token: stage.adminToken })).body as { PENDING: number }
  return {
    '/': `${PENDING}`,
    '/jobs': shortId(job),
    '/jobs/:id': 'Canceling',
    '/queues': 'live-queue',
    '/workers': 'live-worker',
    '/schedules': 'live-definition',
    '/schedules/:name': 'live-kind',
    '/dead-letters': 'LIVE_ERROR',
    '/users': 'live-limited',
    '/keys': 'live-key',
    '/tokens': 'live-token',
    '/audit': 'live-limited',
    '/alerts': 'live-alert',
    '/webhooks': 'live-webhook',
    '/webhooks/:id': 'live-webhook',
    '/settings': 'live-user',
    '/system': 'live-loop',
  }
}

test(
  'what changes on the server appears on each open page without a reload',
  async () => {
    const pages = await openAll()
    for (const [, page] of pages) await settled(page)
    const before = new Map<Page, string>()
    for (const [, page] of pages) before.set(page, await page.locator('main').innerText())
    const loads: string[] = []
    for (const [path, page] of pages) page.on('load', () => loads.push(path))
    const texts = await changeAll()
    for (const [path, page] of pages) {
      const text = texts[path]
      if (text === undefined) throw new Error(`${path} needs a change that it shows`)
      if (path !== '/') expect(before.get(page)).not.toContain(text)
      await page
        .locator('main')
        .getByText(text, { exact: path === '/' })
        .first()
        .waitFor(LIVE)
    }
    expect(loads).toEqual([])
  },
  TIMEOUT_MS,
)

test(
  'without data each page says what belongs there, in both languages',
  async () => {
    const empty: Stage = await setStage(browser, { colorScheme: 'dark', viewport: { width: 390, height: 844 } })
    const wide = await browser.newContext({ locale: 'ja-JP', viewport: { width: 2_560, height: 1_300 } })
    const { page: narrow, url, complaints } = empty
    const japanese = await wide.newPage()
    complaints.push(...watch(japanese))
    for (const path of PAGES) {
      for (const page of [narrow, japanese]) {
        await page.goto(`${url}${path.replace(':id', UNKNOWN_ID).replace(':name', 'unknown')}`)
        await settled(page)
        // A sentence about something unknown is a problem. An empty list is none.
        expect([path, (await alerts(page).count()) > 0]).toEqual([path, path.includes(':')])
        expect([path, await page.locator('main tbody:not(:has(tr))').count()]).toEqual([path, 0])
        expect((await page.locator('main').innerText()).length).toBeGreaterThan(20)
        expect([path, await barriers({ page })]).toEqual([path, []])
      }
      await shoot(narrow, `${nameOf(path)} empty`)
      await shoot(japanese, `${nameOf(path)} empty in Japanese`)
    }
    expect(complaints.filter((text) => !text.includes('404'))).toEqual([])
    await wide.close()
    await empty.close()
  },
  TIMEOUT_MS,
)

const UNKNOWN_ID = '01990000-0000-7000-8000-000000000000'
