import type { Browser } from 'playwright-core'
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest'
import { WORKER } from '../../server/src/testing/http/cloud-worker.ts'
import { lead, redriver } from '../../server/src/testing/store/dead-letters.ts'
import { FETCH_TIMEOUT_MS, openBrowser, type Stage, setStage } from './stage.ts'
import { signIn } from './visitor.ts'
import { MARKUP, shortId, submit } from './work.ts'

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

/** A job that failed for good. */
async function dead(code: string, message = 'It broke', queue = 'media'): Promise<string> {
  const id = await submit(stage, { queue })
  const { runs } = stage.http.services
  const [lease] = await runs.lease(WORKER, { queues: [queue], kinds: [], max: 1, waitMs: 0, startId: 's' })
  await runs.finish(WORKER, lease?.lease_id ?? '', { verb: 'fail', error: { code, message }, retryable: false })
  return id
}

const rowOf = (id: string) => stage.page.locator(`tr[data-id="${id}"]`)
const press = (name: string | RegExp) => stage.page.getByRole('button', { name }).click()

test('dead letters appear by themselves, in groups and as text, with filters in the URL', async () => {
  await stage.visit('/dead-letters')
  await stage.page.getByText('No dead letters').waitFor()
  await stage.shot('dead-letters-empty')
  for (let n = 0; n < 3; n++) await dead('DISK_FULL', `No space left on device ${n}`)
  const marked = await dead(MARKUP, MARKUP, 'video')
  const group = stage.page.getByRole('row').filter({ hasText: 'DISK_FULL' }).first()
  await group.getByRole('cell', { name: '3', exact: true }).waitFor()
  await rowOf(marked).getByText(MARKUP).waitFor()
  await group.getByRole('link', { name: 'DISK_FULL' }).click()
  await rowOf(marked).waitFor({ state: 'detached' })
  expect(new URL(stage.page.url()).search).toBe('?queue=media&kind=cloud.train&error_code=DISK_FULL')
  await stage.page.reload()
  await expect.poll(() => stage.page.locator('tr[data-id]').count()).toBe(3)
  await stage.page.getByLabel('Text', { exact: true }).fill('device 2')
  await expect.poll(() => stage.page.locator('tr[data-id]').count()).toBe(1)
  expect(stage.complaints).toEqual([])
})

test('a group is counted, redriven with a pace, followed and aborted', async () => {
  const ids: string[] = []
  for (let n = 0; n < 3; n++) ids.push(await dead('DISK_FULL', 'No space left'))
  const other = await dead('OTHER')
  await stage.visit('/dead-letters')
  await press('Redrive all DISK_FULL of cloud.train')
  const dialog = stage.page.getByRole('dialog', { name: 'Redrive 3 dead letters' })
  await dialog.getByLabel('Jobs per second').fill('99999')
  await dialog.getByRole('button', { name: 'Redrive 3 dead letters' }).click()
  await dialog.getByRole('alert').getByText('per_second').waitFor()
  await dialog.getByLabel('Jobs per second').fill('5')
  await stage.shot('dead-letters-redrive')
  await dialog.getByRole('button', { name: 'Redrive 3 dead letters' }).click()
  await stage.page.getByText('The redrive has begun.').waitFor()
  const redrives = stage.page.getByRole('region', { name: 'Redrives' })
  await redrives.getByText('0 of 3').waitFor()
  await redrives.getByText('at most 5 per second').waitFor()
  await stage.shot('dead-letters')
  await redrives.getByRole('button', { name: 'Abort' }).click()
  await stage.page.getByRole('dialog').getByText('The other 3 stay dead letters').waitFor()
  await stage.page.getByRole('dialog').getByRole('button', { name: 'Abort' }).click()
  await redrives.getByText('Aborted').waitFor()
  const { store } = stage.http.services.deps
  const tick = redriver(store, await lead(store))

  await stage.page.getByRole('checkbox', { name: `Select job ${shortId(other)}` }).check()
  await stage.page.getByRole('checkbox', { name: `Select job ${shortId(ids[0] ?? '')}` }).check()
  await press('Redrive 2 selected')
  await press('Redrive 2 dead letters')
  await redrives.getByText('0 of 2').waitFor()
  await tick()
  await redrives.getByText('2 of 2').waitFor()
  await rowOf(other).waitFor({ state: 'detached' })
  await rowOf(ids[1] ?? '').waitFor()
  const job = await stage.http.call('GET', `/v1/jobs/${other}`)
  expect(job.body).toMatchObject({ state: 'PENDING', retry_count: 0 })
  expect(stage.complaints.filter((text) => !text.includes('400'))).toEqual([])
})

test('a viewer sees the dead letters and no button that changes them', async () => {
  await dead('DISK_FULL')
  const token = await stage.http.token('sees', 'viewer')
  await signIn(stage, token)
  await stage.visit('/dead-letters')
  await stage.page.getByRole('link', { name: 'DISK_FULL' }).waitFor()
  expect(await stage.page.getByRole('button', { name: /Redrive/ }).count()).toBe(0)
  expect(await stage.page.getByRole('checkbox').count()).toBe(0)
})

test('a group shows when its jobs failed, as bars and in words', async () => {
  for (let n = 0; n < 3; n++) await dead('DISK_FULL')
  await dead('OTHER')
  await stage.visit('/dead-letters')
  const group = stage.page.getByRole('row').filter({ hasText: 'DISK_FULL' }).first()
  const bars = group.getByRole('img', { name: /^At most [1-3] in one step since/ })
  await bars.waitFor()
  const filled = await bars.locator('rect:not(.none)').count()
  expect(filled).toBeGreaterThanOrEqual(1)
  expect(await bars.locator('rect').count()).toBe(24)
})
