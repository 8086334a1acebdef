import type { Browser } from 'playwright-core'
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest'
import { LOCAL_ADMIN } from '../../server/src/services/access/access.ts'
import { finish, lease } from '../../server/src/testing/http/cloud-worker.ts'
import { FETCH_TIMEOUT_MS, openBrowser, type Stage, setStage } from './stage.ts'
import { QUEUE, shortId, submit } from './work.ts'

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

const rowOf = (id: string) => stage.page.locator(`tr[data-id="${id}"]`)
const pill = (id: string, text: string) => rowOf(id).locator('.pill', { hasText: text })

test('without jobs the page shows the command that submits one, and no error', async () => {
  await stage.visit('/jobs')
  await stage.page.getByText(`ICHIDO_URL=${stage.url} npm run -s ichido -- demo`).first().waitFor()
  await stage.page.locator('.side .live[data-live="on"]').waitFor()
  await stage.shot('jobs-empty')
  expect(stage.complaints).toEqual([])
})

test('a submitted job appears, and its row changes in place as the job moves', async () => {
  await stage.visit('/jobs')
  await stage.page.getByText('No jobs yet').waitFor()
  const id = await submit(stage)
  await pill(id, 'Pending').waitFor()
  await rowOf(id).evaluate((row) => row.setAttribute('data-seen', 'yes'))
  const { lease_id } = await lease(stage.http, QUEUE)
  await pill(id, 'Running').waitFor()
  await stage.page.locator('.chip', { hasText: 'Running' }).locator('b', { hasText: '1' }).waitFor()
  await finish(stage.http, lease_id)
  await pill(id, 'Succeeded').waitFor()
  expect(await rowOf(id).getAttribute('data-seen')).toBe('yes')
  const later = await submit(stage)
  await pill(later, 'Pending').waitFor()
  const ids = await stage.page.locator('tr[data-id]').evaluateAll((rows) => rows.map((row) => row.dataset.id))
  expect(ids).toEqual([later, id])
  await stage.shot('jobs')
  expect(stage.complaints).toEqual([])
})

test('filters are in the URL, and a reload or a link shows the same list', async () => {
  const [one, other] = [await submit(stage), await submit(stage, { queue: 'other' })]
  await stage.http.services.jobs.cancel(LOCAL_ADMIN, other)
  await stage.visit('/jobs')
  await rowOf(one).waitFor()
  await stage.page.getByRole('button', { name: '1 Canceled' }).click()
  await rowOf(one).waitFor({ state: 'detached' })
  await rowOf(other).waitFor()
  expect(new URL(stage.page.url()).search).toBe('?state=CANCELED')
  await stage.page.getByLabel('Queue', { exact: true }).fill(QUEUE)
  await stage.page.getByText('No job matches').waitFor()
  await stage.page.reload()
  await stage.page.getByText('No job matches').waitFor()
  expect(new URL(stage.page.url()).search).toBe(`?state=CANCELED&queue=${QUEUE}`)
  await stage.page.getByRole('button', { name: 'Clear the filters' }).first().click()
  await rowOf(one).waitFor()
  await rowOf(other).waitFor()
})

test('a refused filter is named, can be removed, and leaves the others', async () => {
  const id = await submit(stage)
  await stage.visit(`/jobs?queue=${QUEUE}&label=broken`)
  await stage.page.getByRole('alert').getByText('The filter label was refused').waitFor()
  await stage.page.getByRole('button', { name: 'Remove this filter' }).click()
  await rowOf(id).waitFor()
  expect(new URL(stage.page.url()).search).toBe(`?queue=${QUEUE}`)
})

test('the list reaches the oldest job', async () => {
  const first = await submit(stage)
  for (let n = 0; n < 120; n++) await submit(stage, { payload: { n } })
  await stage.visit('/jobs')
  const more = stage.page.getByRole('button', { name: 'Show more' })
  for (const rows of [100, 121]) {
    await more.click()
    await expect.poll(() => stage.page.locator('tr[data-id]').count()).toBe(rows)
  }
  await rowOf(first).waitFor()
  expect(await more.count()).toBe(0)
})

