import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { SeriesPoint, SeriesShape } from '../src/server/series.ts'
import { barriers } from './axe.ts'
import { FETCH_TIMEOUT_MS, openBrowser, type Stage, setStage } from './stage.ts'
import { submit } from './work.ts'

const MINUTE_MS = 60_000
const POINTS = 60
/** The minutes in which no node measured. */
const SILENT = [20, 21, 22]

let browser: Browser
beforeAll(async () => {
  browser = await openBrowser()
}, FETCH_TIMEOUT_MS)
afterAll(() => browser.close())

function point(i: number, at: number): SeriesPoint {
  const sampled = !SILENT.includes(i)
  return {
    at: new Date(at).toISOString(),
    submitted: 40 + i,
    started: 38 + (i % 7),
    succeeded: 30 + (i % 5),
    failed: i % 9 === 0 ? 3 : 0,
    timed_out: i % 20 === 0 ? 1 : 0,
    canceled: 0,
    retried: i % 9 === 0 ? 2 : 0,
    dead_lettered: i % 20 === 0 ? 1 : 0,
    key_hits: i % 4,
    cost: i / 10,
    wait_ms: { p50: 20 + i, p99: 900 + i * 10 },
    run_ms: { p50: 1_500, p99: 9_000 + i * 100 },
    ready: sampled ? 100 + i * 3 : null,
    delayed: sampled ? 12 : null,
    running: sampled ? 8 : null,
    oldest_waiting_seconds: sampled ? 4 : null,
    dead_letters: sampled ? 17 : null,
    workers_online: sampled ? 3 : null,
    sampled,
  }
}

function fixture(url: URL): SeriesShape {
  const to = Math.floor(Date.now() / MINUTE_MS) * MINUTE_MS
  const from = to - (POINTS - 1) * MINUTE_MS
  return {
    range: (url.searchParams.get('range') ?? '1h') as SeriesShape['range'],
    step_seconds: 60,
    from: new Date(from).toISOString(),
    to: new Date(to).toISOString(),
    queue: url.searchParams.get('queue'),
    queues: ['default', 'gpu'],
    points: Array.from({ length: POINTS }, (_, i) => point(i, from + i * MINUTE_MS)),
  }
}

/** The paths of the series that the page asked for. */
async function withSeries(stage: Stage): Promise<string[]> {
  const asked: string[] = []
  await stage.page.route('**/v1/stats/series*', (route) => {
    const url = new URL(route.request().url())
    asked.push(url.search)
    return route.fulfill({ json: fixture(url) })
  })
  return asked
}

const complaintsOf = ({ complaints }: Stage) => complaints.filter((text) => !text.includes('404'))

/** The drawn pixels of the first chart. */
const pixels = ({ page }: Stage) =>
  page
    .locator('.chart canvas')
    .first()
    .evaluate((node) => (node as HTMLCanvasElement).toDataURL())

test('charts, figures and tables show the series of the range and queue in the URL', async () => {
  const stage = await setStage(browser)
  try {
    const asked = await withSeries(stage)
    await stage.visit('/?range=1h')
    const { page } = stage
    await page.locator('.chart canvas').nth(9).waitFor()
    expect(await page.locator('.chart').count()).toBe(10)
    const figure = (name: string) => page.locator('.figures li', { hasText: name }).locator('b')
    expect(await figure('Dead letters').innerText()).toBe('17')
    expect(await figure('Workers online').innerText()).toBe('3')
    expect(await figure('Failures in range').innerText()).toBe('24')
    await submit(stage)
    await figure('Waiting').filter({ hasText: '1' }).waitFor()

    const depth = page.locator('.chart', { hasText: 'Queue depth' })
    await depth.getByText('3 steps were not measured').waitFor()
    await depth.getByText('Show as a table').click()
    await depth.locator('tbody tr').first().waitFor()
    expect(await depth.locator('tbody tr').count()).toBe(POINTS)
    const silent = depth.locator('tbody tr').nth(POINTS - 1 - 20)
    expect(await silent.locator('td').allInnerTexts()).toEqual(['not measured', 'not measured', 'not measured'])

    await page.getByRole('button', { name: '24 h' }).click()
    await page.getByRole('combobox', { name: 'Queue' }).selectOption('gpu')
    await expect.poll(() => asked.at(-1)).toBe('?range=24h&queue=gpu')
    expect(new URL(page.url()).search).toBe('?range=24h&queue=gpu')
    await stage.shot('overview-light')

    expect(await barriers(stage)).toEqual([])
    expect(complaintsOf(stage)).toEqual([])
  } finally {
    await stage.close()
  }
})

test('charts take the colours of the theme and the width of their card', async () => {
  const stage = await setStage(browser, { colorScheme: 'dark', viewport: { width: 390, height: 844 } })
  try {
    await withSeries(stage)
    await stage.visit('/')
    const { page } = stage
    await page.locator('.chart canvas').nth(9).waitFor()
    await stage.shot('overview-dark-390')
    expect(await barriers(stage)).toEqual([])
    const dark = await pixels(stage)
    await page.emulateMedia({ colorScheme: 'light' })
    await expect.poll(() => pixels(stage)).not.toBe(dark)
    const widest = () => page.evaluate(() => document.documentElement.scrollWidth - innerWidth)
    expect(await widest()).toBeLessThanOrEqual(0)
    await page.setViewportSize({ width: 2_560, height: 1_200 })
    await expect
      .poll(() =>
        page
          .locator('.chart')
          .first()
          .evaluate((card) => {
            const [plot, canvas] = [card.querySelector('.plot'), card.querySelector('canvas')]
            return Math.abs((plot?.clientWidth ?? 0) - (canvas?.clientWidth ?? -9))
          }),
      )
      .toBeLessThanOrEqual(1)
    await stage.shot('overview-2560')
    expect(complaintsOf(stage)).toEqual([])
  } finally {
    await stage.close()
  }
})
