import { gunzipSync, gzipSync } from 'node:zlib'
import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { FETCH_TIMEOUT_MS, openBrowser, type Stage, setStage } from './stage.ts'

const KIB = 1_024
/** The gzipped sizes that a first visit may load. */
const SCRIPT_BYTES_MAX = 90 * KIB
const STYLE_BYTES_MAX = 14 * KIB

let browser: Browser
let stage: Stage

beforeAll(async () => {
  browser = await openBrowser()
  stage = await setStage(browser, {}, { basePath: '/ichido' })
}, FETCH_TIMEOUT_MS)
afterAll(async () => {
  await stage.close()
  await browser.close()
})

test('the page has a strict policy, and an ETag that spares the second download', async () => {
  const { status, headers, text } = await stage.http.call('GET', '/ichido/jobs')
  expect({ status, ...headers }).toMatchObject({
    status: 200,
    'content-type': 'text/html; charset=utf-8',
    'cache-control': 'no-cache',
    'x-content-type-options': 'nosniff',
  })
  expect(headers['content-security-policy']).toMatch(/^default-src 'none'; script-src 'self'; style-src 'self';/)
  expect(headers['content-security-policy']).not.toContain('unsafe')
  expect(text).toContain('<base href="/ichido/">')
  const again = await stage.http.call('GET', '/ichido/jobs', { headers: { 'if-none-match': String(headers.etag) } })
  expect(again).toMatchObject({ status: 304, text: '' })
})

test('assets are gzipped and kept by the browser for good; an unknown one is 404', async () => {
  const { text } = await stage.http.call('GET', '/ichido/')
  const [, script = ''] = /src="\.\/(assets\/[^"]+\.js)"/.exec(text) ?? []
  const answer = await stage.http.app.inject({ url: `/ichido/${script}`, headers: { 'accept-encoding': 'gzip' } })
  expect(answer.statusCode).toBe(200)
  expect(answer.headers).toMatchObject({
    'content-type': 'text/javascript; charset=utf-8',
    'content-encoding': 'gzip',
    'cache-control': 'public, max-age=31536000, immutable',
  })
  const plain = await stage.http.call('GET', `/ichido/${script}`)
  expect(gunzipSync(answer.rawPayload).toString()).toBe(plain.text)
  const unknown = await stage.http.call('GET', '/ichido/assets/none.js')
  expect(unknown).toMatchObject({ status: 404, body: { error: { code: 'NOT_FOUND' } } })
  expect(unknown.headers['cache-control']).toBe('no-store')
})

test('a first visit loads little, and works under a base path', async () => {
  const bytes = { script: 0, stylesheet: 0 }
  const loads: Promise<void>[] = []
  stage.page.on('response', (response) => {
    const type = response.request().resourceType()
    if (type !== 'script' && type !== 'stylesheet') return
    loads.push(
      response.body().then((body) => {
        bytes[type] += gzipSync(body).length
      }),
    )
  })
  await stage.visit('/')
  await stage.page.getByRole('link', { name: 'Jobs', exact: true }).click()
  await stage.page.getByText('No jobs yet').waitFor()
  await Promise.all(loads)
  expect(new URL(stage.page.url()).pathname).toBe('/ichido/jobs')
  expect(bytes.script).toBeGreaterThan(0)
  expect(bytes.script).toBeLessThan(SCRIPT_BYTES_MAX)
  expect(bytes.stylesheet).toBeLessThan(STYLE_BYTES_MAX)
})
