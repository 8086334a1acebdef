import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { FakeWorld } from '../../../../scripts/testing/fake-world.ts'
import { IchidoError } from '../../protocol/index.ts'
import { httpWorkerTransport, type RemoteTransport } from './http.ts'

interface Heard {
  path: string
  token: string | undefined
  body: unknown
}

let world: FakeWorld
let heard: Heard[]
let answer: (response: ServerResponse) => void
let transport: RemoteTransport
let token: string
const server = createServer(async (request, response) => {
  const { url: path = '', headers } = request
  heard.push({ path, token: headers.authorization, body: await bodyOf(request) })
  answer(response)
})

beforeEach(async () => {
  world = new FakeWorld()
  heard = []
  token = 'one'
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  transport = httpWorkerTransport({ url: `http://127.0.0.1:${port}/`, token: () => token, world })
})
afterEach(() => {
  server.closeAllConnections()
  return new Promise((resolve) => server.close(resolve))
})

async function bodyOf(request: IncomingMessage): Promise<unknown> {
  let text = ''
  for await (const part of request) text += part
  return text === '' ? undefined : JSON.parse(text)
}

function says(status: number, body?: unknown, ours = true): (response: ServerResponse) => void {
  return (response) => {
    if (ours) response.setHeader('x-request-id', 'r1')
    response.writeHead(status, { 'content-type': 'application/json' })
    response.end(body === undefined ? '' : JSON.stringify(body))
  }
}

const CALL = { queues: ['q'], kinds: [], max: 2, waitMs: 20_000, pollId: 'p1' }
const thrown = (call: Promise<unknown>) =>
  call.then(
    () => null,
    (error: unknown) => error,
  )

test('calls match the contract and use the current token', async () => {
  answer = says(204)
  expect(await transport.lease(CALL)).toEqual([])
  token = 'two'
  answer = says(200, { leases: [{ lease_id: 'l' }] })
  expect(await transport.lease({ ...CALL, startId: 's' })).toEqual([{ lease_id: 'l' }])
  answer = says(200, {
    data: [
      { held: true, cancel_requested: true },
      { held: false, cancel_requested: false },
    ],
  })
  expect(await transport.heartbeat(['a', 'b'])).toEqual([
    { held: true, cancelRequested: true },
    { held: false, cancelRequested: false },
  ])
  answer = says(200, {
    data: [{ status: 200 }, { status: 409, error: { code: 'LEASE_LOST', message: 'gone', details: {} } }],
    leases: [{ lease_id: 'next' }],
  })
  const reports = [
    { leaseId: 'a', result: { result: 1 } },
    { leaseId: 'b', failure: { code: 'E', message: 'm', retryable: false } },
  ]
  expect(await transport.report(reports, { ...CALL, waitMs: 0 })).toEqual({
    refusals: [null, new IchidoError('LEASE_LOST', 'gone')],
    leases: [{ lease_id: 'next' }],
  })
  const lease = { queues: ['q'], kinds: [], max: 2, wait_seconds: 20, poll_id: 'p1' }
  expect(heard).toEqual([
    { path: '/v1/leases', token: 'Bearer one', body: lease },
    { path: '/v1/leases', token: 'Bearer two', body: { ...lease, start: true, start_id: 's' } },
    { path: '/v1/leases/heartbeat', token: 'Bearer two', body: { lease_ids: ['a', 'b'] } },
    {
      path: '/v1/leases/report',
      token: 'Bearer two',
      body: {
        reports: [
          { lease_id: 'a', result: 1 },
          { lease_id: 'b', error_code: 'E', error_message: 'm', retryable: false },
        ],
        next: { ...lease, wait_seconds: 0 },
      },
    },
  ])
})

test('a poll that is told of a drain says so, and brings nothing', async () => {
  let told = 0
  const { port } = server.address() as AddressInfo
  const onDraining = () => void told++
  const draining = httpWorkerTransport({ url: `http://127.0.0.1:${port}`, token: () => token, world, onDraining })
  answer = says(204)
  expect(await draining.lease(CALL)).toEqual([])
  answer = says(200, { leases: [], draining: true })
  expect([await draining.lease(CALL), await transport.lease(CALL)]).toEqual([[], []])
  expect(told).toBe(1)
})

test('a revoked worker holds no leases', async () => {
  answer = says(403, { error: { code: 'FORBIDDEN', message: 'revoked', details: {}, request_id: 'r' } })
  expect(await transport.heartbeat(['a'])).toEqual([{ held: false, cancelRequested: false }])
  expect(await thrown(transport.start('a', 's'))).toMatchObject({ code: 'FORBIDDEN' })
})

test.each<[string, (response: ServerResponse) => void, boolean]>([
  ['a proxy that answers 502', says(502, undefined, false), true],
  ['a proxy that answers 504', says(504, undefined, false), true],
  ['a proxy that is overloaded', says(503, undefined, false), false],
  ['a connection that is closed', (response) => response.destroy(), true],
])('%s is an outage', async (_, by, cut) => {
  answer = by
  expect(await thrown(transport.lease(CALL))).toMatchObject({ code: 'UNAVAILABLE', retryable: true, details: { cut } })
})

test('an error of the control plane keeps its code and message', async () => {
  answer = says(503, { error: { code: 'UNAVAILABLE', message: 'stopping', details: {}, request_id: 'r' } })
  expect(await thrown(transport.lease(CALL))).toMatchObject({ code: 'UNAVAILABLE', message: 'stopping' })
})

test('an unreachable server is an outage, not a cut', async () => {
  const nowhere = httpWorkerTransport({ url: 'http://127.0.0.1:1', token: () => token, world })
  expect(await thrown(nowhere.release('l'))).toMatchObject({ code: 'UNAVAILABLE', details: { cut: false } })
})

test('each call has a timeout; that of a poll is a little longer than its wait', async () => {
  answer = () => {}
  const poll = thrown(transport.lease(CALL))
  const beat = thrown(transport.heartbeat(['a']))
  expect(world.pendingMs).toEqual([10_000, 30_000])
  await world.pass(10_000)
  expect(await beat).toMatchObject({ code: 'UNAVAILABLE' })
  await world.pass(20_000)
  expect(await poll).toMatchObject({ code: 'UNAVAILABLE', details: { cut: true } })
  expect(world.pendingMs).toEqual([])
})

test('an aborted poll is not an outage', async () => {
  answer = () => {}
  const controller = new AbortController()
  const poll = thrown(transport.lease(CALL, controller.signal))
  controller.abort()
  expect(await poll).toMatchObject({ name: 'AbortError' })
})
