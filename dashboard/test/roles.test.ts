import type { Browser, BrowserContext, Page, Request } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { ROLES, type Role } from '../../server/src/core/limits/roles.ts'
import { barriers } from './axe.ts'
import { type Filled, fillStage, PAGES, settled } from './filled.ts'
import { FETCH_TIMEOUT_MS, openBrowser, shoot } from './stage.ts'

/** Pressing each button of each page takes a while. */
const TIMEOUT_MS = 240_000

let browser: Browser
let stage: Filled

beforeAll(async () => {
  browser = await openBrowser()
  stage = await fillStage(browser)
}, FETCH_TIMEOUT_MS)
afterAll(async () => {
  await stage.close()
  await browser.close()
})

/** A change that a page has asked for. */
interface Change {
  method: string
  path: string
  body: unknown
}

/** The route of a change, without ids and names. */
const routeOf = ({ method, path }: Change) =>
  `${method} ${path
    .replace(/\?.*/, '')
    .replace(/[0-9a-f]{8}-[0-9a-f-]{27}/g, '{id}')
    .replace(/\/(definitions|queues|quotas|settings|idempotency-keys|hooks)\/[^/]+/, '/$1/{name}')}`

const REFUSED = { error: { code: 'JOB_NOT_ACTIVE', message: 'The test refuses every change' } }

/** A visitor who presses every button. The changes are written down, and do not reach the server. */
class Visitor {
  readonly page: Page
  readonly changes: Change[] = []
  /** Calls that the server refused to this role. */
  readonly refused: string[] = []
  readonly #dialogs = new Set<string>()
  readonly #onDialog: (page: Page, title: string) => Promise<void>

  private constructor(page: Page, onDialog: (page: Page, title: string) => Promise<void>) {
    this.page = page
    this.#onDialog = onDialog
    page.on('response', (answer) => {
      if ([401, 403].includes(answer.status())) this.refused.push(`${answer.status()} ${answer.url()}`)
    })
  }

  static async enter(context: BrowserContext, onDialog: (page: Page, title: string) => Promise<void> = async () => {}) {
    const visitor = new Visitor(await context.newPage(), onDialog)
    await visitor.page.route('**/v1/**', (route) => {
      const request = route.request()
      if (isRead(request)) return route.continue()
      const path = request.url().slice(stage.url.length)
      visitor.changes.push({ method: request.method(), path, body: request.postDataJSON() as unknown })
      return route.fulfill({ status: 409, json: REFUSED, headers: { 'should-retry': 'false' } })
    })
    return visitor
  }

  async go(path: string): Promise<void> {
    await this.page.goto(`${stage.url}${path}`)
    await settled(this.page)
    // Rows are chosen for the buttons that change many.
    for (const box of await this.page.locator('main tbody').getByRole('checkbox').all()) await box.check()
  }

  /** The words of the buttons that can be pressed now. Their numbers may change at any time. */
  async #words(): Promise<string[]> {
    const words = await this.#buttons.evaluateAll((all) =>
      all.map((button) => (button as HTMLElement).innerText.trim()),
    )
    return words.map((word) => word.replace(/[\d,]+/g, '#'))
  }

  get #buttons() {
    return this.page.locator('main button:visible:enabled')
  }

  /** Presses one button of each sort. */
  async pressAll(path: string): Promise<void> {
    await this.go(path)
    for (const word of new Set(await this.#words())) {
      if (!(await this.#words()).includes(word)) await this.go(path)
      await this.#buttons.nth((await this.#words()).indexOf(word)).click()
      await this.page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve))))
      if ((await this.#dialog.count()) === 0) await this.go(path)
      else await this.#submit()
    }
  }

  get #dialog() {
    return this.page.getByRole('dialog')
  }

  async #submit(): Promise<void> {
    const title = (await this.#dialog.getAttribute('aria-label')) ?? ''
    if (!this.#dialogs.has(title)) {
      this.#dialogs.add(title)
      await this.#onDialog(this.page, title)
    }
    for (const field of await this.#dialog.locator('input:visible:not([type=checkbox]):not([type=radio])').all()) {
      if (await field.isEditable()) await field.fill(await exampleOf(field))
    }
    const submit = this.#dialog.locator('button[type=submit]')
    if ((await submit.count()) > 0) {
      await expect.poll(() => submit.isEnabled(), { timeout: 20_000, message: title }).toBe(true)
      const before = this.changes.length
      await submit.click()
      await expect.poll(() => this.changes.length > before, { message: `${title} asks for its change` }).toBe(true)
    }
    await this.page.keyboard.press('Escape')
    await this.#dialog.waitFor({ state: 'detached' })
  }
}

/** A request that changes nothing: the server only counts or previews. */
function isRead(request: Request): boolean {
  if (request.method() === 'GET') return true
  const body = request.postDataJSON() as { dry_run?: boolean } | null
  return request.url().endsWith('/preview') || body?.dry_run === true
}

/** A value that the field accepts, other than the one that it has. */
async function exampleOf(field: ReturnType<Page['locator']>): Promise<string> {
  const [type, value] = [await field.getAttribute('type'), await field.inputValue()]
  if (type === 'number' || /^[\d.]+$/.test(value)) return value === '7' ? '8' : '7'
  if (type === 'url') return 'https://93.184.216.34/'
  if (type === 'datetime-local') return value === '' ? '2026-01-01T00:00' : value
  return value === '' ? 'example' : value
}

