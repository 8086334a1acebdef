import { IchidoError } from '@ichido/sdk/protocol'
import type { World } from '@ichido/sdk/world'
import type { Blobs } from '../blobs/port.ts'
import type { Bus, Relay } from '../bus/port.ts'
import { DEFAULT_ARTIFACT_BYTES_MAX } from '../core/run/artifact.ts'
import { PAYLOAD_BYTES_MAX } from '../core/run/job.ts'
import type { Courier } from '../courier/port.ts'
import type { LogArchive } from '../log-archive/port.ts'
import type { Store } from '../store/port.ts'
import type { FullDisks } from './system/alerts.ts'
import type { PromiseCounters } from './system/counters.ts'
import type { Meter } from './system/meter.ts'
import type { Settings } from './system/settings.ts'

/** The dependencies of the services; node/start-node.ts chooses them. */
export interface Deps {
  world: World
  store: Store
  bus: Bus
  /** Sends webhooks. Absent in tests that need none. */
  courier?: Courier
  /** Absent if this node keeps no artifacts. */
  blobs?: Blobs
  /** Absent if this node cannot read archived logs. Then it archives none. */
  logArchive?: LogArchive
  /** Absent without Redis: then events go only through the store. */
  relay?: Relay
  /** Absent if this node writes to no disk of its own. */
  disks?: Disks
  /** Absent with PostgreSQL, which has its own backups. */
  backups?: Backups
  /** The expiry of the certificate of this node; absent without one. */
  certificateEndsAtMs?: number | undefined
  meter: Meter
  limits: Limits
  settings: Settings
  evidence: PromiseCounters
  fullDisks: FullDisks
}

/** The free space of the disks that this node writes to. */
export type Disks = () => Promise<DiskUse[]>

export interface DiskUse {
  folder: string
  /** From 0 to 1, of the space that this process may use. */
  freeRatio: number
}

/** Copies of an embedded store, made while the node runs. */
export interface Backups {
  make(): Promise<{ name: string; rows: number; bytes: number }>
  /** The oldest first. */
  list(): { name: string; createdAtMs: number }[]
  remove(name: string): void
}

export interface Limits {
  payloadBytesMax: number
  resultBytesMax: number
  batchItemsMax: number
  artifactBytesMax: number
  /** The maximum of open event streams of this node. */
  subscribersMax: number
}

export const DEFAULT_LIMITS: Limits = {
  payloadBytesMax: PAYLOAD_BYTES_MAX,
  resultBytesMax: 4 * 1024 * 1024,
  batchItemsMax: 1_000,
  artifactBytesMax: DEFAULT_ARTIFACT_BYTES_MAX,
  subscribersMax: 10_000,
}

export function blobsOf({ blobs }: Deps): Blobs {
  if (blobs === undefined) throw new IchidoError('ARTIFACTS_OFF')
  return blobs
}
