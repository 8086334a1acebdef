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
  /** The last redrive that included it. */
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
  /** Null: the redrive has a list of jobs. */
  filter: DeadLetterFilter | null
  per_second: number | null
  matched: number
  redriven: number
  /** Jobs that found the quota full and will be tried again. */
  waiting: number
  /** Jobs that were retried by someone else, or whose key names another job now. */
  skipped: number
  began_at: string
  ended_at: string | null
}
