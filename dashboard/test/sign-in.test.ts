import type { Browser } from 'playwright-core'
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest'
import { LOCAL_ADMIN } from '../../server/src/services/access/access.ts'
import { FETCH_TIMEOUT_MS, openBrowser, type Stage, setStage } from './stage.ts'
import { signIn } from './visitor.ts'
import { submit } from './work.ts'

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

const field = () => stage.page.getByLabel('API token')

test('a wrong token is refused in words, and a good one opens the page for good', async () => {
  const id = await submit(stage)
  const token = await stage.http.token('local', 'admin')
  await signIn(stage, 'ichido_wrong')
  await stage.page.getByRole('alert').getByText('unknown, expired or revoked').waitFor()
  await stage.shot('sign-in')
  await field().fill(token)
  await stage.page.keyboard.press('Enter')
  const row = stage.page.locator(`tr[data-id="${id}"]`)
  await row.waitFor()
  await stage.page.reload()
  await row.waitFor()
  // The page itself cannot read the session, and keeps no token.
  const seen = await stage.page.evaluate(() => [
    document.cookie,
    JSON.stringify({ ...localStorage, ...sessionStorage }),
  ])
  expect(seen.join()).not.toContain(token)
  expect(seen[0]).toBe('')
  await stage.page.getByRole('button', { name: 'Sign out' }).click()
  await field().waitFor()
  await stage.page.reload()
  await field().waitFor()
})

test('a change by cookie carries the proof, and the same call without it is refused', async () => {
  const id = await submit(stage)
  await signIn(stage, await stage.http.token('local', 'admin'), `/jobs/${id}`)
  await stage.page.getByRole('button', { name: 'Cancel', exact: true }).waitFor()
  const forged = await stage.page.evaluate(
    (path) => fetch(path, { method: 'POST' }).then((answer) => answer.status),
    `v1/jobs/${id}/cancel`,
  )
  expect(forged).toBe(403)
  expect((await stage.http.services.jobs.get(LOCAL_ADMIN, id)).state).toBe('PENDING')
  await stage.page.getByRole('button', { name: 'Cancel', exact: true }).click()
  await stage.page.getByRole('dialog').getByRole('button', { name: 'Cancel' }).click()
  await stage.page.locator('.head .pill', { hasText: 'Canceled' }).waitFor()
})

test('a revoked token ends the session of an open page', async () => {
  await submit(stage)
  await stage.http.token('ann', 'admin')
  const token = await stage.http.token('bob', 'viewer')
  await signIn(stage, token)
  await stage.page.locator('tr[data-id]').waitFor()
  const tokens = await stage.http.services.access.listTokens(LOCAL_ADMIN)
  const bob = tokens.find(({ user_id }) => user_id === 'bob')
  await stage.http.services.access.revokeToken(LOCAL_ADMIN, bob?.token_id ?? '')
  await field().waitFor()
})

test.each([
  ['viewer', { pages: ['Overview', 'Jobs', 'Queues'], hidden: ['Audit', 'Tokens'], buttons: false }],
  ['submitter', { pages: ['Jobs', 'Keys'], hidden: ['Overview', 'Queues', 'Audit', 'Tokens'], buttons: true }],
  ['admin', { pages: ['Overview', 'Jobs', 'Tokens'], hidden: [], buttons: true }],
] as const)('a %s sees the pages and buttons that the server allows', async (role, { pages, hidden, buttons }) => {
  const token = await stage.http.token('ann', role)
  const mine = await stage.http.call('POST', '/v1/jobs', { body: { kind: 'work' }, token })
  const id = role === 'viewer' ? await submit(stage) : (mine.body as { job_id: string }).job_id
  await signIn(stage, token, `/jobs/${id}`)
  await stage.page.locator('.head .pill').waitFor()
  const links = await stage.page.getByRole('navigation').getByRole('link').allInnerTexts()
  expect(links).toEqual(expect.arrayContaining([...pages]))
  expect(links.filter((link) => (hidden as readonly string[]).includes(link))).toEqual([])
  expect(await stage.page.getByRole('button', { name: 'Cancel', exact: true }).count()).toBe(buttons ? 1 : 0)
})

test('after a session has ended, the next visitor sees nothing of the last one', async () => {
  const id = await submit(stage)
  const bob = await stage.http.token('bob', 'submitter')
  await signIn(stage, await stage.http.token('ann', 'admin'))
  const row = stage.page.locator(`tr[data-id="${id}"]`)
  await row.waitFor()
  const tokens = await stage.http.services.access.listTokens(LOCAL_ADMIN)
  const ann = tokens.find(({ user_id }) => user_id === 'ann')
  await stage.http.services.access.revokeToken(LOCAL_ADMIN, ann?.token_id ?? '')
  await field().waitFor()
  await stage.page.route('**/v1/jobs?*', () => {})
  await field().fill(bob)
  await stage.page.keyboard.press('Enter')
  await stage.page.getByRole('button', { name: 'Sign out' }).waitFor()
  expect(await row.count()).toBe(0)
})

test('a page notices that another visitor signed in in another tab', async () => {
  const id = await submit(stage)
  const bob = await stage.http.token('bob', 'submitter')
  await signIn(stage, await stage.http.token('ann', 'admin'))
  await stage.page.locator(`tr[data-id="${id}"]`).waitFor()
  await stage.page.route('**/v1/jobs?*', () => {})
  const status = await stage.page.evaluate(
    (token) =>
      fetch('v1/session', {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ token }),
      }).then((answer) => answer.status),
    bob,
  )
  expect(status).toBe(200)
  await stage.page.evaluate(() => dispatchEvent(new Event('visibilitychange')))
  await stage.page.getByText('bob (submitter)').waitFor()
  expect(await stage.page.locator(`tr[data-id="${id}"]`).count()).toBe(0)
  await stage.page.getByRole('button', { name: 'Sign out' }).click()
  await field().waitFor()
})
