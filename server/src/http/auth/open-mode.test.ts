import { once } from 'node:events'
import { createServer } from 'node:net'
import type { ErrorBody } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { startNginx } from '../../../../scripts/services/nginx.ts'
import { startBareProxy } from '../../../../scripts/testing/bare-proxy.ts'
import { type FreshDatabase, freshDatabase } from '../../../../scripts/testing/services.ts'
import { full } from '../../../../scripts/testing/size.ts'
import { realWorld } from '../../node/world.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import { type Answer, type TestApp, testApp } from '../../testing/http/app.ts'
import { openNode } from '../../testing/store/store.ts'
import { openModeRefusal } from './open-mode.ts'

const code = (answer: Answer) => (answer.body as ErrorBody).error.code
const refusal = (headers: Record<string, string>, httpVersion = '1.1') =>
  openModeRefusal({ headers: { host: 'localhost:8001', ...headers }, httpVersion, protocol: 'http' })

test.each([
  'ali-cdn-real-ip',
  'cdn-loop',
  'cf-connecting-ip',
  'cf-ipcountry',
  'cf-ray',
  'cf-visitor',
  'client-ip',
  'cloudfront-viewer-address',
  'do-connecting-ip',
  'fastly-client-ip',
  'fastly-ff',
  'fly-client-ip',
  'fly-forwarded-port',
  'forwarded',
  'forwarded-for',
  'proxy-authorization',
  'proxy-client-ip',
  'tailscale-user-login',
  'true-client-ip',
  'via',
  'wl-proxy-client-ip',
  'x-akamai-edgescape',
  'x-amz-cf-id',
  'x-amzn-trace-id',
  'x-appengine-user-ip',
  'x-appgw-trace-id',
  'x-arr-log-id',
  'x-arr-ssl',
  'x-azure-clientip',
  'x-azure-ref',
  'x-client-ip',
  'x-cloud-trace-context',
  'x-cluster-client-ip',
  'x-envoy-external-address',
  'x-fd-healthprobe',
  'x-forwarded',
  'x-forwarded-client-cert',
  'x-forwarded-for',
  'x-forwarded-prefix',
  'x-nf-client-connection-ip',
  'x-original-forwarded-for',
  'x-original-host',
  'x-original-uri',
  'x-original-url',
  'x-originating-ip',
  'x-proxy-id',
  'x-proxyuser-ip',
  'x-real-ip',
  'x-remote-addr',
  'x-request-start',
  'x-rewrite-url',
  'x-scheme',
  'x-ssl-client-cert',
  'x-sucuri-clientip',
  'x-varnish',
  'x-vercel-forwarded-for',
])('%s means a proxy', (name) => {
  expect(refusal({ [name]: '1' })).toContain(`carries ${name};`)
  expect(refusal({ [name]: '' })).toContain(`carries ${name};`)
})

test('headers of browsers, tracers and our clients do not mean a proxy', () => {
  const sent = `accept accept-charset accept-encoding accept-language access-control-request-headers
    access-control-request-method b3 baggage cache-control connection content-disposition content-encoding content-length
    content-type cookie device-memory dnt downlink dpr expect from ichido-attempt idempotency-key if-match
    if-modified-since if-none-match if-range if-unmodified-since keep-alive last-event-id pragma prefer priority purpose
    range referer sec-ch-ua sec-ch-ua-mobile sec-ch-ua-platform sec-fetch-dest sec-fetch-mode sec-fetch-user sec-gpc
    sec-purpose te trailer transfer-encoding traceparent tracestate upgrade upgrade-insecure-requests upload-complete
    upload-draft-interop-version upload-length upload-offset user-agent viewport-width x-b3-traceid x-client-version
    x-csrf-token x-datadog-trace-id x-request-id x-requested-with`
  expect(refusal(Object.fromEntries(sent.split(/\s+/).map((name) => [name, '1'])))).toBeNull()
})

test('HTTP/1.0 means a proxy', () => {
  expect(refusal({}, '1.0')).toContain('HTTP/1.0')
})

/** `npm test` uses the first, and `npm run test:full` also the real one. */
const PROXIES = full ? { 'a bare proxy': startBareProxy, nginx: startNginx } : { 'a bare proxy': startBareProxy }

