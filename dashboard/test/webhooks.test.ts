import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { LOCAL_ADMIN } from '../../server/src/services/access/access.ts'
import { courier } from '../../server/src/testing/nodes/deliverer.ts'
import { sql } from '../../server/src/testing/store/store.ts'
import { barriers } from './axe.ts'
import { FETCH_TIMEOUT_MS, openBrowser, type Stage, setStage } from './stage.ts'
import { signIn } from './visitor.ts'
import { MARKUP } from './work.ts'

const VIEWER = { userId: 'eve', role: 'viewer', name: '', ttlSeconds: null } as const

let browser: Browser
let stage: Stage
beforeAll(async () => {
  browser = await openBrowser()
  stage = await setStage(browser, {}, { deps: { courier } })
}, FETCH_TIMEOUT_MS)
afterAll(async () => {
  await stage.close()
  await browser.close()
})

test('a webhook is made, tested, redriven, rotated, disabled and deleted', async () => {
  const { page, http } = stage
  const { webhooks, settings } = http.services
  await stage.visit('/webhooks')
  await page.getByText('No webhooks yet').waitFor()
  await page.getByRole('button', { name: 'Create a webhook' }).click()
  const dialog = page.getByRole('dialog')
  await dialog.getByLabel('URL').fill('https://127.0.0.1:9/')
  await dialog.getByLabel('Name').fill(MARKUP)
  await dialog.getByRole('button', { name: 'Create a webhook' }).click()
  await dialog.getByRole('alert').filter({ hasText: 'private or reserved address' }).waitFor()
  expect((await webhooks.list(10, null)).data).toEqual([])
  await settings.put(LOCAL_ADMIN, 'webhooks_allow_private', 1)
  await dialog.getByRole('button', { name: 'Create a webhook' }).click()
  await dialog.getByText('Copy the secret now').waitFor()
  const secret = await dialog.locator('.command code').innerText()
  expect(secret).toMatch(/^whsec_/)
  await dialog.getByRole('button', { name: 'Close' }).click()
  const [made] = (await webhooks.list(10, null)).data
  const id = made?.webhook_id ?? ''
  await page.locator(`tr[data-id="${id}"]`).getByRole('link', { name: MARKUP }).click()
  await page.getByText('No deliveries').waitFor()
  expect(await page.content()).not.toContain(secret)

  const confirm = async (name: string) => {
    await page.locator('main .head').getByRole('button', { name }).click()
    await dialog.getByRole('button', { name }).click()
  }
  await confirm('Send a test')
  const row = page.locator('tr', { hasText: 'webhook.test' })
  await row.getByText('Pending').waitFor()
  const dead = `UPDATE ichido.webhook_deliveries SET state = 'dead', next_at = NULL, ended_at = 1, last_error = $1`
  await sql(http.services.deps.store, dead, MARKUP)
  await row.getByText('Dead').waitFor()
  await page.getByLabel('State').selectOption('delivered')
  await page.getByText('No deliveries').waitFor()
  expect(page.url()).toContain('state=delivered')
  await page.getByLabel('State').selectOption('dead')
  await row.getByText(MARKUP).waitFor()
  expect(await page.title()).toBe('Ichido')
  expect(await barriers(stage)).toEqual([])
  await stage.shot('webhook-light')
  await page.emulateMedia({ colorScheme: 'dark' })
  await page.setViewportSize({ width: 390, height: 844 })
  await stage.shot('webhook-dark-390')
  await page.setViewportSize({ width: 1_280, height: 900 })

  await row.getByRole('button', { name: 'Redrive' }).click()
  await dialog.getByRole('button', { name: 'Redrive' }).click()
  await expect.poll(async () => (await webhooks.deliveries(id, 'pending', 10, null)).data.length).toBe(1)
  await sql(http.services.deps.store, dead, MARKUP)
  await confirm('Redrive dead ones')
  await expect.poll(async () => (await webhooks.deliveries(id, 'pending', 10, null)).data.length).toBe(1)
  await confirm('Rotate the secret')
  await dialog.getByText('Copy the secret now').waitFor()
  expect(await dialog.locator('.command code').innerText()).not.toBe(secret)
  await dialog.getByRole('button', { name: 'Close' }).click()
  await page.getByText('Signed with the old secret').waitFor()
  await confirm('Disable')
  await page.getByText('A person disabled it').waitFor()
  expect(await webhooks.get(id)).toMatchObject({ enabled: false })
  await confirm('Enable')
  await expect.poll(async () => (await webhooks.get(id)).enabled).toBe(true)

  const { token } = await http.services.access.createToken(LOCAL_ADMIN, VIEWER)
  await signIn(stage, token)
  await stage.visit(`/webhooks/${id}`)
  await row.waitFor()
  expect(await page.locator('main').getByRole('button').count()).toBe(0)
  await page.goto(`${stage.url}/webhooks`)
  await page.locator(`tr[data-id="${id}"]`).waitFor()
  expect(await page.locator('main').getByRole('button').count()).toBe(0)
})
