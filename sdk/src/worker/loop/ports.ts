import { COST_MAX, type IchidoError, type LeaseShape } from '../../protocol/index.ts'
import type { Clocks, Mark, World } from '../../world.ts'
import type { RunStop } from './run-stop.ts'

/** Stores reports beyond the end of the process. */
export interface Outbox {
  /** True: every report is stored before it is sent. False: only reports that could not be sent at once. */
  readonly eager: boolean
  keep(lease: LeaseShape, report: RunReport): Promise<void>
  /** Called when the report was answered, or can never be. */
  drop(lease: LeaseShape): Promise<void>
}

/** The connection of a worker to the control plane. Refusals and failures are thrown as IchidoError. */
export interface WorkerTransport {
  /** Waits up to `waitMs` for work. With a `startId` the runs are RUNNING; otherwise each must be started. */
  lease(call: LeaseCall, signal?: AbortSignal): Promise<LeaseShape[]>
  /** `repeated`: the run was already started; the lease was not extended. */
  start(leaseId: string, startId: string): Promise<{ repeated: boolean }>
  /** Extends several leases; the answers are in the order of the leases. */
  heartbeat(leaseIds: readonly string[]): Promise<Beat[]>
  /** Waits until leases other than the known ones must stop; returns an empty list after `waitMs`. */
  cancels(known: readonly string[], waitMs: number, signal: AbortSignal): Promise<string[]>
  publish(leaseId: string, events: readonly WorkerEvent[]): Promise<void>
  /** Adds to the log of the run. A chunk whose number was stored before is ignored. */
  log(leaseId: string, chunks: readonly LogChunk[]): Promise<void>
  /** Reports outcomes and leases the next runs in the same call. The refusals are in the order of the reports. */
  report(reports: readonly RunReport[], next: LeaseCall | null): Promise<ReportAnswer>
  /** Gives a run back; this costs the job no retry. */
  release(leaseId: string): Promise<void>
}

/** Keeps leases alive, and stops runs whose leases it cannot keep. */
export interface Keeper {
  /** `sent`: when the call that got the lease was sent. */
  hold(lease: LeaseShape, sent: Mark, run: RunStop): Hold
}

/** A lease that is being kept. */
export interface Hold {
  /** Aborts when the lease is lost; no report of the run is accepted then. */
  readonly lost: AbortSignal
  readonly isLost: boolean
  readonly aloneMs: number
  /** When the last call that confirmed the lease was sent. */
  confirmed(): Mark
  onConfirmed(callback: (sent: Mark) => void): void
  /** Another call than a heartbeat, sent at this instant, confirmed the lease. */
  confirm(sent: Mark): void
  /** Sends a heartbeat now; false if the lease is lost. Throws if the control plane does not answer. */
  ask(): Promise<boolean>
  /** The run has ended; from now on the lease is kept only for its report. */
  runEnded(): void
  letGo(): void
}

/** The surroundings of a worker loop. */
export interface WorkerDeps {
  transport: WorkerTransport
  world: World
  onTrouble(error: unknown): void
  /** The clocks that measure elapsed time; default: only the monotonic clock. */
  clocks?: Clocks
  /** Keeps the leases; default: timers of this thread. */
  keeper?: Keeper
  /** Stores reports until they are answered; default: memory. */
  outbox?: Outbox
}

export interface LeaseCall {
  queues: readonly string[]
  /** Empty: any kind. */
  kinds: readonly string[]
  max: number
  waitMs: number
  /** Identifies the poll, so that a lost answer can be requested again. */
  pollId: string
  /** Identifies this process; if set, the runs are started in the same call. */
  startId?: string
}

export interface Beat {
  held: boolean
  cancelRequested: boolean
}

export interface WorkerEvent {
  stage: string
  seq: number
  data: unknown
}

export interface LogChunk {
  /** Counted from 0 through both streams of a run. */
  n: number
  stream: 'stdout' | 'stderr'
  text: string
}

export type RunReport = { leaseId: string } & ({ result: FinishReport } | { failure: FailReport })

export interface ReportAnswer {
  refusals: (IchidoError | null)[]
  leases: LeaseShape[]
}

export interface FinishReport {
  result: unknown
  meta?: Record<string, unknown>
  cost?: number | undefined
}

export interface FailReport {
  code: string
  message: string
  traceback?: string
  retryable: boolean
}

export const COST_RULE = `a number from 0 to ${COST_MAX}`

/** Checked before the report, because the control plane would refuse the whole result. */
export function isCost(amount: unknown): amount is number {
  return typeof amount === 'number' && amount >= 0 && amount <= COST_MAX
}
