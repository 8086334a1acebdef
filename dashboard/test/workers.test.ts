import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { agentLine as printed } from '../../server/src/cli/output/agent-line.ts'
import { LOCAL_ADMIN } from '../../server/src/services/access/access.ts'
import { registered } from '../../server/src/testing/services/workers.ts'
import { agentLine } from '../src/pages/workers-line.ts'
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

test('the line of the page is the line of the command', () => {
  for (const name of ['lab-pc', "a 'b' $c", MARKUP]) {
    const line = { url: 'https://jobs.example/x', token: 'ichido_enroll_1', name, queues: ['a', 'b'], sha256: 'f00' }
    expect(agentLine(line)).toBe(printed({ ...line, exec: undefined, trusting: false }))
  }
})

test('a worker is enrolled with a line that is shown once, appears, and is revoked', async () => {
  const { page, http } = stage
  await stage.visit('/workers')
  await page.getByText('No workers yet').waitFor()
  await page.getByRole('button', { name: 'Enroll a worker' }).click()
  const dialog = page.getByRole('dialog')
  await dialog.getByLabel('Name').fill('lab-pc')
  await dialog.getByLabel('Queues').fill('not a queue!')
  await dialog.getByRole('button', { name: 'Make the line' }).click()
  await dialog.getByRole('alert').filter({ hasText: 'queues' }).waitFor()
  await dialog.getByLabel('Queues').fill('gpu, cpu')
  await dialog.getByRole('button', { name: 'Make the line' }).click()
  const line = await dialog.locator('.command code').innerText()
  expect(line).toContain('--name lab-pc --queue gpu --queue cpu --exec')
  const enrollToken = /ichido_enroll_[\w-]+/.exec(line)?.[0] ?? ''
  await stage.shot('workers-enroll')
  await dialog.getByRole('button', { name: 'Close' }).click()
  expect(enrollToken).not.toBe('')
  await page.getByText(enrollToken).waitFor({ state: 'detached', timeout: 5_000 })

  const meta = { hostname: MARKUP, node: 'v24.0.0', version: { not: 'text' } }
  const { worker_id } = await registered(http.services, { enrollToken, name: MARKUP, meta })
  const row = page.locator(`tr[data-id="${worker_id}"]`)
  await row.getByText(`${MARKUP} · v24.0.0`).waitFor()
  await row.locator('.pill', { hasText: 'Online' }).waitFor()
  expect(await page.title()).toBe('Ichido')
  expect(await barriers(stage)).toEqual([])
  await stage.shot('workers-light')
  await page.emulateMedia({ colorScheme: 'dark' })
  await page.setViewportSize({ width: 390, height: 844 })
  await stage.shot('workers-dark-390')

  await row.getByRole('button', { name: 'Revoke' }).click()
  await dialog.getByText('go to another worker after the continuation time').waitFor()
  await dialog.getByRole('button', { name: 'Revoke' }).click()
  await row.locator('.pill', { hasText: 'Revoked' }).waitFor()
  expect(await http.services.workers.get(LOCAL_ADMIN, worker_id)).toMatchObject({ state: 'revoked' })
  expect(await row.getByRole('button').count()).toBe(0)
  expect(stage.complaints.filter((text) => !/40[04]|422/.test(text))).toEqual([])
})
