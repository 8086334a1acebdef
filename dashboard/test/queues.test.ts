import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { finish, lease } from '../../server/src/testing/http/cloud-worker.ts'
import { registered } from '../../server/src/testing/services/workers.ts'
import { barriers } from './axe.ts'
import { FETCH_TIMEOUT_MS, openBrowser, type Stage, setStage } from './stage.ts'
import { MARKUP, QUEUE, submit } from './work.ts'

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

test('queues appear as they get work, and can be paused, limited and resumed', async () => {
  const { page, http } = stage
  await stage.visit('/queues')
  await page.getByText('No queues yet').waitFor()
  await registered(http.services, { name: MARKUP, queues: ['gpu'] })
  await submit(stage, { queue: 'gpu' })
  const row = page.locator('tr[data-id="gpu"]')
  await row.waitFor()
  await row.getByText(MARKUP).waitFor({ timeout: 15_000 })
  expect(await page.title()).toBe('Ichido')

  await row.getByRole('button', { name: 'Pause gpu' }).click()
  await page.getByText('Jobs that workers hold continue').waitFor()
  await page.getByRole('dialog').getByRole('button', { name: 'Pause' }).click()
  await row.locator('.pill', { hasText: 'Paused' }).waitFor()
  expect(await http.services.queues.get('gpu')).toMatchObject({ paused: true, max_concurrent: null })

  await row.getByRole('button', { name: 'Change gpu' }).click()
  const dialog = page.getByRole('dialog')
  await dialog.getByLabel('Jobs that workers may hold').fill('0')
  await dialog.getByRole('button', { name: 'Save' }).click()
  await dialog.getByRole('alert').filter({ hasText: 'max_concurrent' }).waitFor()
  await dialog.getByLabel('Jobs that workers may hold').fill('4')
  await dialog.getByRole('button', { name: 'Save' }).click()
  await dialog.waitFor({ state: 'detached' })
  expect(await http.services.queues.get('gpu')).toMatchObject({
    paused: true,
    max_concurrent: 4,
    lease_ttl_seconds: null,
  })

  expect(await barriers(stage)).toEqual([])
  await stage.shot('queues-light')
  await page.emulateMedia({ colorScheme: 'dark' })
  await page.setViewportSize({ width: 390, height: 844 })
  await stage.shot('queues-dark-390')
  await row.getByRole('button', { name: 'Resume gpu' }).click()
  await dialog.getByRole('button', { name: 'Resume' }).click()
  await row.locator('.pill').waitFor({ state: 'detached' })
  expect(await http.services.queues.get('gpu')).toMatchObject({ paused: false, max_concurrent: 4 })
  // The browser reports the refused limit.
  expect(stage.complaints.filter((text) => !/40[04]|422/.test(text))).toEqual([])
})

test('a queue shows how many jobs come in and end each minute', async () => {
  for (const n of [1, 2]) await submit(stage, { payload: { n } })
  const { lease_id } = await lease(stage.http, QUEUE)
  await finish(stage.http, lease_id)
  await stage.http.services.seriesCounts.flush()
  await stage.page.setViewportSize({ width: 1_280, height: 900 })
  await stage.visit('/queues')
  // Two jobs and one end, over four to five minutes.
  const rate = stage.page.locator(`tr[data-id="${QUEUE}"]`).getByText(/^0\.[45] \/ 0\.[23]$/)
  await rate.waitFor()
})
