import type { JobDetail } from './jobs.ts'

export interface DeadLetterShape {
  job_id: string
  run_id: string
  queue: string
  kind: string
  user_id: string
  error_code: string
  error_message: string
  retry_count: number
  dead_at: string
  /** The redrive that it is or was last part of. */
  redrive_id: string | null
}

export interface DeadLetterDetail extends DeadLetterShape {
  job: JobDetail
}

/** Dead letters of one queue, kind and error code. */
export interface DeadLetterGroup {
  queue: string
  kind: string
  error_code: string
  count: number
  first_dead_at: string
  last_dead_at: string
  sample_message: string
}

export interface DeadLetterFilter {
  queue?: string | undefined
  kind?: string | undefined
  error_code?: string | undefined
  user_id?: string | undefined
  dead_after?: string | undefined
  dead_before?: string | undefined
  text?: string | undefined
}

export const REDRIVE_STATES = ['running', 'done', 'aborted'] as const
export type RedriveState = (typeof REDRIVE_STATES)[number]

export interface RedriveShape {
  redrive_id: string
  state: RedriveState
  actor: string
  /** Null: it was given a list of jobs. */
  filter: DeadLetterFilter | null
  per_second: number | null
  matched: number
  redriven: number
  /** Met a full quota, and will be tried again. */
  waiting: number
  /** Retried by somebody else meanwhile, or their key names another job by now. */
  skipped: number
  began_at: string
  ended_at: string | null
}
