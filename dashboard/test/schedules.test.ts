import type { Browser } from 'playwright-core'
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest'
import { WORKER } from '../../server/src/testing/http/cloud-worker.ts'
import { seize } from '../../server/src/testing/nodes/reaper.ts'
import { ticker } from '../../server/src/testing/nodes/ticker.ts'
import { barriers } from './axe.ts'
import { FETCH_TIMEOUT_MS, openBrowser, type Stage, setStage } from './stage.ts'
import { signIn } from './visitor.ts'
import { MARKUP } from './work.ts'

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

const NIGHTLY = { name: 'nightly', kind: 'report', queue: 'night', payload: { note: MARKUP } }

async function define(changes: object): Promise<void> {
  const made = await stage.http.call('POST', '/v1/definitions', { body: { ...NIGHTLY, ...changes } })
  expect(made.status).toBe(201)
}

async function stored(path: string): Promise<unknown> {
  return (await stage.http.call('GET', path)).body
}

const button = (name: string) => stage.page.getByRole('button', { name, exact: true })
const dialog = () => stage.page.getByRole('dialog')

test('definitions appear by themselves, are paused, resumed and run', async () => {
  const { page } = stage
  await stage.visit('/schedules')
  await page.getByText('No definitions yet').waitFor()
  await page.getByText("--cron '30 2 * * *'").waitFor()
  await define({ schedule: { cron: '30 2 * * *', time_zone: 'Asia/Tokyo' } })
  const row = page.locator('tr[data-id="nightly"]')
  await row.getByRole('cell', { name: 'Every day at 02:30 (Asia/Tokyo)' }).waitFor()
  await button('Pause: nightly').click()
  await dialog().getByText('recorded as skipped').waitFor()
  await dialog().getByRole('button', { name: 'Pause' }).click()
  await row.locator('.pill', { hasText: 'Paused' }).waitFor()
  expect(await stored('/v1/definitions/nightly')).toMatchObject({ paused: true })
  expect(await barriers(stage)).toEqual([])
  await stage.shot('schedules-light')
  await button('Resume: nightly').click()
  await dialog().getByRole('button', { name: 'Resume' }).click()
  await row.locator('.pill', { hasText: 'Paused' }).waitFor({ state: 'detached' })
  expect(await stored('/v1/definitions/nightly')).toMatchObject({ paused: false })
  await button('Run now: nightly').click()
  await dialog().getByRole('button', { name: 'Run now' }).click()
  await page.getByText('The job was made.').waitFor()
  expect(await stored('/v1/jobs')).toMatchObject({ data: [{ kind: 'report', queue: 'night' }] })
  await page.emulateMedia({ colorScheme: 'dark' })
  await page.setViewportSize({ width: 390, height: 844 })
  await stage.shot('schedules-dark-390')
  expect(stage.complaints).toEqual([])
})

test('the ledger fills as ticks pass, and a range of past ticks is counted, made and aborted', async () => {
  const { page, http } = stage
  const { deps } = http.services
  await define({ schedule: { cron: '* * * * * *', catch_up: 'all', catch_up_window_seconds: 3600 } })
  await stage.visit('/schedules/nightly')
  await page.getByText('Every second', { exact: true }).waitFor()
  await page.getByText(JSON.stringify(MARKUP)).waitFor()
  const tick = await ticker({ ...deps, services: http.services }, { term: await seize(deps.store) })
  const ledger = page.getByRole('region', { name: 'Ledger' })
  const made = async () => {
    await tick()
    return JSON.stringify(await stored('/v1/definitions/nightly/occurrences'))
  }
  await expect.poll(made, { timeout: 30_000 }).toContain('"outcome":"job"')
  await ledger.getByRole('link').first().waitFor()
  await ledger.locator('.ticks li', { hasText: 'Pending' }).first().waitFor({ state: 'attached' })
  const asked = { queues: ['night'], kinds: [], max: 1, waitMs: 0, startId: 'failing' }
  const [leased] = await http.services.runs.lease(WORKER, asked)
  if (leased === undefined) throw new Error('There is no job of the schedule')
  const error = { code: 'NO_DATA', message: 'The warehouse was empty' }
  await http.services.runs.finish(WORKER, leased.lease_id, { verb: 'fail', error, retryable: false })
  // A schedule whose jobs fail must not look healthy.
  await ledger.locator('.ticks li[data-state="FAILED"]').waitFor({ state: 'attached' })
  await ledger.getByRole('cell', { name: 'Failed' }).waitFor()

  await button('Backfill').click()
  await dialog().getByLabel('From').fill('2026-01-01T00:00')
  await dialog().getByLabel('Before').fill('2025-12-31T00:00')
  await dialog().getByRole('alert').getByText('to must be after from').waitFor()
  await dialog().getByLabel('Before').fill('2026-01-01T00:01')
  await dialog().getByText('This would make 60 jobs').waitFor()
  await stage.shot('schedule-backfill')
  await button('Make 60 jobs').click()
  const backfills = page.getByRole('region', { name: 'Backfills' })
  await backfills.getByText('0 of 60').waitFor()
  expect(await barriers(stage)).toEqual([])
  await stage.shot('schedule-light')
  await backfills.getByRole('button', { name: 'Abort' }).click()
  await dialog().getByRole('button', { name: 'Abort' }).click()
  await backfills.getByText('Aborted').waitFor()
  expect(await stored('/v1/definitions/nightly/backfills')).toMatchObject({ data: [{ state: 'aborted', made: 0 }] })
  await page.emulateMedia({ colorScheme: 'dark' })
  await page.setViewportSize({ width: 390, height: 844 })
  await stage.shot('schedule-dark-390')
  expect(await page.title()).toBe('Ichido')
  expect(await page.locator('main img, main script').count()).toBe(0)
  expect(stage.complaints.filter((text) => !text.includes('400'))).toEqual([])
})

