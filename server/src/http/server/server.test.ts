import { once } from 'node:events'
import http from 'node:http'
import https from 'node:https'
import net from 'node:net'
import { text } from 'node:stream/consumers'
import type { ErrorBody, SubmitResponse } from '@ichido/sdk/protocol'
import { pino } from 'pino'
import { afterEach, describe, expect, test } from 'vitest'
import { type TestApp, testApp } from '../../testing/http/app.ts'
import { selfSigned } from '../../testing/http/certificate.ts'

let open: TestApp | undefined
afterEach(async () => {
  await open?.close()
  open = undefined
})

async function listening(...[changes]: Parameters<typeof testApp> extends [unknown, ...infer Rest] ? Rest : never) {
  open = await testApp('sqlite', changes)
  await open.app.listen({ host: '127.0.0.1', port: 0 })
  const address = open.app.server.address()
  if (address === null || typeof address === 'string') throw new Error('The server listens on a port')
  return { ...open, port: address.port }
}

/** Sends raw bytes, and reads until the server closes. */
async function talk(port: number, bytes: string): Promise<string> {
  const socket = net.connect(port, '127.0.0.1')
  socket.write(bytes)
  return text(socket)
}

/** The head and the JSON body of a raw answer. */
function split(answer: string): { head: string; body: ErrorBody } {
  const [head = '', body = ''] = answer.split('\r\n\r\n')
  return { head, body: JSON.parse(body) as ErrorBody }
}

type Got = { status: number; headers: http.IncomingHttpHeaders; body: string }

async function answerOf(request: http.ClientRequest): Promise<Got> {
  const [response] = (await once(request, 'response')) as [http.IncomingMessage]
  return { status: response.statusCode ?? 0, headers: response.headers, body: await text(response) }
}

describe('before there is a request', () => {
  test('large headers are 431, in the form of every error', async () => {
    const { port } = await listening()
    const answer = await talk(port, `GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Long: ${'x'.repeat(20_000)}\r\n\r\n`)
    const { head, body } = split(answer)
    expect(head).toMatch(/^HTTP\/1.1 431 Request Header Fields Too Large\r\n/)
    expect(head).toContain('Content-Type: application/json')
    expect(head).toContain('Should-Retry: false')
    expect(body.error).toMatchObject({ code: 'HEADERS_TOO_LARGE', request_id: expect.stringMatching(/^[\w-]{36}$/) })
  })

  test('bad HTTP is 400', async () => {
    const { port } = await listening()
    const { head, body } = split(await talk(port, 'HELLO\r\n\r\n'))
    expect(head).toMatch(/^HTTP\/1.1 400 /)
    expect(body.error).toMatchObject({ code: 'INVALID_PAYLOAD', message: 'The request is not valid HTTP' })
  })

  test.each(['/docs/static/../x', '/docs/static/%2e%2e/x', '/docs/static/..\\x'])('%s is 404', async (path) => {
    const { port } = await listening()
    const { head } = split(await talk(port, `GET ${path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n`))
    expect(head).toMatch(/^HTTP\/1.1 404 /)
  })

  test('a request without Host is not served in open mode', async () => {
    const { port } = await listening()
    const { head, body } = split(await talk(port, 'GET /v1/jobs HTTP/1.0\r\n\r\n'))
    expect(head).toMatch(/^HTTP\/1.1 403 /)
    expect(body.error.code).toBe('OPEN_MODE_REFUSED')
  })

  test('a key header that is sent twice is refused', async () => {
    const { port } = await listening()
    const lines = ['POST /v1/jobs HTTP/1.1', 'Host: localhost', 'Connection: close', 'Content-Type: application/json']
    const keys = ['Idempotency-Key: a', 'idempotency-key: ', 'Content-Length: 15']
    const { head, body } = split(await talk(port, [...lines, ...keys, '', '{"kind":"work"}'].join('\r\n')))
    expect(head).toMatch(/^HTTP\/1.1 400 /)
    expect(body.error.message).toBe('Idempotency-Key was sent twice')
  })

  test('a client that disconnects in the middle does no harm', async () => {
    const { port } = await listening()
    const socket = net.connect(port, '127.0.0.1')
    socket.write(
      'POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"kind"',
    )
    await once(socket, 'ready')
    socket.resetAndDestroy()
    await once(socket, 'close')
    expect((await fetch(`http://127.0.0.1:${port}/healthz`)).status).toBe(200)
  })
})

test('a client that sends too much reads why', async () => {
  const { port } = await listening()
  const headers = { 'content-type': 'application/json' }
  const answer = await fetch(`http://127.0.0.1:${port}/v1/jobs`, {
    method: 'POST',
    headers,
    body: ' '.repeat(20 * 1024 * 1024),
  })
  expect(answer.status).toBe(413)
  expect(await answer.json()).toMatchObject({ error: { code: 'PAYLOAD_TOO_LARGE' } })
  expect((await fetch(`http://127.0.0.1:${port}/healthz`)).status).toBe(200)
})

