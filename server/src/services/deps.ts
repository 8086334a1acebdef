import type { World } from '@ichido/sdk/world'
import type { Bus } from '../bus/port.ts'
import type { Store } from '../store/port.ts'
import type { Meter } from './meter.ts'

/** What every service works with; chosen once, in main.ts or open.ts. */
export interface Deps {
  world: World
  store: Store
  bus: Bus
  meter: Meter
  limits: Limits
}

export interface Limits {
  payloadBytesMax: number
  resultBytesMax: number
  batchItemsMax: number
}

export const DEFAULT_LIMITS: Limits = {
  payloadBytesMax: 1024 * 1024,
  resultBytesMax: 4 * 1024 * 1024,
  batchItemsMax: 1_000,
}