/** The pages that the links of the pages lead to, of each route one. */
async function linked(page: Page): Promise<string[]> {
  const hrefs = await page
    .locator('a[href]')
    .evaluateAll((links) => links.map((link) => (link as HTMLAnchorElement).href.replace(/#.*/, '')))
  return hrefs.filter((href) => href.startsWith(`${stage.url}/`)).map((href) => href.slice(stage.url.length))
}

const patternOf = (href: string): string =>
  PAGES.find((path) => new RegExp(`^${path.replace(/:\w+/, '[^/]+')}$`).test(href.replace(/\?.*/, ''))) ?? href

/** Changes that each role is offered, among others. */
const OFFERED: Record<Role, string[]> = {
  viewer: [],
  submitter: ['POST /v1/jobs/{id}/cancel', 'POST /v1/operations', 'PATCH /v1/idempotency-keys/{name}'],
  operator: [
    'POST /v1/jobs/{id}/cancel',
    'POST /v1/operations',
    'PUT /v1/queues/{name}',
    'DELETE /v1/workers/{id}',
    'POST /v1/definitions/{name}/pause',
    'POST /v1/webhooks/{id}/test',
  ],
  admin: ['POST /v1/tokens', 'DELETE /v1/tokens/{id}', 'PUT /v1/settings/{name}', 'PUT /v1/quotas/{name}'],
}

describe.each(ROLES)('a %s', (role) => {
  // The changes of the previous role are made, in the end.
  beforeAll(async () => {
    await stage.close()
    stage = await fillStage(browser)
  })

  test(
    'finds no link, button or dialog that the server refuses',
    async () => {
      const context = await stage.enter(await stage.http.token('local', role))
      const seen: string[] = []
      const found: string[] = []
      const visitor = await Visitor.enter(context, async (page, title) => {
        seen.push(title)
        // The administrator is offered every dialog.
        if (role !== 'admin') return
        await shoot(page, `dialog ${title.replaceAll(/\W+/g, '-').slice(0, 60)}`)
        for (const colorScheme of ['dark', 'light'] as const) {
          await page.emulateMedia({ colorScheme })
          found.push(...(await barriers({ page })).map((barrier) => `${title}: ${barrier}`))
        }
      })
      await visitor.go('/jobs')
      const waiting = [...(await linked(visitor.page)), stage.placeOf('/jobs/:id')]
      const visited = new Set<string>()
      for (let href = waiting.shift(); href !== undefined; href = waiting.shift()) {
        const pattern = patternOf(href)
        if (visited.has(pattern)) continue
        visited.add(pattern)
        if (!PAGES.includes(pattern)) {
          const answer = await context.request.get(`${stage.url}${href}`)
          expect([href, answer.status()]).toEqual([href, 200])
          continue
        }
        await visitor.pressAll(href)
        waiting.push(...(await linked(visitor.page)))
      }
      expect(visitor.refused).toEqual([])
      expect(found).toEqual([])
      const routes = [...new Set(visitor.changes.map(routeOf))]
      expect(routes).toEqual(expect.arrayContaining(OFFERED[role]))
      if (role === 'viewer') expect(routes).toEqual([])
      expect(await refusals(role, visitor.changes)).toEqual([])

      // Pages that this role finds no link to are refused in a sentence, and offer nothing.
      for (const path of PAGES.filter((page) => !visited.has(page) && page !== '/')) {
        await visitor.go(stage.placeOf(path))
        await visitor.page.locator('main').getByRole('alert').first().waitFor()
        const before = visitor.changes.length
        await visitor.pressAll(stage.placeOf(path))
        expect([path, visitor.changes.slice(before)]).toEqual([path, []])
      }
      await context.close()
    },
    TIMEOUT_MS,
  )
})

/** The changes that the server does not let this role make. What a page reads is tested before. */
async function refusals(role: Role, changes: readonly Change[]): Promise<string[]> {
  const token = await stage.http.token('local', role)
  // No caller can use the hostile names that are in the store.
  const named = changes.filter(({ path }) => !path.includes('%3C'))
  const distinct = new Map(named.map((change) => [routeOf(change), change]))
  const refused: string[] = []
  for (const [route, { method, path, body }] of distinct) {
    // Deleting would take away what the next role needs. Who may do it is the same for something unknown.
    const target = method === 'DELETE' ? path.replace(/[^/]+$/, UNKNOWN_ID) : path
    const answer = await stage.http.call(method, target, { token, ...(body === null ? {} : { body }) })
    if ([401, 403].includes(answer.status) || (answer.status === 404 && method !== 'DELETE')) {
      refused.push(`${route}: ${answer.status} ${answer.text}`)
    }
  }
  return refused
}

const UNKNOWN_ID = '01990000-0000-7000-8000-000000000000'

test('a visitor who has not signed in is asked for a token on each page, and no call shows data', async () => {
  const context = await browser.newContext()
  const page = await context.newPage()
  const answered: string[] = []
  page.on('response', (answer) => {
    if (answer.url().includes('/v1/') && answer.ok()) answered.push(answer.url())
  })
  for (const path of PAGES) {
    await page.goto(`${stage.url}${stage.placeOf(path)}`)
    await page.getByLabel('API token').waitFor()
    expect([path, await page.locator('nav, main table').count()]).toEqual([path, 0])
  }
  expect(answered).toEqual([])
  await context.close()
})

test('a submitter sees nothing of another user, also by its address', async () => {
  const context = await stage.enter(await stage.http.token('stranger', 'submitter'))
  const visitor = await Visitor.enter(context)
  for (const path of ['/jobs', '/keys', '/dead-letters', ...PAGES.filter((page) => page.includes(':'))]) {
    await visitor.go(stage.placeOf(path))
    expect([path, await visitor.page.locator('main tbody tr').count()]).toEqual([path, 0])
  }
  await context.close()
})
