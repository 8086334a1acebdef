import { randomUUID } from 'node:crypto'
import type { Browser } from 'playwright-core'
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest'
import { LOCAL_ADMIN } from '../../server/src/services/access/access.ts'
import { lease, WORKER } from '../../server/src/testing/http/cloud-worker.ts'
import { FETCH_TIMEOUT_MS, openBrowser, type Stage, setStage } from './stage.ts'
import { MARKUP, QUEUE, submit } from './work.ts'

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

const headPill = (text: string) => stage.page.locator('.head .pill', { hasText: text })
const NOTHING = { summaryText: null, freqsCsv: null, meta: null, costMicros: null }

test('a waiting job says why it waits and what would help', async () => {
  const id = await submit(stage, { key: 'ci-build-7', labels: { team: 'blue' } })
  await stage.visit(`/jobs/${id}`)
  const why = stage.page.getByRole('region', { name: 'Why it waits' })
  await why.getByText('No worker takes it').waitFor()
  await why.getByRole('button', { name: /^Copy/ }).waitFor()
  await stage.page.getByText('ci-build-7', { exact: true }).waitFor()
  await stage.page.getByText('team:blue').first().waitFor()
  await stage.shot('job-waiting')
})

test('a running job shows its stages, its log and its events as they come', async () => {
  const stages = [
    { name: 'fetch', from: 10, to: 19 },
    { name: 'train', from: 20, to: 29 },
  ]
  const id = await submit(stage, { stages })
  const { services } = stage.http
  const { lease_id } = await lease(stage.http, QUEUE)
  await stage.visit(`/jobs/${id}`)
  await services.events.publish('cloud-worker', lease_id, { stage: 'fetch', seq: 10, data: { note: MARKUP } })
  await stage.page.locator('.steps li[aria-current="step"]', { hasText: 'fetch' }).waitFor()
  await stage.page.locator('td.data', { hasText: 'onerror' }).waitFor()
  await services.logs.append('cloud-worker', lease_id, [{ n: 1, stream: 'stdout', text: `step 1 ${MARKUP}\nstep 2\n` }])
  const log = stage.page.getByRole('log')
  await log.getByText('step 2').waitFor()
  await stage.page.getByLabel('Search in the log').fill('STEP 1')
  await log.getByText('step 2').waitFor({ state: 'detached' })
  await stage.shot('job-running')
  expect(await stage.page.locator('main img').count()).toBe(0)
  expect(await stage.page.title()).toBe('Ichido')
})

test('a failed job shows its error and its runs, and is retried here', async () => {
  const id = await submit(stage, { payload: { note: MARKUP } })
  const { lease_id } = await lease(stage.http, QUEUE)
  const error = { code: 'OOM', message: MARKUP, traceback: 'at step 3' }
  await stage.http.services.runs.finish('cloud-worker', lease_id, { verb: 'fail', error, retryable: false })
  await stage.visit(`/jobs/${id}`)
  await headPill('Failed').waitFor()
  await stage.page.getByText(`OOM: ${MARKUP}`).first().waitFor()
  await stage.page.getByText('at step 3').waitFor()
  await stage.shot('job-failed')
  await stage.page.getByRole('button', { name: 'Retry', exact: true }).click()
  await stage.page.getByRole('dialog').getByRole('button', { name: 'Retry' }).click()
  await headPill('Pending').waitFor()
  await expect.poll(() => stage.page.locator('.timeline tbody tr').count()).toBe(2)
  expect((await stage.http.services.jobs.get(LOCAL_ADMIN, id)).state).toBe('PENDING')
})

test('a failed job is retried with another payload, and bad JSON is not sent', async () => {
  const id = await submit(stage)
  const { lease_id } = await lease(stage.http, QUEUE)
  const error = { code: 'BAD', message: 'bad' }
  await stage.http.services.runs.finish('cloud-worker', lease_id, { verb: 'fail', error, retryable: false })
  await stage.visit(`/jobs/${id}`)
  await stage.page.getByRole('button', { name: 'Retry with another payload' }).click()
  const dialog = stage.page.getByRole('dialog')
  await dialog.getByLabel('Payload').fill('{"n": ')
  await dialog.getByText('This is not JSON.').waitFor()
  expect(await dialog.getByRole('button', { name: 'Submit' }).isDisabled()).toBe(true)
  await dialog.getByLabel('Payload').fill('{"n": 2}')
  await dialog.getByRole('button', { name: 'Submit' }).click()
  await stage.page.getByText('A new job was submitted.').waitFor()
  const { data } = await stage.http.services.jobs.list(LOCAL_ADMIN, NO_FILTER, 10, null)
  expect(data.map(({ replaces_job_id }) => replaces_job_id)).toEqual([id, null])
})

