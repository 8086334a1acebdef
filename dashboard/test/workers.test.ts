import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { agentLine as printed } from '../../server/src/cli/output/agent-line.ts'
import { LOCAL_ADMIN } from '../../server/src/services/access/access.ts'
import { registered } from '../../server/src/testing/services/workers.ts'
import { finished } from '../../server/src/testing/store/scene.ts'
import { agentLine } from '../src/pages/workers-line.ts'
import { barriers } from './axe.ts'
import { FETCH_TIMEOUT_MS, openBrowser, type Stage, setStage } from './stage.ts'
import { MARKUP, submit } from './work.ts'

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

test('a worker shows what it holds, is drained while that goes on, and is resumed', async () => {
  const { page, http } = stage
  const { worker_id: workerId } = await registered(http.services, {
    name: 'lab-pc',
    queues: ['cpu'],
    meta: { version: '0.1.0' },
  })
  const lease = async (pollId: string) => {
    const request = { queues: ['cpu'], kinds: [], max: 4, waitMs: 0, pollId, startId: 'p' }
    return http.services.runs.lease(workerId, request)
  }
  for (let i = 0; i < 4; i++) await submit(stage, { queue: 'cpu' })
  await page.setViewportSize({ width: 1_280, height: 900 })
  const held = await lease('first')
  expect(held).toHaveLength(4)
  await stage.visit('/workers')
  const row = page.locator(`tr[data-id="${workerId}"]`)
  await row.getByText('agent 0.1.0').waitFor()
  const links = row.locator('.holds a')
  expect(await links.nth(0).getAttribute('href')).toContain(held[0]?.job_id)
  await row.getByText('1 more').click()
  await links.nth(3).waitFor()

  await row.getByRole('button', { name: 'Drain lab-pc' }).click()
  const dialog = page.getByRole('dialog')
  await dialog.getByText('The worker gets no new jobs until you resume it').waitFor()
  await dialog.getByText('4 jobs that it holds go on to the end.').waitFor()
  await dialog.getByRole('button', { name: 'Back' }).click()
  expect(await http.services.workers.get(LOCAL_ADMIN, workerId)).toMatchObject({ draining_since: null })
  await row.getByRole('button', { name: 'Drain lab-pc' }).click()
  await dialog.getByRole('button', { name: 'Drain' }).click()
  await row.getByText('Draining, 4 jobs left').waitFor()
  expect(await barriers(stage)).toEqual([])
  await stage.shot('workers-draining')
  const fits = () => page.locator('.list').evaluate((list) => list.scrollWidth <= list.clientWidth)
  expect(await fits(), 'wide').toBe(true)
  await page.setViewportSize({ width: 390, height: 844 })
  await row.locator('.holds .count', { hasText: '4' }).waitFor()
  expect(await fits(), 'on a phone').toBe(true)
  await stage.shot('workers-draining-390')
  await page.setViewportSize({ width: 1_280, height: 900 })

  await submit(stage, { queue: 'cpu' })
  expect(await lease('second')).toEqual([])
  for (const { lease_id } of held) {
    await http.services.runs.finish(workerId, lease_id, finished())
  }
  await row.getByText('Drained').waitFor()
  await row.getByRole('button', { name: 'Resume lab-pc' }).click()
  await dialog.getByText('The worker gets jobs again.').waitFor()
  await dialog.getByRole('button', { name: 'Resume' }).click()
  await row.getByRole('button', { name: 'Drain lab-pc' }).waitFor()
  expect(await lease('third')).toHaveLength(1)
  await row.locator('.holds a').first().click()
  await page.waitForURL(/\/jobs\/[0-9a-f-]{36}$/)
})