test('a rule is previewed in words, refused by its field, and saved with everything else kept', async () => {
  const { page } = stage
  const where = { 'order.note': MARKUP }
  await define({ schedule: { cron: '30 2 * * *' }, on: { topic: 'orders', where }, labels: { team: 'blue' } })
  await stage.visit('/schedules/nightly')
  await page.getByRole('region', { name: 'Reacts to' }).getByText(JSON.stringify(MARKUP)).waitFor()
  await button('Change the rule').click()
  await dialog().getByText('Every day at 02:30').waitFor()
  const cron = dialog().getByLabel('Cron rule')
  await cron.fill('61 * * * *')
  await dialog().getByRole('alert').getByText('has a minute that cannot be read').waitFor()
  expect(await cron.getAttribute('aria-invalid')).toBe('true')
  expect(await button('Save').isDisabled()).toBe(true)
  await cron.fill('0 9 * * MON-FRI')
  await dialog().getByLabel('Time zone').fill('Asia/Tokyo')
  await dialog().getByText('Monday to Friday at 09:00').waitFor()
  await dialog().getByText('09:00:00+09:00').first().waitFor()
  expect(await barriers(stage)).toEqual([])
  await stage.shot('schedule-rule')
  await button('Save').click()
  await page.getByText('The rule of nightly is changed.').waitFor()
  await page.locator('main section').getByText('Monday to Friday at 09:00').waitFor()
  expect(await stored('/v1/definitions/nightly')).toMatchObject({
    ...NIGHTLY,
    labels: { team: 'blue' },
    on: { topic: 'orders', where },
    schedule: { cron: '0 9 * * MON-FRI', time_zone: 'Asia/Tokyo' },
  })

  // Another operator changes it while the window is open.
  await button('Change the rule').click()
  await dialog().getByLabel('Cron rule').fill('5 * * * *')
  await dialog().getByText('At minute 5 of every hour').waitFor()
  const changed = await stage.http.call('PUT', '/v1/definitions/nightly', { body: { kind: 'other' } })
  expect(changed.status).toBe(200)
  await button('Save').click()
  await dialog().getByRole('alert').getByText('has version').waitFor()
  expect(await stored('/v1/definitions/nightly')).toMatchObject({ kind: 'other', schedule: null })
})

test('a viewer sees schedules and no button that changes them', async () => {
  await define({ schedule: { cron: '@daily' } })
  await signIn(stage, await stage.http.token('sees', 'viewer'))
  await stage.visit('/schedules')
  await stage.page.getByRole('link', { name: 'nightly' }).click()
  await stage.page.getByText('Every day at 00:00').waitFor()
  await stage.page.getByRole('region', { name: 'Next ticks' }).getByRole('listitem').first().waitFor()
  expect(await stage.page.locator('main').getByRole('button').allInnerTexts()).toEqual([])
})
