import { readFileSync } from 'node:fs'
import type { Browser, BrowserContext, BrowserContextOptions, Page } from 'playwright-core'
import { v7 } from 'uuid'
import { expect } from 'vitest'
import { SAMPLES } from '../../server/src/core/limits/series.ts'
import { LOCAL_ADMIN } from '../../server/src/services/access/access.ts'
import { turnAlerts } from '../../server/src/store/system/alerts.ts'
import { addSample } from '../../server/src/store/system/series.ts'
import { PUBLIC_URL } from '../../server/src/testing/http/access-scene.ts'
import type { TestApp } from '../../server/src/testing/http/app.ts'
import { lease, WORKER } from '../../server/src/testing/http/cloud-worker.ts'
import { courier } from '../../server/src/testing/nodes/deliverer.ts'
import { seize } from '../../server/src/testing/nodes/reaper.ts'
import { ticker } from '../../server/src/testing/nodes/ticker.ts'
import { testBlobs, uploadRequest } from '../../server/src/testing/services/artifacts.ts'
import { registered } from '../../server/src/testing/services/workers.ts'
import { sql } from '../../server/src/testing/store/store.ts'
import { type Stage, setStage } from './stage.ts'
import { MARKUP, QUEUE, submit } from './work.ts'

const ROUTES = readFileSync(new URL('../src/routes.tsx', import.meta.url), 'utf8')

/** Every page of the dashboard, as its routes name it. */
export const PAGES: readonly string[] = [...ROUTES.matchAll(/path: '([^']+)', load/g)].map(([, path = '']) => path)

/** Text that would run if a page took it for markup, where spaces are refused. */
const NARROW = '<svg/onload=window.xss=document.title=3>'
/** The name of a definition is a part of an address, which ends at a slash. */
export const HOSTILE_NAME = '<svg onload="window.xss=document.title=5">'
const SCRIPT = 'window.xss = document.title = 4'

/** Contents that would run if a browser opened them as a page of the server. */
export const FILES = {
  'page.html': `<script>${SCRIPT}</script>`,
  'picture.svg': `<svg xmlns="http://www.w3.org/2000/svg" onload="${SCRIPT}"><script>${SCRIPT}</script></svg>`,
  'script.js': SCRIPT,
  'note.txt': MARKUP,
  'picture.png': `<svg xmlns="http://www.w3.org/2000/svg"><script>${SCRIPT}</script></svg>`,
}

export interface Filled extends Stage {
  /** The address of a page, with something that is there. */
  placeOf(page: string): string
  /** The id of each of `FILES`. */
  artifactIds: ReadonlyMap<string, string>
  jobs: { failed: string; done: string; running: string }
  adminToken: string
  /** Another visitor of the same server, who has signed in. */
  enter(token: string, look?: BrowserContextOptions): Promise<BrowserContext>
}

/** A store in which every page has something to show, with hostile text wherever a caller may write text. */
export async function fillStage(browser: Browser): Promise<Filled> {
  const { blobs, remove } = await testBlobs()
  const stage = await setStage(browser, {}, { deps: { blobs, courier } })
  const { http, url } = stage
  const { artifactIds, ...jobs } = await fillJobs(stage)
  const webhook = await fillOperation(http)
  await fillAccess(stage)
  await writeNames(http)
  const adminToken = await http.token('local', 'admin')
  const entered: BrowserContext[] = []
  const places: Record<string, string> = {
    '/jobs/:id': `/jobs/${jobs.running}`,
    '/schedules/:name': '/schedules/nightly',
    '/webhooks/:id': `/webhooks/${webhook}`,
  }
  return {
    ...stage,
    artifactIds,
    jobs,
    adminToken,
    placeOf(page) {
      const place = page.includes(':') ? places[page] : page
      if (place === undefined) throw new Error(`${page} needs something to show: fill the store with it`)
      return place
    },
    async enter(token, look) {
      const context = await signedIn(browser, url, token, look)
      entered.push(context)
      return context
    },
    async close() {
      // An open page would keep its streams, and the server would wait for them.
      for (const context of entered) await context.close()
      await stage.close()
      remove()
    },
  }
}

async function signedIn(
  browser: Browser,
  url: string,
  token: string,
  look: BrowserContextOptions = {},
): Promise<BrowserContext> {
  const context = await browser.newContext({ reducedMotion: 'reduce', locale: 'en-US', ...look })
  const answer = await context.request.post(`${url}/v1/session`, { data: { token } })
  expect(answer.status()).toBe(200)
  return context
}

/** Jobs of each sort: one waits, one is dead, one has succeeded, and one runs with everything that a worker sends. */
async function fillJobs(stage: Stage) {
  const { http } = stage
  const { services } = http
  const note = { note: MARKUP, [MARKUP]: true }
  await submit(stage, { payload: note, key: NARROW, labels: { team: MARKUP } })
  const failed = await submit(stage, { queue: 'cloud.fails', payload: note })
  const error = { code: MARKUP, message: MARKUP, traceback: MARKUP }
  const { lease_id: failing } = await lease(http, 'cloud.fails')
  await services.runs.finish(WORKER, failing, { verb: 'fail', error, retryable: false })
  const done = await submit(stage, { queue: 'cloud.done', key: 'ci-build-7' })
  const { lease_id: ending } = await lease(http, 'cloud.done')
  const outcome = { verb: 'finish', result: JSON.stringify(note), summaryText: MARKUP } as const
  await services.runs.finish(WORKER, ending, { ...outcome, freqsCsv: null, meta: null, costMicros: null })
  const running = await submit(stage, {
    queue: 'cloud.runs',
    payload: note,
    stages: [{ name: 'train', from: 10, to: 19 }],
  })
  const { lease_id: held } = await lease(http, 'cloud.runs')
  await services.events.publish(WORKER, held, { stage: 'train', seq: 10, data: note })
  await services.logs.append(WORKER, held, [{ n: 0, stream: 'stderr', text: `${MARKUP}\n` }])
  const artifactIds = new Map<string, string>()
  for (const [name, text] of Object.entries(FILES)) {
    const request = uploadRequest(Buffer.from(text), { name, leaseId: held })
    const uploaded = await services.artifacts.upload({ workerId: WORKER }, request)
    if (uploaded.kind === 'cut') throw new Error('The upload was cut')
    artifactIds.set(name, uploaded.artifact.artifact_id)
  }
  return { failed, done, running, artifactIds }
}

