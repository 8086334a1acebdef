import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { LOCAL_ADMIN } from '../../server/src/services/access/access.ts'
import { lease } from '../../server/src/testing/http/cloud-worker.ts'
import { registered } from '../../server/src/testing/services/workers.ts'
import { barriers } from './axe.ts'
import { FETCH_TIMEOUT_MS, openBrowser, type Stage, setStage } from './stage.ts'
import { MARKUP, QUEUE, submit } from './work.ts'

const PAGES = [
  '/',
  '/jobs',
  '/queues',
  '/workers',
  '/schedules',
  '/schedules/nightly',
  '/dead-letters',
  '/users',
  '/keys',
  '/tokens',
  '/audit',
  '/alerts',
  '/webhooks',
  '/settings',
  '/system',
]
const LOOKS = [
  ['light, wide', { colorScheme: 'light', locale: 'en-US', viewport: { width: 2_560, height: 1_300 } }],
  ['dark, in Japanese', { colorScheme: 'dark', locale: 'ja-JP', viewport: { width: 1_280, height: 900 } }],
  ['on a phone', { colorScheme: 'light', locale: 'en-US', viewport: { width: 390, height: 844 } }],
  ['on a phone, dark', { colorScheme: 'dark', locale: 'ja-JP', viewport: { width: 390, height: 844 } }],
] as const

let browser: Browser

beforeAll(async () => {
  browser = await openBrowser()
}, FETCH_TIMEOUT_MS)
afterAll(() => browser.close())

/** A store in which every page has something to show, with hostile text wherever a caller may write text. */
async function fill(stage: Stage): Promise<string> {
  const { http } = stage
  const labels = { team: 'blue' }
  await submit(stage, { payload: { note: MARKUP }, key: 'ci-build-7', labels })
  const failing = await submit(stage, { queue: 'cloud.fails', payload: { note: MARKUP } })
  const { lease_id } = await lease(http, 'cloud.fails')
  const error = { code: 'OOM', message: MARKUP, traceback: MARKUP }
  await http.services.runs.finish('cloud-worker', lease_id, { verb: 'fail', error, retryable: false })
  await lease(http, QUEUE)
  const { worker_id: workerId } = await registered(http.services, { name: MARKUP, meta: { hostname: MARKUP } })
  await submit(stage, { queue: 'held' })
  await http.services.runs.lease(workerId, { queues: ['held'], kinds: [], max: 1, waitMs: 0, startId: 'p' })
  await http.services.workers.drain(LOCAL_ADMIN, workerId)
  const schedule = { cron: '30 2 * * *', time_zone: 'Asia/Tokyo' }
  const made = await http.call('POST', '/v1/definitions', {
    body: { name: 'nightly', kind: 'report', payload: { note: MARKUP }, schedule },
  })
  expect(made.status).toBe(201)
  const limited = await http.call('PUT', '/v1/quotas/local', { body: { max_concurrent: 5, cost_limit: 10 } })
  expect(limited.status).toBe(200)
  return failing
}

/** A page has drawn its data when nothing of it still loads. */
async function settled({ page }: Stage): Promise<void> {
  await page.locator('main h2').first().waitFor()
  await page.locator('.skeleton').first().waitFor({ state: 'detached' })
}

describe.each(LOOKS)('%s', (name, look) => {
  let stage: Stage
  let failing: string

  beforeAll(async () => {
    stage = await setStage(browser, look)
    failing = await fill(stage)
  })
  afterAll(() => stage.close())

  test.each([...PAGES, '/jobs/:id'])('%s has no serious finding, no error, and fits the screen', async (path) => {
    stage.complaints.length = 0
    await stage.page.goto(`${stage.url}${path.replace(':id', failing)}`)
    await settled(stage)
    await stage.shot(`${path.slice(1).replaceAll(/\W/g, '-') || 'overview'} ${name}`)
    expect(await barriers(stage)).toEqual([])
    expect(await stage.page.evaluate(() => document.documentElement.scrollWidth - innerWidth)).toBeLessThanOrEqual(0)
    expect(await stage.page.locator('main img, main script').count()).toBe(0)
    expect(await stage.page.title()).toBe('Ichido')
    expect(await stage.page.locator('html').getAttribute('lang')).toBe(look.locale.slice(0, 2))
    expect(stage.complaints).toEqual([])
  })
})