test('an outage is shown with the old data, and the page recovers by itself', async () => {
  const id = await submit(stage)
  await stage.visit('/jobs')
  await rowOf(id).waitFor()
  await stage.page.context().setOffline(true)
  await stage.page.getByRole('alert').getByText('The server does not answer').first().waitFor()
  expect(await rowOf(id).count()).toBe(1)
  const later = await submit(stage)
  await stage.page.context().setOffline(false)
  await rowOf(later).waitFor()
  await expect.poll(() => stage.page.getByRole('alert').count()).toBe(0)
  expect(await stage.page.locator('.side .live').innerText()).toBe('Live')
})

test('a paused page sends no requests until it is resumed', async () => {
  await stage.visit('/jobs')
  await stage.page.getByText('No jobs yet').waitFor()
  await stage.page.getByRole('button', { name: 'Pause updates' }).click()
  const id = await submit(stage)
  await stage.page.clock.install()
  await stage.page.evaluate(() => fetch('healthz').then((answer) => answer.text()))
  let asked = 0
  stage.page.on('request', () => asked++)
  await stage.page.clock.runFor(30_000)
  expect(asked).toBe(0)
  await stage.page.getByRole('button', { name: 'Resume updates' }).click()
  await stage.page.clock.runFor(3_000)
  await rowOf(id).waitFor()
})

test('the keyboard alone searches, walks through the rows and opens one', async () => {
  const [older, newer] = [await submit(stage), await submit(stage)]
  await stage.visit('/jobs')
  await rowOf(older).waitFor()
  await stage.page.keyboard.press('/')
  expect(await stage.page.evaluate(() => document.activeElement?.hasAttribute('data-search'))).toBe(true)
  await stage.page.locator('main h2').click()
  await stage.page.keyboard.press('j')
  await rowOf(newer).locator('a:focus').waitFor()
  await stage.page.keyboard.press('j')
  await stage.page.keyboard.press('k')
  await stage.page.keyboard.press('j')
  await rowOf(older).locator('a:focus').waitFor()
  await stage.page.keyboard.press('Enter')
  await stage.page.getByRole('heading', { name: `Job ${shortId(older)}` }).waitFor()
  await stage.page.keyboard.press('?')
  await stage.page.getByRole('dialog', { name: 'Keyboard shortcuts' }).waitFor()
  await stage.page.keyboard.press('Escape')
  await stage.page.getByRole('dialog').waitFor({ state: 'detached' })
})

test('all jobs that match are canceled as one operation, after the page says how many', async () => {
  for (let n = 0; n < 3; n++) await submit(stage, { payload: { n } })
  const other = await submit(stage, { queue: 'other' })
  await stage.visit(`/jobs?queue=${QUEUE}`)
  await stage.page.getByLabel('All 3 that match').check()
  await stage.page.getByRole('button', { name: 'Cancel', exact: true }).click()
  const dialog = stage.page.getByRole('dialog', { name: 'Cancel 3 jobs' })
  await dialog.getByText('3 pending').waitFor()
  await dialog.getByRole('button', { name: 'Start' }).click()
  await stage.page.getByText('The operation has begun.').waitFor()
  const { data } = await stage.http.services.operations.list(LOCAL_ADMIN, 10, null)
  expect(data).toMatchObject([{ action: 'cancel', matched: 3, filter: { queue: QUEUE } }])
  expect((await stage.http.services.jobs.get(LOCAL_ADMIN, other)).state).toBe('PENDING')
  await stage.page.getByRole('region', { name: 'Operations at work' }).getByText('0 of 3').waitFor()
  await stage.page.getByRole('button', { name: 'Abort' }).click()
  await stage.page.getByRole('region', { name: 'Operations at work' }).waitFor({ state: 'detached' })
})

