import { randomInt } from 'node:crypto'
import { createServer } from 'node:net'

// Linux and macOS give outgoing connections ports above these. A port from there is taken by the next connection of
// some test before the server that it was found for listens on it.
const FIRST = 10_240
const LAST = 32_767
const TRIES_MAX = 20

/** Calls `start` with another free port until nobody else has taken it meanwhile. */
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
