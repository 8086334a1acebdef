import { once } from 'node:events'
import { Agent, get, type IncomingMessage } from 'node:http'
import { type AddressInfo, connect, type Socket } from 'node:net'
import { text } from 'node:stream/consumers'
import type { SubmitResponse } from '@ichido/sdk/protocol'
import { pino } from 'pino'
import { afterEach, describe, expect, test } from 'vitest'
import { realWorld } from '../../node/world.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import { type TestApp, testApp } from '../../testing/http/app.ts'
import { selfSigned } from '../../testing/http/certificate.ts'
import { until } from '../../testing/store/store.ts'
import { createMetrics } from '../metrics/metrics.ts'
import { createClientErrorHandler } from './connections.ts'

type Changes = NonNullable<Parameters<typeof testApp>[1]>
type Limits = Partial<Record<'connections_max' | 'connections_per_address_max', number>>

let http: TestApp
let port: number
let logged: string[]
const sockets: Socket[] = []
afterEach(async () => {
  for (const socket of sockets.splice(0)) socket.destroy()
  http.app.server.closeAllConnections()
  await http.close()
})

async function listen(limits: Limits = {}, changes: Changes = {}): Promise<void> {
  logged = []
  const logger = pino({ level: 'warn' }, { write: (line: string) => void logged.push(line) })
  http = await testApp('sqlite', { logger, metrics: createMetrics(realWorld), ...changes })
  for (const [name, value] of Object.entries(limits)) await http.services.settings.put(LOCAL_ADMIN, name, value)
  await http.app.listen({ host: '127.0.0.1', port: 0 })
  port = (http.app.server.address() as AddressInfo).port
}

/** Optionally from another address of this machine. */
function open(localAddress = '127.0.0.1'): Socket {
  const socket = connect({ port, host: '127.0.0.1', localAddress })
  socket.on('error', () => {})
  sockets.push(socket)
  return socket
}

const connections = () => new Promise<number>((resolve) => http.app.server.getConnections((_, count) => resolve(count)))
const reach = (count: number) => until(`${count} connections`, async () => (await connections()) === count)

/** The value of a metric, or undefined. */
async function counted(name: string): Promise<string | undefined> {
  const { text } = await http.call('GET', '/metrics')
  return text.split('\n').find((line) => line.startsWith(`${name} `))
}

describe('slow and silent connections', () => {
  test('have 15 s for the head of a request', async () => {
    await listen()
    expect(http.app.server).toMatchObject({ headersTimeout: 15_000, keepAliveTimeout: 72_000, requestTimeout: 0 })
  })

  test('end, while long polls, streams and idle connections continue', async () => {
    http = await testApp('sqlite')
    Object.assign(http.app.server, { headersTimeout: 300, connectionsCheckingInterval: 50 })
    await http.app.listen({ host: '127.0.0.1', port: 0 })
    port = (http.app.server.address() as AddressInfo).port
    const { job_id } = (await http.call('POST', '/v1/jobs', { body: { kind: 'work' } })).body as SubmitResponse
    const idle = open()
    idle.write('GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n')
    await once(idle, 'data')
    const poll = open()
    poll.write(`GET /v1/jobs/${job_id}/result?wait_seconds=50 HTTP/1.1\r\nHost: localhost\r\n\r\n`)
    const stream = open()
    stream.write(`GET /v1/jobs/${job_id}/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n`)
    await once(stream, 'data')

    const silent = open()
    // This client does not close its end when the server closes its own.
    const slow = connect({ port, host: '127.0.0.1', allowHalfOpen: true })
    sockets.push(slow)
    slow.write('GET /healthz HTTP/1.1\r\nHost: loc')
    expect(await Promise.all([silent, slow].map((socket) => text(socket)))).toEqual(
      Array(2).fill(expect.stringMatching(/^HTTP\/1\.1 408 .*"REQUEST_TIMEOUT"/s)),
    )
    expect([idle, poll, stream].map((socket) => socket.readableEnded)).toEqual([false, false, false])
    await reach(3)
    // All of them still work.
    await http.services.jobs.cancel(LOCAL_ADMIN, job_id)
    await Promise.all([once(poll, 'data'), once(stream, 'data')])
    idle.write('GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n')
    expect(String((await once(idle, 'data'))[0])).toMatch(/^HTTP\/1\.1 200 /)
  })

  test('that fail the TLS handshake are closed without an answer', async () => {
    await listen({}, { tls: selfSigned() })
    const plain = open()
    plain.write('GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n')
    await text(plain)
    await reach(0)
    const words: unknown[] = []
    const late = { writable: true, end: (said: unknown) => words.push(said), destroy: () => words.push('destroyed') }
    const refuse = createClientErrorHandler(realWorld)
    refuse({ code: 'ERR_TLS_HANDSHAKE_TIMEOUT' }, late as unknown as Socket)
    expect(words).toEqual(['destroyed'])
  })
})

