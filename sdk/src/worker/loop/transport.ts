import type { IchidoError, LeaseShape } from '../../protocol/index.ts'

/** Keeps reports through the end of the process. */
export interface Outbox {
  /** Keep every report before it is sent; otherwise those that could not be sent at once. */
  readonly eager: boolean
  keep(lease: LeaseShape, report: RunReport): Promise<void>
  /** It was answered, or can never be. */
  drop(lease: LeaseShape): Promise<void>
}

/** How a worker reaches the control plane. What is refused or fails is thrown as an IchidoError. */
export interface WorkerTransport {
  /** Waits up to `waitMs` for work. With a `startId` what it answers with is RUNNING, else it is to be started. */
  lease(call: LeaseCall, signal?: AbortSignal): Promise<LeaseShape[]>
  /** Settles with whether it had been started before; then nothing was changed, and the lease is no longer than it was. */
  start(leaseId: string, startId: string): Promise<{ repeated: boolean }>
  /** Many at once; the answers come in the order of the leases. */
  heartbeat(leaseIds: readonly string[]): Promise<Beat[]>
  /** The leases whose runs are to stop, as soon as there are others than the known ones; none when the time is up. */
  cancels(known: readonly string[], waitMs: number, signal: AbortSignal): Promise<string[]>
  publish(leaseId: string, events: readonly WorkerEvent[]): Promise<void>
  /** Adds to the log of the run. A chunk whose number was stored before is ignored. */
  log(leaseId: string, chunks: readonly LogChunk[]): Promise<void>
  /** How runs ended, and in the same call what to do next. The refusals come in the order of the reports. */
  report(reports: readonly RunReport[], next: LeaseCall | null): Promise<ReportAnswer>
  /** Gives a run back as it is; that costs the job no retry. */
  release(leaseId: string): Promise<void>
}

export interface LeaseCall {
  queues: readonly string[]
  /** Empty: any. */
  kinds: readonly string[]
  max: number
  waitMs: number
  /** Names the poll, so that a lost answer can be asked for again. */
  pollId: string
  /** Names this process; set: the runs are started at once. */
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
  cost?: number
}

export interface FailReport {
  code: string
  message: string
  traceback?: string
  retryable: boolean
}
