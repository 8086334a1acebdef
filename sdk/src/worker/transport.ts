import type { LeaseShape } from '../protocol/index.ts'
import type { World } from '../world.ts'

export interface WorkerDeps {
  transport: WorkerTransport
  world: World
  onTrouble(error: unknown): void
}

/** How a worker reaches the control plane. */
export interface WorkerTransport {
  /** Leases and starts in one call: RUNNING, or nothing. Waits up to `waitMs` for work. */
  lease(request: LeaseCall, signal: AbortSignal): Promise<LeaseShape[]>
  heartbeat(leaseId: string): Promise<{ held: boolean; cancelRequested: boolean }>
  publish(leaseId: string, stage: string, seq: number, data: unknown): Promise<void>
  finish(leaseId: string, report: FinishReport): Promise<void>
  fail(leaseId: string, report: FailReport): Promise<void>
}

export interface LeaseCall {
  queue: string
  kinds: readonly string[]
  max: number
  waitMs: number
  /** Names the poll, so that a lost answer can be asked for again. */
  pollId: string
  /** Names this process. */
  startId: string
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