test.each([100, 500_000])('a body of %i bytes that breaks off is not a server error', async (bytes) => {
  const logged: string[] = []
  const { port } = await listening({ logger: pino({ level: 'info' }, { write: (line) => void logged.push(line) }) })
  logged.length = 0
  const socket = net.connect(port, '127.0.0.1')
  const head = ['POST /v1/jobs HTTP/1.1', 'Host: localhost', 'Content-Type: application/json']
  socket.write(`${head.join('\r\n')}\r\nContent-Length: ${bytes}\r\n\r\n{"kind"`)
  await once(open?.app.server ?? socket, 'request')
  socket.destroy()
  await expect.poll(() => logged.length).toBe(1)
  expect(JSON.parse(logged[0] ?? '')).toMatchObject({ level: 30, code: 'INVALID_PAYLOAD', path: '/v1/jobs' })
})

describe('stopping', () => {
  test('after startDraining() the server is not ready and answers waiting calls', async () => {
    const { port, app, call } = await listening()
    const { job_id } = (await call('POST', '/v1/jobs', { body: { kind: 'work' } })).body as SubmitResponse
    const agent = new http.Agent({ keepAlive: true })
    const get = (path: string) => answerOf(http.get({ port, host: '127.0.0.1', path, agent }))
    expect(await get('/readyz')).toMatchObject({ status: 200, headers: { connection: 'keep-alive' } })

    const waiting = ['result?wait_seconds=50', 'events?after=1&wait_seconds=50'].map((what) =>
      get(`/v1/jobs/${job_id}/${what}`),
    )
    // Both requests were read when this later one is answered on its own connection.
    expect(await get('/healthz')).toMatchObject({ status: 200 })
    app.startDraining()
    const [result, events] = await Promise.all(waiting)
    expect(result).toMatchObject({ status: 409 })
    expect(JSON.parse(result?.body ?? '')).toMatchObject({ error: { code: 'RESULT_NOT_READY' } })
    expect(events).toMatchObject({ status: 200, body: '{"events":[],"ended":false}' })

    const ready = await get('/readyz')
    expect(ready).toMatchObject({ status: 503, headers: { connection: 'close' } })
    expect(JSON.parse(ready.body)).toEqual({ status: 'not ready', checks: { store: 'ok', server: 'stopping' } })
    expect(await get('/healthz')).toMatchObject({ status: 200, headers: { connection: 'close' } })
    agent.destroy()
  })

  test('close() lets a running request finish, and waits for no idle connection', async () => {
    const { port, app, services } = await listening()
    const idle = net.connect(port, '127.0.0.1')
    idle.write('GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n')
    await once(idle, 'data')
    const request = http.request({
      port,
      host: '127.0.0.1',
      method: 'POST',
      path: '/v1/jobs',
      headers: { 'content-type': 'application/json', expect: '100-continue' },
    })
    request.flushHeaders()
    await once(request, 'continue')
    request.write('{"kind":')

    app.startDraining()
    const closing = app.close()
    await once(idle, 'close')
    request.end('"late"}')
    const answer = await answerOf(request)
    expect(answer).toMatchObject({ status: 201, headers: { connection: 'close' } })
    await closing
    expect(await services.jobs.counts('all')).toEqual({ PENDING: 1 })
    const [refused] = await once(net.connect(port, '127.0.0.1'), 'error')
    expect(refused).toMatchObject({ code: 'ECONNREFUSED' })
  })
})

describe('the listener', () => {
  test('serves TLS with the given certificate', async () => {
    const tls = selfSigned()
    const { port } = await listening({ tls })
    const options = {
      port,
      host: '127.0.0.1',
      servername: 'localhost',
      ca: tls.cert,
      headers: { host: `localhost:${port}` },
    }
    expect(await answerOf(https.get({ ...options, path: '/v1/jobs' }))).toMatchObject({ status: 200 })
    const page = await answerOf(https.get({ ...options, path: '/docs' }))
    expect(page.headers['strict-transport-security']).toContain('max-age')
    const origin = `https://localhost:${port}`
    const same = https.get({ ...options, path: '/v1/jobs', headers: { ...options.headers, origin } })
    expect(await answerOf(same)).toMatchObject({ status: 200 })
  })

  test('serves everything under the base path', async () => {
    open = await testApp('sqlite', { basePath: '/ichido', publicUrl: 'https://jobs.example.com/ichido' })
    const { call } = open
    for (const path of ['/healthz', '/v1/jobs', '/docs', '/docs/', '/openapi.json', '/', '/api/cloud/jobs']) {
      expect({ path, ...(await call('GET', `/ichido${path}`)) }).toMatchObject({ path, status: 200 })
      expect({ path, ...(await call('GET', path)) }).toMatchObject({ path, status: 404 })
    }
    expect((await call('GET', '/ichido/docs')).text).toContain('/ichido/docs/static/swagger-ui.css')
    expect((await call('GET', '/ichido/docs/static/swagger-ui.css')).status).toBe(200)
    expect((await call('GET', '/ichido/openapi.json')).body).toMatchObject({
      servers: [{ url: 'https://jobs.example.com' }],
      paths: { '/ichido/v1/jobs': {} },
    })
    expect((await call('POST', '/ichido/v1/jobs', { body: { kind: 'work' } })).status).toBe(201)
    expect((await call('DELETE', '/ichido')).status).toBe(405)
  })
})
