import type { AlertRule } from '@ichido/sdk/protocol'
import type { Browser } from 'playwright-core'
import { v7 } from 'uuid'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { turnAlerts } from '../../server/src/store/system/alerts.ts'
import { seize } from '../../server/src/testing/nodes/reaper.ts'
import { barriers } from './axe.ts'
import { FETCH_TIMEOUT_MS, openBrowser, type Stage, setStage } from './stage.ts'
import { signIn } from './visitor.ts'
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

/** Opens and closes alerts as the leader does. */
async function turn(open: { rule: AlertRule; subject: string }[], close: string[] = []): Promise<string[]> {
  const { store } = stage.http.services.deps
  const findings = open.map((one) => ({ ...one, message: `About ${one.subject}`, alertId: v7() }))
  await store.write(turnAlerts(await seize(store), { open: findings, close, keepMs: 0, batchMax: 100 }))
  return findings.map(({ alertId }) => alertId)
}

test('an alert appears with its figure and its place, closes, and stays in the history', async () => {
  const { page } = stage
  await stage.visit('/alerts')
  await page.getByText('No alert is open').waitFor()
  await page.getByText('No alert was ever opened').waitFor()
  await submit(stage)
  const [waiting = '', loop = ''] = await turn([
    { rule: 'oldest_waiting', subject: QUEUE },
    { rule: 'loop_late', subject: MARKUP },
    { rule: 'dead_letters', subject: 'all queues' },
  ])
  const card = page.locator(`article[data-id="${waiting}"]`)
  await card.getByText(`About ${QUEUE}`).waitFor()
  await card.getByText('Longest wait in the queue').waitFor()
  expect(await card.getByRole('link', { name: 'Go there' }).getAttribute('href')).toContain(
    `/jobs?queue=${QUEUE}&state=PENDING`,
  )
  await card.getByText('Show as a table').click()
  await card.getByRole('table').waitFor()
  const late = page.locator(`article[data-id="${loop}"]`)
  await late.getByText(MARKUP, { exact: true }).waitFor()
  await late.getByText('keeps no series').waitFor()
  expect(await page.title()).toBe('Ichido')
  expect(await barriers(stage)).toEqual([])
  await stage.shot('alerts-light')
  await page.emulateMedia({ colorScheme: 'dark' })
  await page.setViewportSize({ width: 390, height: 844 })
  await stage.shot('alerts-dark-390')
  expect(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)).toBeLessThanOrEqual(0)
  await page.setViewportSize({ width: 1_280, height: 900 })

  await turn([], [waiting])
  await card.waitFor({ state: 'detached' })
  await stage.visit('/alerts?rule=oldest_waiting')
  await page.locator(`tr[data-past="${waiting}"]`).waitFor()
  expect(await page.locator('tr[data-past]').count()).toBe(1)
  expect(stage.complaints).toEqual([])
})

test('the history is read page by page', async () => {
  const { page } = stage
  const subjects = Array.from({ length: 55 }, (_, i) => ({ rule: 'queue_unserved' as const, subject: `q${i}` }))
  await turn([], await turn(subjects))
  await stage.visit('/alerts?rule=queue_unserved')
  await page.locator('tr[data-past]').nth(49).waitFor()
  expect(await page.locator('tr[data-past]').count()).toBe(50)
  await page.getByRole('button', { name: 'Show more' }).click()
  await page.locator('tr[data-past]').nth(54).waitFor()
})

test('a threshold is changed where it is shown, and a viewer cannot change it', async () => {
  const { page, http } = stage
  const name = 'alert_dead_letters_threshold'
  await stage.visit('/alerts')
  const row = page.locator(`tr[data-setting="${name}"]`)
  await row.getByRole('button', { name: `Change ${name}` }).click()
  const dialog = page.getByRole('dialog')
  await dialog.getByLabel('New value').fill('-1')
  await dialog.getByRole('button', { name: 'Save' }).click()
  await dialog.getByRole('alert').filter({ hasText: name }).waitFor()
  await dialog.getByLabel('New value').fill('25')
  await dialog.getByText(`${name} changes from 10 to 25.`).waitFor()
  await dialog.getByRole('button', { name: 'Save' }).click()
  await row.getByText('25', { exact: true }).waitFor()
  expect(await http.services.settings.show(name)).toMatchObject({ value: 25, source: 'stored' })

  await signIn(stage, await http.token('vera', 'viewer'))
  await stage.visit('/alerts')
  await row.waitFor()
  expect(await page.getByRole('button', { name: /^(Change|Reset) / }).count()).toBe(0)
})
