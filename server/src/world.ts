import { randomBytes } from 'node:crypto'
import type { World } from '@ichido/sdk/world'
import { v7 } from 'uuid'

/** The real world: the process's clock, timers and random source. */
export const realWorld: World = {
  now: () => Date.now(),
  monotonic: () => performance.now(),
  after(ms, callback) {
    // setTimeout fires at once beyond 2^31 ms.
    const timer = setTimeout(callback, Math.min(ms, 2 ** 31 - 1))
    return () => clearTimeout(timer)
  },
  soon: (callback) => void setImmediate(callback),
  random: () => Math.random(),
  uuid: () => v7(),
  secret: (bytes) => randomBytes(bytes).toString('base64url'),
}
