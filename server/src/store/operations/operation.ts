import type { OperationAction, OperationState } from '@ichido/sdk/protocol'
import { record } from '../access/audit.ts'
import type { DeadFilter } from '../dead-letters/dead-letters.ts'
import type { JobFilter } from '../jobs/list-jobs.ts'
import type { RetryOutcome } from '../jobs/retry-jobs.ts'
import type { QueueTime } from '../leasing/fair-tags.ts'
import { exactlyOne, type Values, type Work } from '../statement.ts'
import * as sql from './operations.sql.ts'

/** Changes many jobs one after the other. It can be watched and aborted as a whole. */
export interface Operation {
  operationId: string
  action: OperationAction
  actor: string
  /** Of a redrive; null: it has a list of jobs, or is none. */
  deadFilter: DeadFilter | null
  /** Of another operation; null: it has a list of jobs. */
  jobFilter: JobFilter | null
  /** The jobs of the list that could be changed when the operation began; null: it has a filter. */
  jobIds: readonly string[] | null
  perSecond: number | null
  state: OperationState
  version: number
  /** True if the dead letters of a redrive are marked, or the jobs of another operation are counted. */
  prepared: boolean
  at: { deadAtMs: number; userId: string; jobId: string }
  matched: number
  done: number
  /** Dead letters of a redrive that met a full quota, and will be tried again. */
  waiting: number
  /** Jobs whose state changed meanwhile, or whose key names another job now. */
  skipped: number
  /** Jobs that a full quota kept from a retry. */
  refused: number
  nextAtMs: number
  beganAtMs: number
  endedAtMs: number | null
}

export function countsOf({ matched, done, waiting, skipped, refused }: Operation) {
  return { matched, done, waiting, skipped, refused }
}

export function toOperation(row: Values<typeof sql.OPERATION_ROW>): Operation {
  return {
    operationId: row.id,
    action: row.action,
    actor: row.actor,
    deadFilter: row.dead_filter,
    jobFilter: row.job_filter,
    jobIds: row.job_ids,
    perSecond: row.per_second,
    state: row.state,
    version: row.version,
    prepared: row.prepared,
    at: { deadAtMs: row.at_dead_at, userId: row.at_user_id, jobId: row.at_job_id },
    matched: row.matched,
    done: row.done,
    waiting: row.waiting,
    skipped: row.skipped,
    refused: row.refused,
    nextAtMs: row.next_at,
    beganAtMs: row.began_at,
    endedAtMs: row.ended_at,
  }
}

/** Ends an operation whose jobs are all done. */
export function* completeOperation(operationId: string, auditId: string): Work<void> {
  const ended = toOperation(yield* exactlyOne(sql.endOperation, { id: operationId, state: 'done' }))
  yield* record({ id: auditId, actor: ended.actor }, `${ended.action}.done`, operationId, null, countsOf(ended))
}

export interface StepItem {
  operationId: string
  /** The version that was seen: if two leaders continue at once, one takes the step. */
  version: number
  /** Ids for the runs that this step may make. Their number is the step's maximum. */
  nextRunIds: readonly string[]
  auditId: string
  /** The times of queues that this node has not shared yet. */
  leased: readonly QueueTime[]
}

export interface Stepped {
  /** Null: nothing was changed. */
  action: OperationAction | null
  retried: Extract<RetryOutcome, { kind: 'retried' }>[]
  canceled: { jobId: string; queue: string; kind: string }[]
  /** These runs are asked to stop. */
  requested: { jobId: string; workerId: string }[]
  ended: boolean
}

export const NOTHING: Stepped = { action: null, retried: [], canceled: [], requested: [], ended: false }

const STEPS_PER_SECOND = 4

/** The number of jobs of one step. */
export function batchOf({ perSecond }: Operation, { nextRunIds }: StepItem): number {
  return Math.min(nextRunIds.length, perSecond === null ? Infinity : Math.ceil(perSecond / STEPS_PER_SECOND))
}

/** The pause after a step that changed this many jobs. */
export function paceMs({ perSecond }: Operation, changed: number): number {
  return perSecond === null ? 0 : Math.ceil((changed * 1000) / perSecond)
}

export function meetsFullQuota(outcome: RetryOutcome): boolean {
  return outcome.kind === 'refused' && ['QUOTA_EXCEEDED', 'COST_LIMIT_EXCEEDED'].includes(outcome.reason)
}
