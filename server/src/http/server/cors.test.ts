import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { type Browser, type Page, chromium as playwright } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { chromium } from '../../../../scripts/testing/services.ts'
import { StoreUnavailable } from '../../core/node/store-errors.ts'
import { type TestApp, testApp } from '../../testing/http/app.ts'
import { JOB, RESULT, submitZpe, ZpeWorker } from '../../testing/http/zpe.ts'

/** Fetching a browser on the first run may take this long. */
const FETCH_TIMEOUT_MS = 300_000
const JSON_TYPE = { 'content-type': 'application/json' }

const pages: Server[] = []
let browser: Browser
let allowed: string
let stranger: string
beforeAll(async () => {
  ;[allowed, stranger] = [await emptyPage(), await emptyPage()]
  browser = await playwright.launch(await chromium())
}, FETCH_TIMEOUT_MS)
afterAll(async () => {
  await browser.close()
  for (const page of pages) page.close()
})

async function emptyPage(): Promise<string> {
  const server = createServer((_, response) => response.setHeader('content-type', 'text/html').end('<p>'))
  await new Promise<void>((listening) => server.listen(0, '127.0.0.1', listening))
  pages.push(server)
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

async function listen({ app }: TestApp): Promise<string> {
  await app.listen({ port: 0, host: '127.0.0.1' })
  return `http://127.0.0.1:${(app.server.address() as AddressInfo).port}`
}

interface Asked {
  method?: string
  headers?: Record<string, string>
  body?: unknown
}

interface Read {
  status: number
  headers: Record<string, string>
  body: unknown
}

/** The answer that a script of the page gets; `blocked` if the browser refuses. */
function ask(page: Page, url: string, { body, ...init }: Asked = {}): Promise<Read | 'blocked'> {
  const request = body === undefined ? init : { ...init, body: JSON.stringify(body) }
  return page.evaluate(
    async ([where, what]): Promise<Read | 'blocked'> => {
      const answer = await fetch(where, what).catch(() => null)
      if (answer === null) return 'blocked'
      const text = await answer.text()
      const isJson = answer.headers.get('content-type')?.startsWith('application/json')
      return {
        status: answer.status,
        headers: Object.fromEntries(answer.headers),
        body: isJson ? JSON.parse(text) : text,
      }
    },
    [url, request] as const,
  )
}

describe('a page of an allowed origin', () => {
  let http: TestApp
  let url: string
  let page: Page
  let as: Record<string, string>
  beforeAll(async () => {
    http = await testApp('sqlite', {
      allowedOrigins: { exact: new Set([allowed]), any: false },
      alter: (services) => ({ ...services, audit: { list: () => Promise.reject(new Error('a bug')) } }),
    })
    url = await listen(http)
    as = { authorization: `Bearer ${await http.token('ann', 'admin')}`, ...JSON_TYPE }
    page = await browser.newPage()
    await page.goto(allowed)
  })
  afterAll(async () => {
    await page.close()
    await http.close()
  })

  test('submits with a key and a token, and reads that the answer is a replay', async () => {
    const submit = () =>
      ask(page, `${url}/v1/jobs`, {
        method: 'POST',
        headers: { ...as, 'idempotency-key': 'once' },
        body: { kind: 'work' },
      })
    // The second request has a known token, and takes the fast route.
    const [first, again] = [await submit(), await submit()]
    expect(first).toMatchObject({ status: 201, body: { state: 'PENDING' } })
    expect(again).toMatchObject({
      status: 201,
      body: (first as Read).body,
      headers: { 'idempotent-replayed': 'true', 'x-request-id': expect.any(String) },
    })
    const other = { method: 'POST', headers: { ...as, 'idempotency-key': 'once' }, body: { kind: 'other' } }
    const refused = await ask(page, `${url}/v1/jobs`, other)
    expect(refused).toMatchObject({ status: 409, headers: { 'should-retry': 'false' } })
  })

  test('reads every error', async () => {
    const large = { method: 'POST', headers: JSON_TYPE, body: { token: 'x'.repeat(100_000) } }
    expect(await ask(page, `${url}/v1/jobs`)).toMatchObject({ status: 401, body: { error: expect.anything() } })
    expect(await ask(page, `${url}/nothing`, { headers: as })).toMatchObject({ status: 404 })
    expect(await ask(page, `${url}/v1/jobs`, { method: 'PATCH', headers: as })).toMatchObject({
      status: 405,
      headers: { allow: expect.stringContaining('POST') },
    })
    expect(await ask(page, `${url}/v1/jobs`, { method: 'POST', headers: as, body: {} })).toMatchObject({ status: 400 })
    expect(await ask(page, `${url}/calc/zpe/compute/servers/register`, large)).toMatchObject({ status: 413 })
    expect(await ask(page, `${url}/v1/audit`, { headers: as })).toMatchObject({ status: 500 })
    expect(await ask(page, `${url}/api/cloud/jobs`, { headers: as })).toMatchObject({ status: 200 })
  })

  test('follows a job by EventSource and by fetch, and reads logs as a stream', async () => {
    const { body } = (await ask(page, `${url}/v1/jobs`, {
      method: 'POST',
      headers: as,
      body: { kind: 'work' },
    })) as Read
    const { job_id: id } = body as { job_id: string }
    const made = await ask(page, `${url}/v1/jobs/${id}/stream-token`, { method: 'POST', headers: as })
    const { token } = (made as Read).body as { token: string }
    const heard = page.evaluate(
      ([where]) =>
        new Promise((resolve, reject) => {
          const source = new EventSource(where, { withCredentials: true })
          source.onmessage = ({ data }) => resolve(JSON.parse(data))
          source.onerror = () => reject(new Error('The stream was blocked'))
        }),
      [`${url}/v1/jobs/${id}/events?stream_token=${token}`] as const,
    )
    expect(await heard).toMatchObject({ stage: 'run', data: { state: 'PENDING' } })
    await http.call('POST', `/v1/jobs/${id}/cancel`, { headers: as })
    for (const what of ['events', 'logs']) {
      const stream = { headers: { ...as, accept: 'text/event-stream', 'last-event-id': what === 'events' ? '1' : '' } }
      const answer = (await ask(page, `${url}/v1/jobs/${id}/${what}`, stream)) as Read
      expect(answer).toMatchObject({ status: 200, body: expect.stringContaining('CANCELED') })
    }
  })

  test('submits a calculation of S1 and downloads its result', async () => {
    const admin = as.authorization?.replace('Bearer ', '')
    const worker = await ZpeWorker.register(http, admin)
    const submitted = await ask(page, `${url}/calc/zpe/jobs`, { method: 'POST', headers: as, body: JOB })
    const { job_id: id } = (submitted as Read).body as { job_id: string }
    await worker.leased()
    await worker.result(id)
    const read = (rest: string) => ask(page, `${url}/calc/zpe/jobs/${id}${rest}`, { headers: as })
    expect(await read('')).toMatchObject({ body: { status: 'finished' } })
    expect(await read('/result')).toMatchObject({ body: { result: RESULT.result } })
    expect(await read('/files?kind=freqs')).toMatchObject({
      body: RESULT.freqs_csv,
      headers: { 'content-disposition': expect.stringContaining('freqs.csv') },
    })
  })

  test('works, and a page of another origin is blocked', async () => {
    const other = await browser.newPage()
    await other.goto(stranger)
    const calls: [string, Asked][] = [
      ['/v1/jobs', { headers: as }],
      ['/v1/jobs', { method: 'POST', headers: as, body: { kind: 'work' } }],
      ['/calc/zpe/jobs', { method: 'POST', headers: as, body: JOB }],
      ['/healthz', {}],
    ]
    const before = await http.call('GET', '/v1/stats', { headers: as })
    for (const [path, asked] of calls) expect(await ask(other, url + path, asked), path).toBe('blocked')
    expect((await http.call('GET', '/v1/stats', { headers: as })).body).toEqual(before.body)
    await other.close()
  })

  test('gets answers with Vary: Origin', async () => {
    for (const origin of [undefined, allowed, stranger]) {
      const headers = origin === undefined ? {} : { origin }
      expect((await fetch(`${url}/healthz`, { headers })).headers.get('vary')).toBe('Origin')
    }
    const id = await submitZpe(http, JOB, { headers: as })
    const { headers } = await fetch(`${url}/v1/jobs/${id}/events`, { headers: { ...as, origin: allowed } })
    expect(headers.get('vary')).toBe('Origin, accept')
  })
})

test('with *, any page makes calls without a token, and none with a token', async () => {
  const http = await testApp('sqlite', { allowedOrigins: { exact: new Set([allowed]), any: true } })
  const url = await listen(http)
  const as = { authorization: `Bearer ${await http.token('ann', 'admin')}` }
  const page = await browser.newPage()
  await page.goto(stranger)
  expect(await ask(page, `${url}/healthz`)).toMatchObject({ status: 200 })
  expect(await ask(page, `${url}/v1/jobs`)).toMatchObject({ status: 401 })
  expect(await ask(page, `${url}/v1/jobs`, { headers: as })).toBe('blocked')
  expect(await ask(page, `${url}/v1/jobs`, { headers: { 'x-api-key': 'x' } })).toBe('blocked')
  await page.goto(allowed)
  expect(await ask(page, `${url}/v1/jobs`, { headers: as })).toMatchObject({ status: 200 })
  await page.close()
  await http.close()
})

test('in open mode only pages of the server itself are served', async () => {
  const http = await testApp('sqlite', { allowedOrigins: { exact: new Set([allowed]), any: true } })
  const url = await listen(http)
  const page = await browser.newPage()
  await page.goto(allowed)
  for (const path of ['/v1/jobs', '/healthz']) expect(await ask(page, url + path)).toBe('blocked')
  await http.token('ann', 'admin')
  expect(await ask(page, `${url}/healthz`)).toMatchObject({ status: 200 })
  await page.close()
  await http.close()
})

test('a page can read that the store is down', async () => {
  const http = await testApp('sqlite', {
    allowedOrigins: { exact: new Set([allowed]), any: false },
    alter: (services) => ({
      ...services,
      access: { ...services.access, isAuthRequired: () => Promise.reject(new StoreUnavailable('away')) },
    }),
  })
  const url = await listen(http)
  const read = async (path: string) => {
    const { status, headers } = await fetch(url + path, { headers: { origin: allowed } })
    return [status, headers.get('access-control-allow-origin'), headers.get('access-control-allow-credentials')]
  }
  expect(await read('/v1/jobs')).toEqual([503, allowed, 'true'])
  await http.close()
})

test('without the setting there are no such headers', async () => {
  const http = await testApp('sqlite')
  const url = await listen(http)
  const preflight = { method: 'OPTIONS', headers: { origin: allowed, 'access-control-request-method': 'GET' } }
  for (const answer of [await fetch(`${url}/healthz`, { headers: { origin: allowed } }), await fetch(url, preflight)]) {
    const names = [...answer.headers.keys()]
    expect(names.filter((name) => name === 'vary' || name.startsWith('access-control'))).toEqual([])
  }
  await http.close()
})