async function fillAccess(stage: Stage): Promise<void> {
  const { services } = stage.http
  const { worker_id: workerId } = await registered(services, { name: MARKUP, meta: { hostname: MARKUP } })
  await submit(stage, { queue: 'held' })
  await services.runs.lease(workerId, { queues: ['held'], kinds: [], max: 1, waitMs: 0, startId: 'held' })
  await services.workers.drain(LOCAL_ADMIN, workerId)
  await services.workers.enroll(LOCAL_ADMIN, { label: MARKUP })
  await services.quotas.put(LOCAL_ADMIN, 'local', { max_concurrent: 50, cost_limit: 10, period: 'month' })
  await services.quotas.put(LOCAL_ADMIN, MARKUP, { max_concurrent: 5, cost_limit: null, period: 'day' })
  await services.access.createToken(LOCAL_ADMIN, { userId: MARKUP, role: 'viewer', name: MARKUP, ttlSeconds: null })
}

/** A schedule with a tick, a webhook with a dead delivery, an alert, an operation, a redrive, settings and a sample. */
async function fillOperation(http: TestApp): Promise<string> {
  const { services } = http
  const { store } = services.deps
  const definition = { kind: 'report', payload: { note: MARKUP }, on: { topic: 'orders', where: { note: MARKUP } } }
  const nightly = { ...definition, schedule: { cron: '30 2 * * *', time_zone: 'Asia/Tokyo' } }
  await services.definitions.create(LOCAL_ADMIN, 'nightly', nightly)
  await services.definitions.create(LOCAL_ADMIN, HOSTILE_NAME, { kind: 'report' })
  const term = await seize(store)
  await sql(store, `UPDATE ichido.job_definitions SET next_tick_at = now_ms() - 1 WHERE name = 'nightly'`)
  await (await ticker({ ...services.deps, services }, { term }))()
  await begin(http, '/v1/definitions/nightly/backfill', { from: '2026-01-01T00:00:00Z', to: '2026-01-03T00:00:00Z' })

  const asked = { url: PUBLIC_URL, description: MARKUP, label: { name: 'team', value: MARKUP } }
  const { webhook_id } = await services.webhooks.create(LOCAL_ADMIN, asked)
  for (let n = 0; n < 2; n++) await services.webhooks.test(webhook_id)
  const dead = `UPDATE ichido.webhook_deliveries SET state = 'dead', next_at = NULL, ended_at = 1, last_error = $1
    WHERE id = (SELECT min(id) FROM ichido.webhook_deliveries)`
  await sql(store, dead, MARKUP)

  const open = [
    { rule: 'loop_late' as const, subject: MARKUP, message: MARKUP, alertId: v7() },
    { rule: 'oldest_waiting' as const, subject: QUEUE, message: MARKUP, alertId: v7() },
  ]
  const turn = { keepMs: 0, batchMax: 100 }
  await store.write(turnAlerts(term, { ...turn, open, close: [] }))
  await store.write(turnAlerts(term, { ...turn, open: [], close: [open[1]?.alertId ?? ''] }))
  await begin(http, '/v1/operations', { action: 'cancel', filter: { queue: 'none' } })
  await begin(http, '/v1/dead-letters/redrive', { filter: { queue: 'none' } })
  await services.settings.put({ ...LOCAL_ADMIN, userId: MARKUP }, 'reap_interval_seconds', 7)
  await services.queues.put({ ...LOCAL_ADMIN, userId: MARKUP }, MARKUP, { paused: true })
  await services.seriesCounts.flush()
  await store.write(
    addSample(term, { ready: 3, running: 1, dead_letters: 1, [SAMPLES]: 1 }, new Map([[MARKUP, { ready: 3 }]])),
  )
  services.system.watch(() => ({ epoch: 1, leadsSinceMs: null, loops: [{ name: MARKUP, ...LOOP }] }))
  return webhook_id
}

const LOOP = { intervalMs: 5_000, lastEndedAtMs: Date.now(), lastTookMs: 12, late: false }

async function begin(http: TestApp, path: string, body: object): Promise<void> {
  const answer = await http.call('POST', path, { body })
  if (answer.status >= 300) throw new Error(answer.text)
}

/** Names in a job that the contract refuses. */
async function writeNames({ services: { deps } }: TestApp): Promise<void> {
  for (const room of ['jobs', 'ready']) {
    await sql(
      deps.store,
      `UPDATE ichido.${room} SET kind = $1, queue = $1, user_id = $1 WHERE queue = '${QUEUE}'`,
      MARKUP,
    )
  }
}

/** A page has drawn its data when nothing of it still loads. */
export async function settled(page: Page): Promise<void> {
  await page.locator('main h2, main [role=alert]').first().waitFor()
  await expect.poll(() => page.locator('main .skeleton').count(), { timeout: 30_000 }).toBe(0)
}
