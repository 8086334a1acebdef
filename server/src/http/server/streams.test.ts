import { once } from 'node:events'
import { Agent, get, type IncomingMessage, type ServerResponse } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import { Readable } from 'node:stream'
import { text } from 'node:stream/consumers'
import fastify from 'fastify'
import { expect, test } from 'vitest'
import { silentMeter } from '../../services/system/meter.ts'
import { defaultSettings } from '../../services/system/settings.ts'
import { limitStalls, Seats, waitSignal } from './streams.ts'

/** More than the maximum of one user. */
const TIMES = 60

test('a client that disconnects during authentication takes no seat', async () => {
  const deps = { settings: defaultSettings, meter: silentMeter }
  const seats = new Seats(deps, { setting: 'log_streams_per_user_max', what: 'streams' })
  const draining = new AbortController()
  const waits: boolean[] = []
  const app = fastify()
  // As if the store were slow to look up the token.
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

test.each(['at once', 'as a stream'])(
  'a client that stalls in a large answer sent %s is dropped after a minute',
  async (how) => {
    const bytes = 64 * 1024 * 1024
    const app = fastify()
    limitStalls(app)
    const large = Buffer.alloc(bytes, 'x')
    app.get('/', async () => (how === 'at once' ? large.toString() : Readable.from([large])))
    await app.listen({ host: '127.0.0.1', port: 0 })
    const { port } = app.server.address() as AddressInfo
    const asked = once(app.server, 'request') as Promise<[IncomingMessage, ServerResponse]>
    const client = connect(port, '127.0.0.1').pause()
    client.on('error', () => {})
    client.write('GET / HTTP/1.1\r\nHost: localhost\r\n\r\n')
    const [{ socket }, response] = await asked
    await expect.poll(() => socket.writableLength).toBeGreaterThan(0)
    expect(socket.timeout).toBe(60_000)
    response.emit('timeout')
    await once(socket, 'close')
    let taken = 0
    client.on('data', (chunk) => {
      taken += chunk.length
    })
    await once(client.resume(), 'close')
    expect(taken).toBeLessThan(bytes)
    await app.close()
  },
)

test('a client that has read a large answer has the normal idle timeout', async () => {
  const app = fastify({ keepAliveTimeout: 72_000 })
  limitStalls(app)
  app.get('/large', async () => 'x'.repeat(1024 * 1024))
  app.get('/next', async ({ socket }) => String(socket.timeout))
  await app.listen({ host: '127.0.0.1', port: 0 })
  const { port } = app.server.address() as AddressInfo
  const agent = new Agent({ keepAlive: true, maxSockets: 1 })
  const fetchText = async (path: string) => {
    const [answer] = (await once(get({ port, path, agent }), 'response')) as [IncomingMessage]
    return text(answer)
  }
  await fetchText('/large')
  expect(await fetchText('/next')).toBe('0')
  agent.destroy()
  await app.close()
})
