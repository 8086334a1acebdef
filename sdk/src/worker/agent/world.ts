import { randomBytes } from 'node:crypto'
import { uptime } from 'node:os'
import { platformWorld, type World } from '../../world.ts'
import type { Clocks } from '../loop/clocks.ts'

/** Ms since the machine started: the same number in every process and thread of it. */
function machineMs(): number {
  return Number(process.hrtime.bigint() / 1000n) / 1000
}

/** The real world of an agent. */
export const nodeWorld: World = {
  ...platformWorld,
  monotonic: machineMs,
  soon: (callback) => void setImmediate(callback),
  secret: (bytes) => randomBytes(bytes).toString('base64url'),
}

/**
 * Monotonic time stands still while a machine sleeps, uptime while a virtual one is frozen, and the wall clock can be set.
 */
export const machineClocks: Clocks = () => ({ monotonic: machineMs(), uptime: uptime() * 1000, wall: Date.now() })
