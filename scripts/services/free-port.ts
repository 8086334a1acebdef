import { randomInt } from 'node:crypto'
import { createServer } from 'node:net'

// Linux and macOS use ports above these for outgoing connections. A connection of another test could take such a port before
// the server listens on it.
const FIRST = 10_240
const LAST = 32_767
const TRIES_MAX = 20

/** Calls `start` with free ports until one was not taken in the meantime. */
export async function onFreePort<T>(start: (port: number) => Promise<T>): Promise<T> {
  for (let tries = 1; ; tries++) {
    try {
      return await start(await freePort())
    } catch (error) {
      if (tries === TRIES_MAX || !/address already in use/i.test(String(error))) throw error
    }
  }
}

export async function freePort(): Promise<number> {
  for (let tries = 1; ; tries++) {
    const port = randomInt(FIRST, LAST + 1)
    if (await isFree(port)) return port
    if (tries === TRIES_MAX) throw new Error(`None of ${TRIES_MAX} ports between ${FIRST} and ${LAST} is free.`)
  }
}

function isFree(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const server = createServer()
    server.once('error', () => resolve(false))
    server.listen(port, '127.0.0.1', () => server.close(() => resolve(true)))
  })
}
