import { randomBytes, randomFillSync } from 'node:crypto'
import { platformWorld, type World } from '@ichido/sdk/world'
import { v7 } from 'uuid'

/** Asking the system for 16 random bytes each time took a tenth of a submit. */
const POOL_BYTES = 4096
const pool = Buffer.alloc(POOL_BYTES)
let used = POOL_BYTES

function randomPart(bytes: number): Buffer {
  if (used + bytes > POOL_BYTES) {
    randomFillSync(pool)
    used = 0
  }
  used += bytes
  return pool.subarray(used - bytes, used)
}

let lastMs = 0
let seq = 0

/**
 * Ids of one process rise even within a millisecond and when the clock goes back, so that an index grows at its end.
 */
function orderedUuid(): string {
  const ms = Math.max(Date.now(), lastMs)
  // The sequence starts each millisecond at a random number in the lower half of 32 bits.
  seq = ms === lastMs ? seq + 1 : randomPart(4).readUInt32BE() >>> 1
  lastMs = ms
  return v7({ msecs: ms, seq, random: randomPart(16) })
}

/** The real world: the process's clock, timers and random source. */
export const realWorld: World = {
  ...platformWorld,
  soon: (callback) => void setImmediate(callback),
  uuid: orderedUuid,
  secret: (bytes) => randomBytes(bytes).toString('base64url'),
}
