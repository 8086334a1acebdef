import type { Browser } from 'playwright-core'
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest'
import { FETCH_TIMEOUT_MS, openBrowser, type Stage, setStage } from './stage.ts'

let browser: Browser
let stage: Stage

beforeAll(async () => {
  browser = await openBrowser()
}, FETCH_TIMEOUT_MS)
afterAll(() => browser.close())
beforeEach(async () => {
  stage = await setStage(browser)
})
afterEach(() => stage.close())

test('the list of jobs tells a newcomer how to submit the first one', async () => {
  await stage.visit('/jobs')
  await stage.page.getByText(`ICHIDO_URL=${stage.url} npm run -s ichido -- demo`).first().waitFor()
  await stage.shot('jobs-empty')
  expect(stage.complaints).toEqual([])
})
