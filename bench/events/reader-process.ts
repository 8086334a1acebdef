import { connect, type Socket } from 'node:net'
import { z } from 'zod'

// Many readers of the same stream, in their own process. It reports when all of them have the first event, the second, …

const { port, path, count } = z
  .object({ port: z.int(), path: z.string(), count: z.int() })
  .parse(JSON.parse(process.argv[2] ?? ''))

const OPENING_MAX = 100
/** Each event has one such line, and its data contains no line feed. */
const MARK = Buffer.from('\ndata: ')
/** The number of readers that have the n-th event. */
const have: number[] = []
let told = 0

function take(n: number): void {
  have[n] = (have[n] ?? 0) + 1
  while (have[told + 1] === count) process.send?.({ all: ++told })
}

function read(socket: Socket): void {
  let rest: Buffer = Buffer.alloc(0)
  let seen = 0
  socket.on('data', (part: Buffer) => {
    const all = Buffer.concat([rest, part])
    let from = 0
    for (let at = all.indexOf(MARK); at >= 0; at = all.indexOf(MARK, from)) {
      from = at + MARK.length
      take(++seen)
    }
    rest = all.subarray(Math.max(from, all.length - MARK.length + 1))
  })
}

function open(): Promise<void> {
  return new Promise((resolve, reject) => {
    const socket = connect(port, '127.0.0.1', () => {
      socket.write(`GET ${path} HTTP/1.1\r\nHost: 127.0.0.1:${port}\r\nAccept: text/event-stream\r\n\r\n`)
    })
    socket.on('error', reject)
    socket.on('close', () => reject(new Error('The server closed a stream')))
    socket.once('data', () => resolve())
    read(socket)
  })
}

process.on('disconnect', () => process.exit())
for (let opened = 0; opened < count; opened += OPENING_MAX) {
  await Promise.all(Array.from({ length: Math.min(OPENING_MAX, count - opened) }, open))
}
process.send?.({ opened: true })
