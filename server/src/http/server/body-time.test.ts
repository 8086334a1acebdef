import { once } from 'node:events'
import { type AddressInfo, connect } from 'node:net'
import { text } from 'node:stream/consumers'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { FakeWorld, settled } from '../../../../scripts/testing/fake-world.ts'
import { type TestApp, testApp } from '../../testing/http/app.ts'
import { testBlobs } from '../../testing/services/artifacts.ts'
import { until } from '../../testing/store/store.ts'

let http: TestApp
let world: FakeWorld
let remove: () => void
beforeEach(async () => {
  const place = await testBlobs()
  remove = place.remove
  world = new FakeWorld()
  http = await testApp('sqlite', { deps: { world, blobs: place.blobs } })
  await http.app.listen({ host: '127.0.0.1', port: 0 })
})
afterEach(async () => {
  http.app.server.closeAllConnections()
  await http.close()
  remove()
})

/** A request whose body does not end. */
async function begin(path: string, type: string) {
  const socket = connect((http.app.server.address() as AddressInfo).port, '127.0.0.1')
  const said = text(socket)
  await once(socket, 'connect')
  socket.write(
    `POST ${path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: ${type}\r\nContent-Length: 100\r\n\r\n{"kind":`,
  )
  return { socket, said }
}

const timers = (ms: number) => until(`a timer of ${ms} ms`, async () => world.pendingMs.includes(ms))

test('a body that takes more than two minutes is refused', async () => {
  const { said } = await begin('/v1/jobs', 'application/json')
  await timers(120_000)
  await world.pass(120_000)
  expect(await said).toMatch(/^HTTP\/1\.1 408 .*Should-Retry: true.*"REQUEST_TIMEOUT"/s)
})

test('after an early answer the rest of the body has a time limit, too', async () => {
  const { said } = await begin('/v1/stats', 'application/json')
  await timers(120_000)
  await world.pass(120_000)
  expect(await said).toMatch(/^HTTP\/1\.1 405 /)
})

test('an upload has no time limit, but must not stall', async () => {
  const { socket, said } = await begin('/v1/artifacts?name=a', 'application/octet-stream')
  for (let i = 0; i < 4; i++) {
    await timers(60_000)
    await world.pass(50_000)
    socket.write('x'.repeat(10))
    await settled()
  }
  await timers(60_000)
  await world.pass(60_000)
  expect(await said).toBe('')
})

test('a complete body ends its time limit', async () => {
  const answer = await fetch(`http://127.0.0.1:${(http.app.server.address() as AddressInfo).port}/v1/jobs`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: '{"kind":"k"}',
  })
  expect([answer.status, world.pendingMs.filter((ms) => ms === 120_000)]).toEqual([201, []])
})