describe.each(Object.entries(PROXIES))('behind %s that adds no header', (_, startProxy) => {
  let http: TestApp
  let direct: string
  let proxy: { url: string; stop(): Promise<void> }
  beforeAll(async () => {
    http = await testApp('sqlite')
    direct = await http.app.listen({ host: '127.0.0.1', port: 0 })
    proxy = await startProxy(direct)
  })
  afterAll(async () => {
    await proxy.stop()
    await http.close()
  })

  const post = (url: string, path: string, body: object) =>
    fetch(url + path, { method: 'POST', body: JSON.stringify(body), headers: { 'content-type': 'application/json' } })

  test('a request without a token is refused, also on the fast route', async () => {
    for (const [path, body] of [
      ['/v1/tokens', { user_id: 'eve', role: 'admin' }],
      ['/v1/jobs', { kind: 'work' }],
    ] as const) {
      const answer = await post(proxy.url, path, body)
      expect([path, answer.status, await answer.json()]).toMatchObject([
        path,
        403,
        { error: { code: 'OPEN_MODE_REFUSED', message: expect.stringContaining('HTTP/1.0') } },
      ])
    }
    expect((await fetch(`${proxy.url}/v1/jobs`)).status).toBe(403)
    expect((await fetch(`${proxy.url}/healthz`)).status).toBe(200)
    expect(await http.services.access.isAuthRequired()).toBe(false)
    expect((await http.services.access.listTokens(LOCAL_ADMIN)).length).toBe(0)
    expect((await post(direct, '/v1/jobs', { kind: 'work' })).status).toBe(201)
  })

  test('it sends the same headers as nginx', async () => {
    const heard: string[] = []
    const target = createServer((socket) => {
      socket.on('data', (bytes) => {
        heard.push(String(bytes))
        socket.end('HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n')
      })
    }).listen(0, '127.0.0.1')
    await once(target, 'listening')
    const address = target.address()
    const host = `127.0.0.1:${typeof address === 'object' ? address?.port : ''}`
    const other = await startProxy(`http://${host}`)
    await post(other.url, '/v1/jobs?a=1', {})
    await other.stop()
    target.close()
    expect(heard.join('')).toMatch(
      new RegExp(
        `^POST /v1/jobs\\?a=1 HTTP/1\\.0\r\nHost: ${host}\r\nConnection: close\r\nContent-Length: 2\r\n(?:(?!host|connection|x-|via|forwarded)[a-z-]+: .*\r\n)+\r\n\\{\\}$`,
      ),
    )
  })

  test('with a token the proxy does no harm', async () => {
    const token = await http.token('ann', 'viewer')
    const headers = { authorization: `Bearer ${token}` }
    expect((await fetch(`${proxy.url}/v1/jobs`, { headers })).status).toBe(200)
  })
})

/** Both nodes have just served a request of open mode when the first token is made. */
describe('two nodes on PostgreSQL', () => {
  let database: FreshDatabase
  const nodes: TestApp[] = []
  let url: string
  beforeAll(async () => {
    database = await freshDatabase()
    // A node that caches open mode would cache it for ever.
    const deps = { world: { ...realWorld, monotonic: () => 0 } }
    for (let i = 0; i < 2; i++) {
      const opened = { store: await openNode(database.url), remove: async () => {} }
      nodes.push(await testApp('postgres', { opened, deps }))
    }
    url = await there().app.listen({ host: '127.0.0.1', port: 0 })
  })
  afterAll(async () => {
    for (const node of nodes) await node.close()
    await database.leave()
  })
  const node = (i: number): TestApp => nodes[i] ?? expect.fail('There are two nodes')
  const here = () => node(0)
  const there = () => node(1)

  /** The fast route is in front of the framework, so only a socket leads to it. */
  const submitOver = (authorization?: string) =>
    fetch(`${url}/v1/jobs`, {
      method: 'POST',
      body: '{"kind":"work"}',
      headers: { 'content-type': 'application/json', ...(authorization === undefined ? {} : { authorization }) },
    })

  /** After a few failures the answer is 429. */
  const REFUSED = expect.stringMatching(/^(UNAUTHENTICATED|RATE_LIMITED)$/)

  test('a request with credentials is never served in open mode', async () => {
    for (const headers of [
      { authorization: 'Bearer ichido_unknown' },
      { authorization: 'Bearer ichido_worker_unknown' },
      { authorization: 'Bearer ichido_stream_unknown' },
      { authorization: `Basic ${Buffer.from('me:ichido_unknown').toString('base64')}` },
      { authorization: 'Digest username="me"' },
      { authorization: '' },
      { 'x-api-key': 'ichido_unknown' },
      { 'x-api-key': '' },
    ]) {
      for (const [method, path] of [
        ['GET', '/v1/jobs'],
        ['GET', '/metrics'],
        ['POST', '/v1/jobs'],
      ] as const) {
        const body = method === 'POST' ? { kind: 'work' } : undefined
        const answer = await there().call(method, path, { headers, body })
        expect([headers, path, code(answer)]).toEqual([headers, path, REFUSED])
      }
    }
    for (const authorization of ['Bearer ichido_unknown', 'Digest x']) {
      expect(await (await submitOver(authorization)).json()).toMatchObject({ error: { code: REFUSED } })
    }
  })

  test('open mode ends on both when the first token is made', async () => {
    for (const each of nodes) expect((await each.call('GET', '/v1/tokens')).status).toBe(200)
    expect((await submitOver()).status).toBe(201)
    const made = await here().call('POST', '/v1/tokens', { body: { user_id: 'vic', role: 'viewer' } })
    const { token } = made.body as { token: string }

    expect((await submitOver()).status).toBe(401)
    expect(code(await there().call('POST', '/v1/tokens', { body: { user_id: 'eve', role: 'admin' } }))).toBe(
      'UNAUTHENTICATED',
    )
    const asViewer = await there().call('POST', '/v1/tokens', { token, body: { user_id: 'vic', role: 'admin' } })
    expect(code(asViewer)).toBe('FORBIDDEN')
    expect((await there().call('GET', '/v1/jobs', { token })).status).toBe(200)
    expect((await here().services.access.listTokens(LOCAL_ADMIN)).length).toBe(1)
  })
})