describe('the maximum of connections of a node', () => {
  test('keeps connections, and closes, counts and logs those beyond', async () => {
    await listen({ connections_max: 10 })
    for (let i = 0; i < 10; i++) open()
    await reach(10)
    for (let i = 0; i < 20; i++) expect(await text(open())).toBe('')
    expect(await connections()).toBe(10)
    expect(await counted('ichido_http_connections')).toBe('ichido_http_connections 10')
    const name = 'ichido_http_connections_refused_total{limit="node"}'
    expect(await counted(name)).toBe(`${name} 20`)
    expect(logged.map((line) => JSON.parse(line) as object)).toMatchObject([
      { max: 10, msg: expect.stringContaining('this node has reached its maximum of connections') },
    ])

    await http.services.settings.put(LOCAL_ADMIN, 'connections_max', 11)
    expect((await fetch(`http://127.0.0.1:${port}/healthz`)).status).toBe(200)
  })

  test('closes idle connections to make room', async () => {
    await listen({ connections_max: 10 })
    const agent = new Agent({ keepAlive: true })
    const idle = Array.from({ length: 10 }, async () => {
      const [answer] = (await once(get({ port, path: '/healthz', agent }), 'response')) as [IncomingMessage]
      await text(answer)
    })
    await Promise.all(idle)
    expect(await connections()).toBe(10)
    expect(await text(open())).toBe('')
    await reach(0)
    agent.destroy()
  })

  test('leaves files for everything else', async () => {
    await listen({}, { openFilesMax: 1_000 })
    expect(http.app.server.maxConnections).toBe(800)
    await http.services.settings.put(LOCAL_ADMIN, 'connections_max', 500)
    expect(http.app.server.maxConnections).toBe(500)
  })
})

describe('the maximum of connections of one address', () => {
  test('leaves room for others', async () => {
    await listen({ connections_per_address_max: 3 })
    const held = Array.from({ length: 3 }, () => open('127.0.0.2'))
    await reach(3)
    for (let i = 0; i < 5; i++) expect(await text(open('127.0.0.2'))).toBe('')
    expect((await fetch(`http://127.0.0.1:${port}/healthz`, { headers: { connection: 'close' } })).status).toBe(200)
    const name = 'ichido_http_connections_refused_total{limit="address"}'
    expect(await counted(name)).toBe(`${name} 5`)
    expect(logged.map((line) => JSON.parse(line) as object)).toMatchObject([{ address: '127.0.0.2', max: 3 }])
    held[0]?.destroy()
    await reach(2)
    open('127.0.0.2')
    await reach(3)
  })

  test('counts the open requests behind a proxy, not its connections', async () => {
    await listen({ connections_per_address_max: 2 }, { openMode: false, trustProxy: '127.0.0.1' })
    const token = await http.token('ann', 'submitter')
    const job = await http.call('POST', '/v1/jobs', { body: { kind: 'work' }, token })
    const { job_id } = job.body as SubmitResponse
    const ask = (from: string, localAddress?: string) => {
      const socket = open(localAddress)
      const head = [
        `GET /v1/jobs/${job_id}/result?wait_seconds=50 HTTP/1.1`,
        'Host: localhost',
        `Authorization: Bearer ${token}`,
        `X-Forwarded-For: ${from}`,
      ]
      socket.write(`${head.join('\r\n')}\r\n\r\n`)
      return socket
    }
    const waiting: Socket[] = []
    for (const from of ['192.0.2.1', '192.0.2.1', '2001:db8::1', '2001:db8::2', '192.0.2.2']) {
      const arrived = once(http.app.server, 'request')
      waiting.push(ask(from))
      await arrived
    }
    for (const from of ['192.0.2.1', '198.51.100.7, 192.0.2.1', '2001:db8::3']) {
      const [answer] = (await once(ask(from), 'data')) as [Buffer]
      expect(String(answer)).toMatch(
        /^HTTP\/1\.1 429 .*retry-after: 5.*has 2 requests open on this node, which is the maximum/is,
      )
    }
    expect(waiting.map((socket) => socket.bytesRead)).toEqual([0, 0, 0, 0, 0])
    // A place is free again after its request.
    const left = once(http.app.server, 'request')
    waiting[0]?.destroy()
    await reach(7)
    const again = ask('192.0.2.1')
    await left
    // The header of a peer that is not a proxy is ignored, and its connections count.
    for (const from of ['192.0.2.7', '192.0.2.8']) ask(from, '127.0.0.2')
    await reach(10)
    expect(await text(ask('192.0.2.9', '127.0.0.2'))).toBe('')
    await http.services.jobs.cancel(LOCAL_ADMIN, job_id)
    expect(String((await once(again, 'data'))[0])).not.toMatch(/^HTTP\/1\.1 429/)
  })
})
