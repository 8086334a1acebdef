import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { lease, WORKER } from '../../server/src/testing/http/cloud-worker.ts'
import { testBlobs, uploadRequest } from '../../server/src/testing/services/artifacts.ts'
import { FETCH_TIMEOUT_MS, openBrowser, type Stage, setStage } from './stage.ts'
import { QUEUE, submit } from './work.ts'

const PIXEL = Buffer.from(
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==',
  'base64',
)
const FILES = {
  'frequencies.csv': Buffer.from('mode,cm\n1,400.5\n2,"a, b"\n'),
  'energies.json': Buffer.from('{"total":-1.5}'),
  'pixel.png': PIXEL,
}

let browser: Browser
let stage: Stage
let remove: () => void

beforeAll(async () => {
  browser = await openBrowser()
  const place = await testBlobs()
  remove = place.remove
  stage = await setStage(browser, {}, { deps: { blobs: place.blobs } })
}, FETCH_TIMEOUT_MS)
afterAll(async () => {
  await stage.close()
  await browser.close()
  remove()
})

test('a CSV file is shown as a table, JSON as text, and an image as a picture', async () => {
  const id = await submit(stage)
  const { lease_id } = await lease(stage.http, QUEUE)
  for (const [name, bytes] of Object.entries(FILES)) {
    const upload = uploadRequest(bytes, { name, leaseId: lease_id })
    expect(await stage.http.services.artifacts.upload({ workerId: WORKER }, upload)).toMatchObject({ kind: 'ready' })
  }
  await stage.visit(`/jobs/${id}`)
  const files = stage.page.getByRole('region', { name: 'Files', exact: true })
  const show = (name: string) => files.locator('tr', { hasText: name }).getByRole('button', { name: 'Show' }).click()
  await show('frequencies.csv')
  const sheet = files.getByRole('table', { name: 'frequencies.csv' })
  await sheet.getByRole('columnheader', { name: 'cm' }).waitFor()
  expect(await sheet.getByRole('cell').allInnerTexts()).toEqual(['1', '400.5', '2', 'a, b'])
  await stage.shot('job-files')
  await show('energies.json')
  await files.getByText('"total": -1.5').waitFor()
  await show('pixel.png')
  const picture = files.getByRole('img', { name: 'The image pixel.png' })
  await expect.poll(() => picture.evaluate((image: HTMLImageElement) => image.naturalWidth)).toBe(1)
  expect(stage.complaints).toEqual([])
})
