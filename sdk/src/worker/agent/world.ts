import { randomBytes } from 'node:crypto'
import { uptime } from 'node:os'
import { type Clocks, platformWorld, type World } from '../../world.ts'

/** Ms since the machine started, the same in all its processes and threads. */
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

/** Monotonic time stops while the machine sleeps, uptime while a virtual machine is frozen; the wall clock can be set. */
export const machineClocks: Clocks = () => ({ monotonic: machineMs(), uptime: uptime() * 1000, wall: Date.now() })
