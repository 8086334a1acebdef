import type { World } from '../world.ts'
import type { Clocks } from './loop/clocks.ts'
import type { Keeper } from './loop/held-lease.ts'
import type { Outbox, WorkerTransport } from './loop/transport.ts'

export interface WorkerDeps {
  transport: WorkerTransport
  world: World
  onTrouble(error: unknown): void
  /** By which it is told how long ago something was; default: monotonic time alone. */
  clocks?: Clocks
  /** Who keeps the leases; default: timers of this thread. */
  keeper?: Keeper
  /** Where a report waits until it was answered; default: in memory. */
  outbox?: Outbox
}
