import { once } from 'node:events'
import { type AddressInfo, connect } from 'node:net'
import fastify from 'fastify'
import { expect, test } from 'vitest'
import { waitSignal } from './routes/context.ts'
import { Seats } from './stream.ts'

/** More than one user may have at a time. */
const TIMES = 60

test('who goes away before its request is looked at takes no seat, and nothing is waited for', async () => {
  const seats = new Seats()
  const draining = new AbortController()
  const waits: boolean[] = []
  const app = fastify()
  // As when the store takes its time to say whose token it is.
  app.addHook('onRequest', async ({ url, raw: { socket } }) => {
    if (url === '/gone' && !socket.closed) await once(socket, 'close')
  })
  app.get('/:who', async (_, reply) => {
    waits.push(!waitSignal(reply, draining.signal).aborted)
    seats.take('user', reply)
    return 'seated'
  })
  await app.listen({ host: '127.0.0.1', port: 0 })
  const { port } = app.server.address() as AddressInfo
  for (let i = 0; i < TIMES; i++) {
    const arrived = once(app.server, 'request')
    const client = connect(port, '127.0.0.1')
    client.write('GET /gone HTTP/1.1\r\nHost: localhost\r\n\r\n')
    await arrived
    client.destroy()
  }
  await expect.poll(() => waits.length).toBe(TIMES)
  expect(waits).not.toContain(true)
  expect(await (await fetch(`http://127.0.0.1:${port}/here`)).text()).toBe('seated')
  expect(waits.at(-1)).toBe(true)
  await app.close()
})
