import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { LOCAL_ADMIN } from '../../server/src/services/access/access.ts'
import { createSettingsService } from '../../server/src/services/system/settings.ts'
import { barriers } from './axe.ts'
import { FETCH_TIMEOUT_MS, openBrowser, type Stage, setStage } from './stage.ts'
import { signIn } from './visitor.ts'
import { MARKUP } from './work.ts'

let browser: Browser
let stage: Stage
beforeAll(async () => {
  browser = await openBrowser()
  stage = await setStage(
    browser,
    {},
    {
      alter: (services) => ({
        ...services,
        settings: createSettingsService(services.deps, { reap_batch_max: 150 }),
      }),
    },
  )
}, FETCH_TIMEOUT_MS)
afterAll(async () => {
  await stage.close()
  await browser.close()
})

const row = (name: string) => stage.page.locator(`tr[data-id="${name}"]`)

test('a setting is found, changed, refused and reset, and the store has it', async () => {
  const { page, http } = stage
  await stage.visit('/settings')
  await row('alert_dead_letters_threshold').waitFor()
  expect(await page.locator('tbody tr').count()).toBe((await http.services.settings.list()).length)
  await page.getByLabel('Name or description').fill('OPERATOR or admin')
  await row('reap_batch_max').waitFor({ state: 'detached' })
  expect(page.url()).toContain('q=OPERATOR')
  await row('operator_priority_max').waitFor()
  await page.getByLabel('Name or description').fill(MARKUP)
  await page.getByText('No setting matches').waitFor()
  await page.getByRole('button', { name: 'Clear the filters' }).click()

  const name = 'alert_dead_letters_window_seconds'
  await row(name)
    .getByRole('button', { name: `Change ${name}` })
    .click()
  const dialog = page.getByRole('dialog')
  expect(await dialog.getByRole('button', { name: 'Save' }).isDisabled()).toBe(true)
  await dialog.getByLabel('New value').fill('7')
  await dialog.getByRole('button', { name: 'Save' }).click()
  await dialog.getByRole('alert').filter({ hasText: 'must be a whole number from 60 to 86400' }).waitFor()
  expect(await http.services.settings.show(name)).toMatchObject({ value: 3_600, source: 'default' })
  await dialog.getByLabel('New value').fill('7200')
  await dialog.getByText(`${name} changes from 3,600 (1 h) to 7,200 (2 h).`).waitFor()
  await stage.shot('settings-change')
  await dialog.getByRole('button', { name: 'Save' }).click()
  await row(name).getByText('Changed').waitFor()
  expect(await http.services.settings.show(name)).toMatchObject({ value: 7_200, source: 'stored' })

  await page.getByLabel('Only changed').check()
  await row('operator_priority_max').waitFor({ state: 'detached' })
  await row(name)
    .getByRole('button', { name: `Reset ${name}` })
    .click()
  await dialog.getByText('changes from 7,200 (2 h) to 3,600 (1 h)').waitFor()
  await dialog.getByRole('button', { name: 'Reset' }).click()
  await row(name).waitFor({ state: 'detached' })
  expect(await http.services.settings.show(name)).toMatchObject({ value: 3_600, source: 'default' })

  const fixed = row('reap_batch_max')
  await fixed.getByText('From the variable REAP_BATCH_MAX').waitFor()
  expect(await fixed.getByRole('button').count()).toBe(0)
  expect(await page.title()).toBe('Ichido')
  expect(stage.complaints.filter((text) => !text.includes('422') && !text.includes('400'))).toEqual([])
})

test('a change from elsewhere appears, with hostile text as text, in each look', async () => {
  const { page, http } = stage
  await stage.visit('/settings?q=reap')
  await row('reap_interval_seconds').waitFor()
  await http.services.settings.put({ ...LOCAL_ADMIN, userId: MARKUP }, 'reap_interval_seconds', 7)
  await row('reap_interval_seconds').getByText(MARKUP).waitFor({ timeout: 20_000 })
  await stage.visit('/settings')
  await row('reap_interval_seconds').waitFor()
  expect(await page.title()).toBe('Ichido')
  expect(await barriers(stage)).toEqual([])
  await stage.shot('settings-light')
  await page.emulateMedia({ colorScheme: 'dark' })
  await page.setViewportSize({ width: 390, height: 844 })
  await stage.visit('/settings?q=reap')
  await row('reap_interval_seconds').waitFor()
  await stage.shot('settings-dark-390')
  expect(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)).toBeLessThanOrEqual(0)
})

test('a viewer sees the values and no button', async () => {
  await stage.page.setViewportSize({ width: 1_280, height: 900 })
  await signIn(stage, await stage.http.token('vera', 'viewer'))
  await stage.visit('/settings')
  await row('alert_dead_letters_threshold').waitFor()
  expect(await stage.page.locator('main').getByRole('button').count()).toBe(0)
})
