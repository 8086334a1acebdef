import { IchidoError } from '@ichido/sdk/protocol'
import type { World } from '@ichido/sdk/world'
import type { Blobs } from '../blobs/port.ts'
import type { Bus, Relay } from '../bus/port.ts'
import { DEFAULT_ARTIFACT_BYTES_MAX } from '../core/run/artifact.ts'
import { PAYLOAD_BYTES_MAX } from '../core/run/job.ts'
import type { LogArchive } from '../log-archive/port.ts'
import type { Store } from '../store/port.ts'
import type { FullDisks } from './system/alerts.ts'
import type { PromiseCounters } from './system/counters.ts'
import type { Meter } from './system/meter.ts'
import type { Settings } from './system/settings.ts'

/** What every service works with; chosen once, in main.ts or open.ts. */
export interface Deps {
  world: World
  store: Store
  bus: Bus
  /** Absent where this node keeps no artifacts. */
  blobs?: Blobs
  /** Absent where this node cannot see archived logs: then it archives none. */
  logArchive?: LogArchive
  /** Absent where events have no way but the store. */
  relay?: Relay
  /** Absent where this node keeps nothing on a disk of its own. */
  disks?: Disks
  /** Absent where the jobs are in PostgreSQL, which has its own. */
  backups?: Backups
  /** Of the certificate that this node serves; absent where it serves none. */
  certificateEndsAtMs?: number | undefined
  meter: Meter
  limits: Limits
  settings: Settings
  evidence: PromiseCounters
  fullDisks: FullDisks
}

/** How full the disks are that this node writes to. */
export type Disks = () => Promise<DiskUse[]>

export interface DiskUse {
  folder: string
  /** From 0 to 1, of what this process may use. */
  freeRatio: number
}

/** Copies of an embedded store, made while the node works. */
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
  /** Who may follow the events of jobs on this node at the same time. */
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
