import { mkdirSync } from 'node:fs'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { type Browser, type Page, chromium as playwright } from 'playwright-core'
import { chromium } from '../../scripts/testing/services.ts'
import { type TestApp, testApp } from '../../server/src/testing/http/app.ts'

/** Fetching a browser on the first run may take this long. */
export const FETCH_TIMEOUT_MS = 300_000
/** Screenshots of the last run. */
const SHOTS = fileURLToPath(new URL('../../.cache/screenshots/', import.meta.url))

export const openBrowser = async (): Promise<Browser> => playwright.launch(await chromium())

type Look = Parameters<Browser['newPage']>[0]

/** A server with its own store, and a page of a real browser that looks at it. */
export interface Stage {
  http: TestApp
  url: string
  page: Page
  /** Errors of the browser and requests that its policy refused. */
  complaints: string[]
  /** Opens a page of the dashboard, and waits until it has drawn its heading. */
  visit(path: string): Promise<void>
  shot(name: string): Promise<void>
  close(): Promise<void>
}

export async function setStage(
  browser: Browser,
  look: Look = {},
  changes: Parameters<typeof testApp>[1] = {},
): Promise<Stage> {
  const http = await testApp('sqlite', changes)
  await http.app.listen({ port: 0, host: '127.0.0.1' })
  const { port } = http.app.server.address() as AddressInfo
  const url = `http://127.0.0.1:${port}${changes.basePath ?? ''}`
  const page = await browser.newPage({ reducedMotion: 'reduce', locale: 'en-US', ...look })
  const complaints = watch(page)
  return {
    http,
    url,
    page,
    complaints,
    async visit(path) {
      await page.goto(`${url}${path}`)
      await page.locator('main h2, main h1').first().waitFor()
    },
    shot: (name) => shoot(page, name),
    async close() {
      await page.close()
      await http.close()
    },
  }
}

/** Collects the errors of the browser and the requests that its policy refused. */
export function watch(page: Page): string[] {
  const complaints: string[] = []
  page.on('console', (message) => message.type() === 'error' && complaints.push(message.text()))
  page.on('pageerror', (error) => complaints.push(error.message))
  return complaints
}

export async function shoot(page: Page, name: string): Promise<void> {
  mkdirSync(SHOTS, { recursive: true })
  await page.screenshot({ path: join(SHOTS, `${name}.png`), fullPage: true })
}
