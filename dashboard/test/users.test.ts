import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { FETCH_TIMEOUT_MS, openBrowser, type Stage, setStage } from './stage.ts'
import { signIn } from './visitor.ts'

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

test('use is shown against the limits, and a reservation is released here', async () => {
  const [admin, ann] = [await stage.http.token('root', 'admin'), await stage.http.token('ann', 'submitter')]
  const limits = { max_concurrent: 2, max_bytes: 5_000_000 }
  await stage.http.call('PUT', '/v1/quotas/ann', { token: admin, body: limits })
  for (let n = 0; n < 2; n++) await stage.http.call('POST', '/v1/reservations', { token: ann, body: {} })
  await signIn(stage, admin, '/users')
  const user = stage.page.getByRole('row').filter({ hasText: 'own limits' })
  await user.getByText('2 of 2').waitFor()
  await user.getByText(/of 5 MB/).waitFor()
  await user.locator('progress.full').waitFor()
  const reservations = stage.page.getByRole('region', { name: 'Reservations' })
  await reservations
    .getByRole('button', { name: /^Release the reservation/ })
    .first()
    .click()
  await stage.page.getByRole('dialog').getByText('The slot is free at once.').waitFor()
  await stage.shot('users')
  await stage.page.getByRole('dialog').getByRole('button', { name: 'Release' }).click()
  await user.getByText('1 of 2').waitFor()
  await expect.poll(() => reservations.locator('tbody tr').count()).toBe(1)
})
