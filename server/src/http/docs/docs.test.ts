import { chromium as playwright } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { chromium } from '../../../../scripts/testing/services.ts'
import { type TestApp, testApp } from '../../testing/http/app.ts'

test('/docs works in a browser, with its policy and without other sites', async () => {
  const http = await testApp('sqlite')
  const url = await http.app.listen({ host: '127.0.0.1', port: 0 })
  const browser = await playwright.launch(await chromium())
  try {
    const page = await browser.newPage()
    const problems: string[] = []
    const asked = new Set<string>()
    page.on('console', (message) => message.type() === 'error' && problems.push(message.text()))
    page.on('pageerror', (error) => problems.push(error.message))
    page.on('request', (request) => asked.add(new URL(request.url()).origin))

    await page.goto(`${url}/docs`)
    await page.locator('#operations-tag-jobs').click()
    const submit = page.locator('.opblock', { hasText: 'Submit a job' }).first()
    await submit.click()
    await submit.getByRole('button', { name: 'Try it out' }).click()
    await submit.locator('textarea').fill('{"kind": "from-the-docs"}')
    await submit.getByRole('button', { name: 'Execute' }).click()
    await submit.locator('.live-responses-table').getByText('"job_id"').waitFor()

    expect(await page.locator('.topbar').count()).toBe(0)
    expect(await http.services.jobs.counts('all')).toEqual({ PENDING: 1 })
    expect(problems).toEqual([])
    expect([...asked].filter((origin) => origin !== 'null')).toEqual([url])
  } finally {
    await browser.close()
    await http.close()
  }
})

describe('the first requests for the docs', () => {
  test.each(['', '/ichido'])('are answered alike if they come together, under %j', async (basePath) => {
    const http = await testApp('sqlite', { basePath, publicUrl: `https://example.org${basePath}` })
    try {
      const paths = ['/openapi.json', '/docs/json', '/openapi.json', '/docs', '/docs/static/index.css']
      const found = await Promise.all(paths.map((path) => http.call('GET', basePath + path)))
      expect(found.map(({ status }) => status)).toEqual(paths.map(() => 200))
      const [document, ofPage, again, page] = found
      expect(ofPage?.body).toEqual(document?.body)
      expect(again?.text).toBe(document?.text)
      expect(document?.body).toMatchObject({ servers: [{ url: 'https://example.org' }] })
      expect(document?.body).toHaveProperty(['paths', `${basePath}/v1/jobs`, 'post'])
      expect(page?.text).toContain(`${basePath}/docs/static/swagger-ui.css`)
    } finally {
      await http.close()
    }
  })
})

describe('the files of the docs', () => {
  let http: TestApp
  beforeAll(async () => {
    http = await testApp('sqlite')
    await http.token('owner', 'admin')
  })
  afterAll(() => http.close())

  const PATHS = ['/docs', '/docs/', '/docs/json', '/docs/yaml', '/docs/static/', '/docs/static/swagger-initializer.js']
  test.each([...PATHS, '/docs/static/index.css'])('%s needs no token, and HEAD has its headers', async (path) => {
    const { status, headers } = await http.call('GET', path)
    expect(status).toBe(200)
    const { 'x-request-id': _, date, ...lasting } = headers
    expect(await http.call('HEAD', path)).toMatchObject({ status: 200, text: '', headers: lasting })
  })

  test('a redirect of the page stays below /docs', async () => {
    const { status, headers, text } = await http.call('GET', '/docs/static/index.html')
    expect({ status, location: headers.location, text }).toEqual({ status: 302, location: '/docs/', text: '' })
    expect(headers).not.toHaveProperty('content-type')
  })

  test('a file that the browser has is 304', async () => {
    const path = '/docs/static/swagger-ui-bundle.js'
    const { headers } = await http.call('GET', path, { headers: { 'accept-encoding': 'gzip' } })
    expect(headers).toMatchObject({ 'content-type': 'application/javascript; charset=utf-8' })
    expect(headers).not.toHaveProperty('content-encoding')
    const { etag, 'last-modified': modified } = headers
    for (const known of [{ 'if-none-match': String(etag) }, { 'if-modified-since': String(modified) }]) {
      const again = await http.call('GET', path, { headers: known })
      expect(again).toMatchObject({ status: 304, text: '', headers: { etag } })
      expect(again.headers).not.toHaveProperty('content-type')
    }
    const changed = await http.call('GET', path, { headers: { 'if-none-match': '"other"' } })
    expect(changed.status).toBe(200)
  })

  test.each([{ range: 'bytes=99999999-' }, { 'if-match': '"other"' }, { range: 'bytes=0-9' }])(
    'a file is whole with %j',
    async (headers) => {
      const path = '/docs/static/index.css'
      const whole = await http.call('GET', path)
      expect(await http.call('GET', path, { headers })).toMatchObject({ status: 200, text: whole.text })
    },
  )

  test.each([
    '/docs/nothing',
    '/docs/%00',
    '/docs/static/%00',
    '/docs/static/nothing.js',
    '/docs/static/%2e%2e/x',
    '/docs/static/..%2f..%2fpackage.json',
    '/docs/static/..%2f..%2fpackage.json%00',
    `/docs/static/${'long'.repeat(200)}`,
  ])('%s is 404', async (path) => {
    expect(await http.call('GET', path)).toMatchObject({ status: 404, body: { error: { code: 'NOT_FOUND' } } })
  })

  test('a path of the docs takes GET only', async () => {
    const answer = await http.call('POST', '/docs/x', { body: {} })
    expect(answer).toMatchObject({ status: 405, body: { error: { code: 'METHOD_NOT_ALLOWED' } } })
    expect(answer.headers.allow).toBe('GET, HEAD')
  })
})
