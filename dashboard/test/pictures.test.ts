import { randomUUID } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import type { LeaseShape } from '@ichido/sdk/protocol'
import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { timingName } from '../../server/src/core/limits/series.ts'
import { seize } from '../../server/src/testing/nodes/reaper.ts'
import { ticker } from '../../server/src/testing/nodes/ticker.ts'
import { registered } from '../../server/src/testing/services/workers.ts'
import { sql } from '../../server/src/testing/store/store.ts'
import { settled } from './filled.ts'
import { FETCH_TIMEOUT_MS, openBrowser, type Stage, setStage } from './stage.ts'
import { submit } from './work.ts'

const IMAGES = fileURLToPath(new URL('../../docs/images/', import.meta.url))
/** The repository keeps every version of a picture. */
const BYTES_MAX = 150_000
const MINUTE_MS = 60_000

let browser: Browser
let stage: Stage
let running: string

beforeAll(async () => {
  browser = await openBrowser()
  stage = await setStage(browser, { viewport: { width: 1_280, height: 800 }, timezoneId: 'UTC' })
  await fillSeries()
  await fillLedger()
  await endJobs()
  running = await runJob()
}, FETCH_TIMEOUT_MS)
afterAll(async () => {
  await stage.close()
  await browser.close()
})

async function worker(name: string): Promise<string> {
  return (await registered(stage.http.services, { name })).worker_id
}

async function lease(workerId: string, queue: string): Promise<LeaseShape> {
  const asked = { queues: [queue], kinds: [], max: 1, waitMs: 0, startId: randomUUID() }
  const [leased] = await stage.http.services.runs.lease(workerId, asked)
  if (leased === undefined) throw new Error(`${queue} has nothing to lease`)
  return leased
}

/** Runs the next job of the queue. Without an error it succeeds. */
async function end(
  workerId: string,
  queue: string,
  error: { code: string; message: string } | null,
  retryable = false,
) {
  const { lease_id } = await lease(workerId, queue)
  const nothing = { summaryText: null, freqsCsv: null, meta: null, costMicros: null }
  const report =
    error === null
      ? ({ verb: 'finish', result: '{"bytes": 48213}', ...nothing } as const)
      : ({ verb: 'fail', error, retryable } as const)
  await stage.http.services.runs.finish(workerId, lease_id, report)
}

/** An hour of a busy server. */
async function fillSeries(): Promise<void> {
  const minute = Math.floor(Date.now() / MINUTE_MS)
  for (let ago = 1; ago <= 60; ago++) {
    const wave = Math.sin(ago / 7) + Math.sin(ago / 2.3) / 3
    const submitted = Math.round(640 + 190 * wave)
    const isBad = ago % 11 === 0
    const figures = {
      ...{ submitted, started: submitted - 8, succeeded: submitted - 14 - (ago % 5) },
      ...{ failed: isBad ? 9 : 2, retried: isBad ? 7 : 1, dead_lettered: ago % 23 === 0 ? 1 : 0 },
      ...{ key_hits: 12 + (ago % 6), cost_micros: 1_200_000 + 90_000 * (ago % 9) },
      ...{ [timingName('wait', 12)]: 500, [timingName('wait', 180 + 20 * (ago % 8))]: 20 },
      ...{ [timingName('run', 900)]: 500, [timingName('run', 4_000 + 300 * (ago % 12))]: 20 },
      ...{ samples: 1, ready: Math.round(90 + 60 * wave), delayed: 14, running: Math.round(38 + 9 * wave) },
      ...{ oldest_waiting_ms: 2_000, dead_letters: 3, workers_online: 6 },
    }
    await sql(
      stage.http.services.deps.store,
      `INSERT INTO ichido.queue_series (queue, at, span, counted_by, batch_n, activity, figures)
        VALUES ('', ${minute - ago}, 1, '', 0, ${submitted}, $1)`,
      JSON.stringify(figures),
    )
  }
}

/** A schedule of which one job has failed. */
async function fillLedger(): Promise<void> {
  const { http } = stage
  const { services } = http
  const { store } = services.deps
  const schedule = { cron: '0 * * * *', time_zone: 'UTC', catch_up: 'all', catch_up_window_seconds: 2 * 86_400 }
  const body = { name: 'hourly-report', kind: 'report', queue: 'reports', payload: { format: 'pdf' }, schedule }
  expect((await http.call('POST', '/v1/definitions', { body })).status).toBe(201)
  await sql(store, 'UPDATE ichido.job_definitions SET next_tick_at = (now_ms() / 3600000 - 29) * 3600000')
  await (await ticker({ ...services.deps, services }, { term: await seize(store) }))()
  const reporter = await worker('reports-1')
  const error = { code: 'NO_DATA', message: 'The warehouse was empty' }
  for (let n = 0; n < 30; n++) await end(reporter, 'reports', n === 17 ? error : null)
}

async function endJobs(): Promise<void> {
  const media = await worker('media-1')
  const errors = [
    { code: 'CARD_DECLINED', message: 'The bank said no' },
    { code: 'BANK_TIMEOUT', message: 'No answer in 30 s' },
  ]
  for (let n = 0; n < 16; n++) {
    const error = n % 5 === 1 ? (errors[n % 2] ?? null) : null
    const kind = error === null ? 'resize' : 'charge-card'
    await submit(stage, { kind, queue: 'media', payload: { order: n }, key: `order-${n}` })
    await end(media, 'media', error)
  }
}

/** A job in its second run, and some that wait behind it. */
async function runJob(): Promise<string> {
  const { services } = stage.http
  const names = ['fetch', 'train', 'evaluate', 'upload']
  const job = await submit(stage, {
    kind: 'train-model',
    queue: 'gpu',
    payload: { model: 'vision-small', epochs: 40, dataset: 's3://sets/birds-2026' },
    key: 'nightly-birds',
    labels: { team: 'vision' },
    stages: names.map((name, i) => ({ name, from: 10 * i + 10, to: 10 * i + 19 })),
    max_attempts: 3,
    backoff: { base_seconds: 0, jitter: 0 },
  })
  const gpu = await worker('gpu-box-2')
  await end(gpu, 'gpu', { code: 'OUT_OF_MEMORY', message: 'The batch needs 31 GiB, and the GPU has 24' }, true)
  const { lease_id } = await lease(gpu, 'gpu')
  await services.events.publish(gpu, lease_id, { stage: 'fetch', seq: 19, data: { percent: 100, images: 12_400 } })
  await services.events.publish(gpu, lease_id, {
    stage: 'train',
    seq: 22,
    data: { percent: 55, epoch: 22, loss: 0.183 },
  })
  const text = 'epoch 20: loss 0.201\nepoch 21: loss 0.192\nepoch 22: loss 0.183\n'
  await services.logs.append(gpu, lease_id, [{ n: 0, stream: 'stdout', text }])
  for (let n = 0; n < 3; n++) await submit(stage, { kind: 'train-model', queue: 'gpu', payload: { n } })
  return job
}

test.each([
  ['overview', () => '/?range=1h'],
  ['jobs', () => '/jobs'],
  ['job', () => `/jobs/${running}`],
  ['schedule', () => '/schedules/hourly-report'],
  ['dead-letters', () => '/dead-letters'],
])('the picture of %s in the docs can be made again, and is small', async (name, place) => {
  await stage.visit(place())
  await settled(stage.page)
  const picture = await stage.page.screenshot()
  expect(picture.byteLength).toBeLessThan(BYTES_MAX)
  expect(stage.complaints).toEqual([])
  if (process.env.ICHIDO_UPDATE_DOCS === '1') writeFileSync(`${IMAGES}${name}.png`, picture)
})
