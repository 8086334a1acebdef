import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { barriers } from './axe.ts'
import { FETCH_TIMEOUT_MS, openBrowser, type Stage, setStage } from './stage.ts'
import { MARKUP } from './work.ts'

let browser: Browser
let stage: Stage
beforeAll(async () => {
  browser = await openBrowser()
  stage = await setStage(browser)
}, FETCH_TIMEOUT_MS)
afterAll(async () => {
  await stage.close()
  await browser.close()
})

test('the page shows the node, and a loop that becomes late appears without a reload', async () => {
  const { page, http } = stage
  await stage.visit('/system')
  await page.getByText('This node runs no loop.').waitFor()
  await page.getByText('SQLite 3.').waitFor()
  await page.getByText('No node leads').waitFor()
  await page.getByText('shows the node that answered').waitFor()
  const loop = { intervalMs: 5_000, lastEndedAtMs: Date.now(), lastTookMs: 12 }
  const loops = [
    { ...loop, name: 'reap', late: true },
    { ...loop, name: MARKUP, late: false },
  ]
  http.services.system.watch(() => ({ epoch: null, leadsSinceMs: null, loops }))
  const row = page.locator('tr[data-id="reap"]')
  await row.getByText('Late').waitFor({ timeout: 20_000 })
  await row.getByText('12 ms').waitFor()
  await page.getByRole('rowheader', { name: MARKUP }).waitFor()
  expect(await page.title()).toBe('Ichido')
  expect(await barriers(stage)).toEqual([])
  await stage.shot('system-light')
  await page.emulateMedia({ colorScheme: 'dark' })
  await page.setViewportSize({ width: 390, height: 844 })
  await stage.shot('system-dark-390')
  expect(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)).toBeLessThanOrEqual(0)
  expect(stage.complaints).toEqual([])
})
