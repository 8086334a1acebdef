import { randomBytes } from 'node:crypto'
import { uptime } from 'node:os'
import { platformTimers, type World } from '../../world.ts'
import type { Clocks } from '../clocks.ts'

/** Ms since the machine started: the same number in every process and thread of it. */
function machineMs(): number {
  return Number(process.hrtime.bigint() / 1000n) / 1000
}

/** The real world of an agent, which has no dependency to make its ids. */
export const nodeWorld: World = {
  ...platformTimers,
  now: () => Date.now(),
  monotonic: machineMs,
  soon: (callback) => void setImmediate(callback),
  uuid: orderedUuid,
  secret: (bytes) => randomBytes(bytes).toString('base64url'),
}

/**
 * Monotonic time stands still while a machine sleeps, uptime while a virtual one is frozen, and the wall clock can be set.
 */
export const machineClocks: Clocks = () => ({ monotonic: machineMs(), uptime: uptime() * 1000, wall: Date.now() })

function orderedUuid(): string {
  const bytes = randomBytes(16)
  bytes.writeUIntBE(Date.now(), 0, 6)
  bytes.writeUInt8((bytes.readUInt8(6) & 0x0f) | 0x70, 6)
  bytes.writeUInt8((bytes.readUInt8(8) & 0x3f) | 0x80, 8)
  return bytes.toString('hex').replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5')
}