test('a running job is asked to stop, and a waiting one is canceled at once', async () => {
  const [running, waiting] = [await submit(stage), await submit(stage, { queue: 'other' })]
  await lease(stage.http, QUEUE)
  for (const [id, says, state] of [
    [running, 'Its worker is asked to stop it', 'Canceling'],
    [waiting, 'It ends at once', 'Canceled'],
  ] as const) {
    await stage.visit(`/jobs/${id}`)
    await stage.page.getByRole('button', { name: 'Cancel', exact: true }).click()
    await stage.page.getByRole('dialog').getByText(says).waitFor()
    await stage.page.getByRole('dialog').getByRole('button', { name: 'Cancel' }).click()
    await headPill(state).waitFor()
    expect(await stage.page.getByRole('button', { name: 'Cancel', exact: true }).count()).toBe(0)
  }
})

test('a job that succeeded shows its result, and how to submit one like it', async () => {
  const id = await submit(stage, { payload: { text: "it's" } })
  const request = { queues: [QUEUE], kinds: ['cloud.train'], max: 1, waitMs: 0, startId: randomUUID() }
  const [leased] = await stage.http.services.runs.lease('lab-pc', request)
  if (leased === undefined) throw new Error('There is nothing to lease')
  await stage.http.services.runs.finish('lab-pc', leased.lease_id, { verb: 'finish', result: '{"sum": 7}', ...NOTHING })
  await stage.visit(`/jobs/${id}`)
  await stage.page.getByRole('region', { name: 'Result' }).getByText('"sum": 7').waitFor()
  const likeThis = stage.page.getByRole('region', { name: 'Submit a job like this' })
  await likeThis.getByText(`"it'\\''s"`).waitFor()
  await likeThis.getByRole('button', { name: 'TypeScript' }).click()
  await likeThis.getByText('ichido.submit(kind').waitFor()
  await stage.shot('job-succeeded')
  expect(stage.complaints).toEqual([])
})

test('the stages of a preset are steps, and the last one reached is the current one', async () => {
  const id = await submit(stage, { stages: 'eco2' })
  const { lease_id } = await lease(stage.http, QUEUE)
  await stage.http.services.events.publish('cloud-worker', lease_id, {
    stage: 'rule',
    seq: 20,
    data: { text: 'Looks for the rule' },
  })
  await stage.visit(`/jobs/${id}`)
  const steps = stage.page.locator('.steps li')
  await steps
    .filter({ has: stage.page.getByText('rule', { exact: true }) })
    .getByText('Looks for the rule')
    .waitFor()
  expect(await steps.locator('b').allInnerTexts()).toEqual(['vision', 'rule', 'answer', 'reward', 'done'])
  const places = await steps.evaluateAll((all) => all.map((step) => step.dataset.place))
  expect(places).toEqual(['done', 'current', 'ahead', 'ahead', 'ahead'])
})

test('the runs of a job are a picture with words: why each waited, and who held it', async () => {
  const id = await submit(stage, { max_attempts: 2, backoff: { base_seconds: 3_600, jitter: 0 } })
  const { lease_id } = await lease(stage.http, QUEUE)
  const error = { code: 'SCF', message: 'did not converge' }
  await stage.http.services.runs.finish('cloud-worker', lease_id, { verb: 'fail', error, retryable: true })
  await stage.visit(`/jobs/${id}`)
  const [first, second] = [
    stage.page.locator('.timeline tbody tr').nth(0),
    stage.page.locator('.timeline tbody tr').nth(1),
  ]
  await first.getByRole('cell', { name: 'cloud-worker', exact: true }).waitFor()
  await first.getByText(/Runs \d/).waitFor()
  await second.getByText(/Delay before the retry/).waitFor()
  await second.locator('.bars [data-part="retry"]').waitFor()
})

test('a log says where the next run begins', async () => {
  const id = await submit(stage, { max_attempts: 2, backoff: { base_seconds: 1, jitter: 0 } })
  const { logs, jobs } = stage.http.services
  const first = await lease(stage.http, QUEUE)
  await logs.append(WORKER, first.lease_id, [{ n: 0, stream: 'stdout', text: 'one\n' }])
  const error = { code: 'BAD', message: 'bad' }
  await stage.http.services.runs.finish(WORKER, first.lease_id, { verb: 'fail', error, retryable: false })
  await stage.http.call('POST', `/v1/jobs/${id}/retry`)
  expect((await jobs.get(LOCAL_ADMIN, id)).runs).toHaveLength(2)
  const second = await lease(stage.http, QUEUE)
  await logs.append(WORKER, second.lease_id, [{ n: 0, stream: 'stdout', text: 'two\n' }])
  await stage.visit(`/jobs/${id}`)
  const log = stage.page.getByRole('log')
  await log.getByText('two').waitFor()
  expect(await log.innerText()).toMatch(/^one\s+Run 2\s+two\s*$/)
})

test('an unknown job is a sentence, not an empty page', async () => {
  await stage.page.goto(`${stage.url}/jobs/${randomUUID()}`)
  await stage.page.getByRole('alert').waitFor()
})

const NO_FILTER = {
  states: [],
  pendingFor: null,
  userId: null,
  queue: null,
  kind: null,
  label: null,
  key: null,
  shortId: null,
  createdFromMs: null,
  createdToMs: null,
  errorCode: null,
  text: null,
  waitingLongerThanMs: null,
}
