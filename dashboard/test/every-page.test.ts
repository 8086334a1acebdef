import type { Browser, BrowserContext, Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { full } from '../../scripts/testing/size.ts'
import { barriers } from './axe.ts'
import { FILES, type Filled, fillStage, HOSTILE_NAME, PAGES, settled } from './filled.ts'
import { FETCH_TIMEOUT_MS, openBrowser, shoot, watch } from './stage.ts'

const THEMES = ['light', 'dark'] as const
const LANGUAGES = ['en', 'ja'] as const
const WIDTHS = [390, 1_280, 2_560]

type Language = (typeof LANGUAGES)[number]

/** At small size, each pair of language, theme and width is there once. */
function looksOf(language: Language) {
  const all = THEMES.flatMap((theme, t) => WIDTHS.map((width, w) => ({ theme, width, place: t + w })))
  return all.filter(({ place }) => full || place % 2 === LANGUAGES.indexOf(language))
}

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

describe.each(LANGUAGES)('in %s', (language) => {
  let context: BrowserContext
  beforeAll(async () => {
    context = await stage.enter(stage.adminToken, { locale: language === 'en' ? 'en-US' : 'ja-JP' })
  })
  afterAll(() => context.close())

  test.each(PAGES)('%s has no serious finding, no error, and fits the screen', async (path) => {
    const page = await context.newPage()
    const complaints = watch(page)
    await page.goto(`${stage.url}${stage.placeOf(path)}`)
    await settled(page)
    for (const { theme, width } of looksOf(language)) {
      await page.emulateMedia({ colorScheme: theme })
      await page.setViewportSize({ width, height: 900 })
      // Charts follow the width of their card.
      await expect.poll(() => page.evaluate(tooWide)).toEqual([])
      await shoot(page, `${path.slice(1).replaceAll(/\W+/g, '-') || 'overview'} ${language} ${theme} ${width}`)
      expect(await barriers({ page })).toEqual([])
    }
    expect(await page.locator('html').getAttribute('lang')).toBe(language)
    expect(complaints).toEqual([])
    await page.close()
  })
})

/** The elements that make the page wider than the screen. */
function tooWide(): string[] {
  if (document.documentElement.scrollWidth <= innerWidth) return []
  const wide = [...document.querySelectorAll('main *')].filter(
    (node) => node.getBoundingClientRect().right > innerWidth,
  )
  return wide.map((node) => node.outerHTML.slice(0, 120)).slice(-5)
}

/** Elements that show markup which was taken from text, wherever they are. */
const TAKEN = 'main script, main iframe, main object, main embed, main img[src="x"], main [onload], main [onerror]'

describe('hostile text is shown as text', () => {
  let context: BrowserContext
  // Without the policy of the page, markup that is taken for markup would run.
  beforeAll(async () => {
    context = await stage.enter(stage.adminToken, { bypassCSP: true })
  })
  afterAll(() => context.close())

  async function expectInert(page: Page): Promise<void> {
    await settled(page)
    // The content of a file is read when it is shown, and one at a time is.
    const closed = page.locator('main details:not([open]) > summary, main [aria-expanded="false"]')
    for (const one of await closed.elementHandles()) {
      await one.click()
      await settled(page)
      expect(await page.locator(TAKEN).count()).toBe(0)
    }
    expect(await page.locator(TAKEN).count()).toBe(0)
    const hrefs = await page
      .locator('a[href]')
      .evaluateAll((links) => links.map((link) => (link as HTMLAnchorElement).protocol))
    expect(new Set(hrefs)).toEqual(new Set(['http:']))
    expect(await page.evaluate('window.xss')).toBeUndefined()
  }
  const isThere = (page: Page) => page.locator('main').evaluate((main) => main.textContent?.includes('window.xss'))

  test('the markup runs in a page that takes it for markup', async () => {
    const page = await context.newPage()
    await page.goto(`${stage.url}/audit`)
    await page.evaluate((text) => document.body.insertAdjacentHTML('beforeend', text), FILES['note.txt'])
    await page.waitForFunction('window.xss === 1')
    await page.close()
  })

  test.each(PAGES)('on %s', async (path) => {
    const page = await context.newPage()
    await page.goto(`${stage.url}${stage.placeOf(path)}`)
    await expectInert(page)
    expect(await isThere(page)).toBe(true)
    await page.close()
  })

  test('on the page of a job in each state, and of a definition with such a name', async () => {
    const page = await context.newPage()
    const { failed, done } = stage.jobs
    for (const place of [`/jobs/${failed}`, `/jobs/${done}`, `/schedules/${encodeURIComponent(HOSTILE_NAME)}`]) {
      await page.goto(`${stage.url}${place}`)
      await expectInert(page)
      expect(await isThere(page)).toBe(true)
    }
    await page.close()
  })

  test.each(Object.keys(FILES))(
    'the file %s does not run when it is opened, embedded or loaded as a script',
    async (name) => {
      const page = await context.newPage()
      await page.goto(`${stage.url}/audit`)
      await settled(page)
      const url = `${stage.url}/v1/artifacts/${stage.artifactIds.get(name)}`
      const [download] = await Promise.all([
        page.waitForEvent('download'),
        page.goto(url).catch((error: Error) => expect(error.message).toMatch(/Download is starting|ERR_ABORTED/)),
      ])
      expect(download.suggestedFilename()).toBe(name)
      await page.evaluate(async (src) => {
        for (const tag of ['iframe', 'embed', 'object', 'script', 'img']) {
          const node = document.createElement(tag)
          const ended = new Promise((resolve) => {
            node.onload = node.onerror = resolve
          })
          node.setAttribute(tag === 'object' ? 'data' : 'src', src)
          document.body.append(node)
          // A download in a frame gives no event.
          if (tag === 'script' || tag === 'img') await ended
        }
        await fetch('healthz')
      }, url)
      for (const frame of page.frames()) expect(await frame.evaluate('window.xss')).toBeUndefined()
      await page.close()
    },
  )
})
