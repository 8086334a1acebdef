import { once } from 'node:events'
import { createServer, type Socket } from 'node:net'
import { expect, test } from 'vitest'
import { openPostgres } from './postgres.ts'

function message(type: string, ...parts: (Buffer | string)[]): Buffer {
  const body = Buffer.concat(parts.map((part) => (typeof part === 'string' ? Buffer.from(part) : part)))
  const head = Buffer.alloc(5)
  head.write(type)
  head.writeInt32BE(body.length + 4, 1)
  return Buffer.concat([head, body])
}

const AUTHENTICATED = message('R', Buffer.alloc(4))
const READY = message('Z', 'I')
const KILLED = message('E', 'SFATAL\0C57P01\0Mterminating connection due to unexpected postmaster exit\0\0')

test('a PostgreSQL that is killed during the connect does not end the process', async () => {
  const server = createServer((socket: Socket) => {
    socket.on('error', () => {})
    // In one piece: the client reads "ready" and "killed" before anything that waits for the connection can run.
    socket.once('data', () => socket.end(Buffer.concat([AUTHENTICATED, READY, KILLED])))
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address()
  const port = typeof address === 'object' ? address?.port : 0
  const url = `postgres://u@127.0.0.1:${port}/x`
  await expect(
    openPostgres({ url, now: Date.now, monotonic: performance.now, sleep: async () => {} }),
  ).rejects.toThrow()
  server.close()
})
