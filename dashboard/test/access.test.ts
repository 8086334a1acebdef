import type { Browser } from 'playwright-core'
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest'
import { LOCAL_ADMIN } from '../../server/src/services/access/access.ts'
import { FETCH_TIMEOUT_MS, openBrowser, type Stage, setStage } from './stage.ts'
import { signIn } from './visitor.ts'
import { MARKUP, submit } from './work.ts'

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

const dialog = () => stage.page.getByRole('dialog')
const button = (name: string) => stage.page.getByRole('button', { name })

test('users: use and limits, a limit that is refused, one that is saved, and the default again', async () => {
  const { page, http } = stage
  const quota = async () => (await http.call('GET', '/v1/quotas/local')).body
  await stage.visit('/users')
  await page.getByText('No users yet').waitFor()
  await submit(stage)
  const row = page.locator('tbody tr', { hasText: 'local' })
  await row.getByText('1, no limit').waitFor({ timeout: 15_000 })

  await button('Limits').click()
  await dialog().getByLabel('Active jobs and reservations').fill('1.5')
  // The browser itself refuses a fraction; a huge number goes to the server.
  await dialog().getByLabel('Active jobs and reservations').fill('99999999999')
  await dialog().getByRole('button', { name: 'Save' }).click()
  await dialog().getByRole('alert').filter({ hasText: 'max_concurrent' }).waitFor()
  expect(await quota()).toMatchObject({ max_concurrent: null })
  await dialog().getByLabel('Active jobs and reservations').fill('4')
  await dialog().getByRole('button', { name: 'Save' }).click()
  await row.getByText('1 of 4').waitFor()
  expect(await quota()).toMatchObject({ max_concurrent: 4 })

  await button('Limits').click()
  await dialog().getByLabel('Use the default limits').check()
  await dialog().getByRole('button', { name: 'Save' }).click()
  await row.getByText('1, no limit').waitFor()
  expect(await quota()).toMatchObject({ max_concurrent: null })
})

test('keys: found as one types, shown with their job, and extended', async () => {
  const { page, http } = stage
  await stage.visit('/keys')
  await page.getByText('No keys yet').waitFor()
  const id = await submit(stage, { key: 'ci-build-7' })
  await submit(stage, { key: 'ci-build-8' })
  await page.getByText('ci-build-8').waitFor({ timeout: 15_000 })
  await page.getByLabel('Find a key').fill('ci-build-7')
  await page.getByText('ci-build-8').waitFor({ state: 'detached' })
  expect(new URL(page.url()).searchParams.get('key')).toBe('ci-build-7')
  expect(await page.locator('tbody a').getAttribute('href')).toContain(id)

  const endsAt = async () => Date.parse((await http.services.keys.get(LOCAL_ADMIN, 'ci-build-7'))[0]?.expires_at ?? '')
  const before = await endsAt()
  await button('Extend').click()
  await dialog().getByLabel('Hours').fill('1000')
  await dialog().getByRole('button', { name: 'Extend' }).click()
  await dialog().waitFor({ state: 'detached' })
  expect(await endsAt()).toBeGreaterThan(before)

  await page.getByLabel('Find a key').fill('nothing-like-it')
  await page.getByText('There is no').waitFor()
})

test('tokens: made and shown once, used to sign in, and revoked', async () => {
  const { page } = stage
  await stage.visit('/tokens')
  await page.getByText('No tokens yet').waitFor()
  const make = async (user: string, role: string) => {
    await button('Make a token').first().click()
    await dialog().getByLabel('User').fill(user)
    await dialog().getByLabel('Role').selectOption(role)
    await dialog().getByLabel('Purpose').fill(MARKUP)
    await dialog().getByRole('button', { name: 'Make a token' }).click()
    const secret = (await dialog().locator('code').innerText()).trim()
    await dialog().getByRole('button', { name: 'Close' }).click()
    await dialog().waitFor({ state: 'detached' })
    return secret
  }
  const admin = await make('ann', 'admin')
  await page.getByLabel('API token').waitFor()
  await signIn(stage, admin, '/tokens')
  await page.locator('tbody tr', { hasText: 'ann' }).waitFor()
  const viewer = await make('bob', 'viewer')
  const row = page.locator('tbody tr', { hasText: 'bob' })
  await row.waitFor()
  expect(await page.content()).not.toContain(viewer)
  expect((await stage.http.call('GET', '/v1/jobs', { token: viewer })).status).toBe(200)
  await row.getByRole('button', { name: 'Revoke' }).click()
  await dialog().getByRole('button', { name: 'Revoke' }).click()
  await row.getByText('revoked').waitFor()
  expect((await stage.http.call('GET', '/v1/jobs', { token: viewer })).status).toBe(401)
  expect(await page.title()).toBe('Ichido')
})

test('audit: who changed which field, by actor, and an empty answer that can be cleared', async () => {
  const { page, http } = stage
  await stage.visit('/audit')
  await page.getByText('Nothing was changed yet').waitFor()
  await http.call('PUT', '/v1/queues/gpu', { body: { paused: true } })
  await page.locator('tbody tr', { hasText: 'gpu' }).getByText('paused:').waitFor({ timeout: 15_000 })
  await page.locator('tbody a').first().click()
  expect(new URL(page.url()).searchParams.get('actor')).toBe('local')
  await page.getByLabel('Actor').fill('nobody')
  await button('Clear').click()
  await page.locator('tbody tr').first().waitFor()
})

const ROLES = ['viewer', 'submitter', 'operator', 'admin'] as const

test.each(ROLES)('a %s finds no page in the navigation, and no call of a page, that is refused', async (role) => {
  const { page, http } = stage
  const token = await http.token('ann', role)
  await http.token('root', 'admin')
  const mine = await http.call('POST', '/v1/jobs', { body: { kind: 'work', idempotency_key: 'k' }, token })
  const id = role === 'viewer' ? await submit(stage) : (mine.body as { job_id: string }).job_id
  const refused: string[] = []
  page.on('response', (answer) => {
    if (answer.status() === 401 || answer.status() === 403) refused.push(`${answer.status()} ${answer.url()}`)
  })
  await signIn(stage, token, `/jobs/${id}`)
  await page.locator('.head .pill').waitFor()
  refused.length = 0
  const hrefs = await page
    .locator('nav > a')
    .evaluateAll((links) => links.map((link) => (link as HTMLAnchorElement).href))
  expect(hrefs.length).toBeGreaterThan(2)
  for (const href of [...new Set(hrefs), `${stage.url}/jobs/${id}`]) {
    await page.goto(href)
    await page.locator('main h2').first().waitFor()
    await page.locator('.skeleton').first().waitFor({ state: 'detached' })
  }
  expect(refused).toEqual([])
})
