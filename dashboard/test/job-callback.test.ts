import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { LOCAL_ADMIN } from '../../server/src/services/access/access.ts'
import { beginEnds } from '../../server/src/store/webhooks/derive-deliveries.ts'
import { courier, deliverer, delivering, endJob } from '../../server/src/testing/nodes/deliverer.ts'
import { sql } from '../../server/src/testing/store/store.ts'
import { barriers } from './axe.ts'
import { FETCH_TIMEOUT_MS, openBrowser, type Stage, setStage } from './stage.ts'
import { signIn } from './visitor.ts'

const VIEWER = { userId: 'eve', role: 'viewer', name: '', ttlSeconds: null } as const

let browser: Browser
let stage: Stage
beforeAll(async () => {
  browser = await openBrowser()
  stage = await setStage(browser, {}, { deps: { courier } })
}, FETCH_TIMEOUT_MS)
afterAll(async () => {
  await stage.close()
  await browser.close()
})

test('the page of a job shows its callback, and redrives the message', async () => {
  const { page, http } = stage
  const { services } = http
  const { store } = services.deps
  await services.settings.put(LOCAL_ADMIN, 'webhooks_allow_private', 1)
  await store.write(beginEnds())
  const jobId = await endJob(services, 'succeed', { callback_url: 'http://127.0.0.1:9/ended' })
  await stage.visit(`/jobs/${jobId}`)
  const card = page.getByRole('region', { name: 'Callback' })
  await card.getByText('There is no message yet').waitFor()
  const tick = await deliverer(services)
  await delivering(tick, 'a try', async () => {
    const { callback } = await services.jobs.get(LOCAL_ADMIN, jobId)
    return callback?.delivery?.attempts === 1
  })
  await card.getByText('Pending').waitFor()
  await card.getByText('ECONNREFUSED').waitFor()
  await sql(store, `UPDATE ichido.webhook_deliveries SET state = 'dead', next_at = NULL, ended_at = 1`)
  await card.getByText('Dead').waitFor()
  expect(await barriers(stage)).toEqual([])
  await stage.shot('job-callback')
  await card.getByRole('button', { name: 'Redrive' }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Redrive' }).click()
  await card.getByText('Pending').waitFor()

  const { token } = await services.access.createToken(LOCAL_ADMIN, VIEWER)
  await signIn(stage, token)
  await stage.visit(`/jobs/${jobId}`)
  await card.getByText('Pending').waitFor()
  expect(await card.getByRole('button').count()).toBe(0)
})