test('another filter takes back the choice of all jobs that match', async () => {
  await submit(stage)
  const other = await submit(stage, { queue: 'other' })
  await stage.visit(`/jobs?queue=${QUEUE}`)
  await stage.page.getByLabel('All 1 that match').check()
  await stage.page.getByLabel('Queue', { exact: true }).fill('other')
  await rowOf(other).waitFor()
  expect(await stage.page.getByLabel('All 1 that match').isChecked()).toBe(false)
})

test('selecting the jobs that are shown takes back the choice of all that match', async () => {
  for (let n = 0; n < 51; n++) await submit(stage, { payload: { n } })
  await stage.visit(`/jobs?queue=${QUEUE}`)
  await stage.page.getByLabel('All 51 that match').check()
  await stage.page.getByRole('button', { name: 'Clear the filters' }).click()
  await stage.page.getByLabel('Select the jobs that are shown').check()
  await stage.page.getByRole('button', { name: 'Cancel', exact: true }).click()
  await stage.page.getByRole('dialog', { name: 'Cancel 50 jobs' }).waitFor()
})

test('a filter that is typed keeps its spaces, and a filter that is chosen meanwhile', async () => {
  await submit(stage)
  await stage.visit('/jobs')
  await stage.page.getByRole('button', { name: '1 Pending' }).waitFor()
  await stage.page.clock.install()
  const field = stage.page.getByLabel('Text', { exact: true })
  await field.pressSequentially('a ')
  await stage.page.getByRole('button', { name: '1 Pending' }).click()
  await stage.page.clock.runFor(1_000)
  await stage.page.waitForURL(/\?state=PENDING&text=a$/)
  await field.press('End')
  await field.pressSequentially('b')
  expect(await field.inputValue()).toBe('a b')
})

test('the waiting time is typed as people write it, and is in the URL in seconds', async () => {
  const id = await submit(stage)
  await stage.visit('/jobs?waiting_longer_than_seconds=5400')
  const field = stage.page.getByLabel('Waiting longer than')
  await expect.poll(() => field.inputValue()).toBe('1h 30m')
  await stage.page.getByText('No job matches').waitFor()
  await field.fill('10 minutes')
  await stage.page.getByText('Write it like 10m').waitFor()
  await field.fill('10m')
  await expect.poll(() => new URL(stage.page.url()).search).toBe('?waiting_longer_than_seconds=600')
  expect(await field.inputValue()).toBe('10m')
  await field.fill('0s')
  await rowOf(id).waitFor()
  await field.fill('')
  await expect.poll(() => new URL(stage.page.url()).search).toBe('')
})

test('the oldest jobs come first if one asks, page by page, and a link keeps the order', async () => {
  const made: string[] = []
  for (let n = 0; n < 52; n++) made.push(await submit(stage, { payload: { n } }))
  await stage.visit('/jobs')
  await stage.page.getByLabel('Order').selectOption('oldest')
  const ids = () => stage.page.locator('tr[data-id]').evaluateAll((rows) => rows.map((row) => row.dataset.id))
  await expect.poll(ids).toEqual(made.slice(0, 50))
  await stage.page.getByRole('button', { name: 'Show more' }).click()
  await expect.poll(ids).toEqual(made)
  await stage.page.reload()
  await expect.poll(ids).toEqual(made.slice(0, 50))
})

test('selected jobs are canceled after the page says how many of them run', async () => {
  const [first, second] = [await submit(stage), await submit(stage)]
  await lease(stage.http, QUEUE)
  await stage.visit('/jobs')
  await pill(first, 'Running').waitFor()
  for (const id of [first, second]) await rowOf(id).getByRole('checkbox').check()
  await stage.page.getByRole('button', { name: 'Cancel', exact: true }).click()
  await stage.page.getByRole('dialog', { name: 'Cancel 2 jobs, 1 of them running' }).waitFor()
})
