import { once } from 'node:events'
import { type AddressInfo, createServer, type Socket } from 'node:net'
import { z } from 'zod'

// The upper bound for a gateway: a loop that writes each frame to all sockets.

const HEAD = 'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\nretry: 1000\n\n'
const sockets: Socket[] = []
const order = z.object({ write: z.string() })

const server = createServer((socket) => {
  socket.setNoDelay(true)
  socket.on('error', () => {})
  socket.once('data', () => {
    socket.write(HEAD)
    sockets.push(socket)
  })
})
server.listen({ host: '127.0.0.1', port: 0, backlog: 1_024 })
await once(server, 'listening')

process.on('message', (message) => {
  const bytes = Buffer.from(order.parse(message).write)
  for (const socket of sockets) socket.write(bytes)
})
process.on('disconnect', () => process.exit())
const { port } = server.address() as AddressInfo
process.send?.({ port })
