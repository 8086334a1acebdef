import type { StageShape } from './seq.ts'
import type { CallbackShape } from './webhooks.ts'

/** The states of a job and of a run. */
export const JOB_STATES = [
  'PENDING',
  'ASSIGNED',
  'RUNNING',
  'ORPHANED',
  'SUCCEEDED',
  'FAILED',
  'TIMED_OUT',
  'CANCELED',
] as const
/** The state of a job or of a run. */
export type JobState = (typeof JOB_STATES)[number]

/** The wait before a retry. */
export interface BackoffShape {
  base_seconds?: number | undefined
  cap_seconds?: number | undefined
  jitter?: number | undefined
}

/** The body of a submission. */
export interface SubmitRequest {
  kind: string
  queue?: string | undefined
  payload?: unknown
  priority?: number | undefined
  run_at?: string | undefined
  delay_seconds?: number | undefined
  max_attempts?: number | undefined
  backoff?: BackoffShape | undefined
  timeout_seconds?: number | undefined
  lease_ttl_seconds?: number | undefined
  continuation_seconds?: number | undefined
  /** A group of kinds for its events; default: the kind. */
  domain?: string | undefined
  stages?: StageShape[] | 'eco2' | undefined
  seq_scope?: 'job' | 'attempt' | undefined
  labels?: Record<string, string> | undefined
  estimated_cost?: number | undefined
  traceparent?: string | undefined
  /** Gets a signed message about each end of the job. */
  callback_url?: string | undefined
  reservation_id?: string | undefined
  idempotency_key?: string | undefined
  key_ttl_hours?: number | undefined
  artifacts?: AwaitedArtifactShape[] | undefined
  upload_ttl_seconds?: number | undefined
}

/** The answer to a submission. */
export interface SubmitResponse {
  job_id: string
  kind: string
  queue: string
  state: JobState
  created_at: string
  run_at: string
  quota_warnings: string[]
  cost_limit_warning: string | null
}

/** The failure of a run. */
export interface RunErrorShape {
  code: string
  /** At most 1,000 characters in a list. */
  message: string
  /** Left out of lists. */
  traceback?: string | undefined
}

/** A job in a list. */
export interface JobShape {
  job_id: string
  kind: string
  queue: string
  user_id: string
  state: JobState
  priority: number
  attempt: number
  retry_count: number
  labels: Record<string, string>
  estimated_cost: number
  created_at: string
  run_at: string
  /** The job waits until its artifacts have arrived. */
  awaits_artifacts: boolean
  started_at: string | null
  finished_at: string | null
  cancel_requested_at: string | null
  replaces_job_id: string | null
  /** The definition that made it. */
  definition: string | null
  /** The tick that made it. */
  scheduled_for: string | null
  error: RunErrorShape | null
}

/** The orders of a list of jobs. */
export const JOB_ORDERS = ['newest', 'oldest'] as const
/** The job that is listed first. */
export type JobOrder = (typeof JOB_ORDERS)[number]

/** Selects jobs. */
export interface JobFilterShape {
  /** One state, or several separated by commas. */
  state?: JobState | `${JobState},${string}`
  /** Only jobs of this queue. */
  queue?: string
  /** Only jobs of this kind. */
  kind?: string
  /** Only jobs of this user. */
  user_id?: string
  /** Only jobs with this label, as `name:value`. */
  label?: string
  /** Only the job that was submitted with this key. */
  key?: string
  /** Only jobs whose id has this short form: its first 13 characters, `…` or `...`, and its last 4 to 12. */
  short_id?: string
  /** Only jobs whose latest run has an error with this code. */
  error_code?: string
  /** Only jobs with this text in the kind, a label's value, the error's message or a small payload. */
  text?: string
  /** Only jobs that are due for longer than this, and that no worker has. */
  waiting_longer_than_seconds?: number
  /** Only jobs that were made at this instant or later. */
  created_after?: string
  /** Only jobs that were made before this instant. */
  created_before?: string
}

/** How many jobs a filter selects. */
export interface JobCountsShape {
  total: number
  /** There may be more: the server looks at a limited number of jobs. */
  capped: boolean
  /** By the states that the filter allows. */
  by_state: { [State in JobState]?: { count: number; capped: boolean } | undefined }
}

/**
 * The filter of `client.list`, which is the query of `GET /v1/jobs`. With `error_code`, `text` or
 * `waiting_longer_than_seconds`, a page may be short or empty although another page follows.
 */
export interface JobListFilter extends JobFilterShape {
  /** By age; default `newest`. */
  order?: JobOrder
  /** The size of the page; default 50. */
  limit?: number
  /** The `next_cursor` of the page before. */
  cursor?: string
}

/** One attempt of a job. */
export interface RunShape {
  run_id: string
  run_no: number
  state: JobState
  version: number
  attempt: number
  retry_count: number
  run_at: string
  created_at: string
  assigned_worker_id: string | null
  assigned_at: string | null
  lease_expires_at: string | null
  started_at: string | null
  finished_at: string | null
  /** CONFIRMING: the worker is silent. The run ends without it at the deadline. */
  continuation_state: 'NONE' | 'CONFIRMING'
  continuation_check_deadline_at: string | null
  cancel_requested_at: string | null
  error: RunErrorShape | null
}

/** Counts of repeated and stale requests for one job. */
export interface OnceShape {
  duplicates_refused: number
  replays_served: number
  stale_writes_fenced: number
  reassignments: number
}

/** A job with its payload and its runs. */
export interface JobDetail extends JobShape {
  payload: unknown
  policy: Record<string, unknown>
  traceparent: string | null
  idempotency_key: string | null
  /** The trigger that made it, while the trigger is kept. */
  trigger_id: string | null
  callback: CallbackShape | null
  /** Why no worker has it; null if it does not wait. */
  waiting_for: WaitingForShape | null
  runs: RunShape[]
  once: OnceShape
}

/** The reasons why no worker has a job. */
export const WAITING_REASONS = [
  'artifacts',
  'run_at',
  'paused',
  'limit',
  'draining',
  'no_worker',
  'workers_busy',
  'quota',
] as const
/** The reason why no worker has a job. */
export type WaitingReason = (typeof WAITING_REASONS)[number]

/** Explains why no worker has a job. */
export interface WaitingForShape {
  reason: WaitingReason
  message: string
  queue?: string | undefined
  /** A command that would help. */
  command?: string | undefined
  run_at?: string | undefined
  since?: string | undefined
  max_concurrent?: number | undefined
  running?: number | undefined
  /** The names of the missing artifacts. */
  artifacts?: string[] | undefined
  redrive_id?: string | undefined
}

/** The result of a job. */
export interface ResultShape {
  job_id: string
  state: JobState
  result: unknown
  summary_text: string | null
  freqs_csv: string | null
  meta: unknown
  cost: number | null
  finished_at: string | null
}

/** A piece of the log of a run. */
export interface RunLogShape {
  run_id: string
  run_no: number
  n: number
  stream: 'stdout' | 'stderr'
  text: string
  created_at: string
}

/** An idempotency key and its job. */
export interface KeyShape {
  key: string
  user_id: string
  operation: string
  job_id: string
  request_hash: string
  active: boolean
  created_at: string
  expires_at: string
}

/** A file that a job waits for. */
export interface AwaitedArtifactShape {
  name: string
  sha256?: string | undefined
  size_bytes?: number | undefined
}

/** A file of a job. */
export interface ArtifactShape {
  artifact_id: string
  job_id: string | null
  /** The run that made it; null for an input of the job. */
  run_id: string | null
  name: string
  sha256: string | null
  size_bytes: number | null
  state: 'awaited' | 'ready'
  created_at: string
  expires_at: string | null
}

/** A fact about the progress of a job. */
export interface EventShape {
  /** A number without gaps within the job, in the order of delivery. */
  cursor: number
  stage: string
  seq: number
  data: unknown
  timestamp: string
}

/** The state of a job, its last event, and the last event of each stage in which workers publish. */
export interface JobStateShape {
  job_id: string
  domain: string
  state: JobState
  attempt: number
  /** Null after retention has removed the events. */
  event: EventShape | null
  stages: Record<string, EventShape>
}

/** A token for the events of one job, for a few minutes, for browsers that cannot send a header. */
export interface StreamTokenShape {
  token: string
  expires_at: string
}

/** An event in the list of all jobs. */
export interface EventOfAllShape extends EventShape {
  job_id: string
  kind: string
  queue: string
  domain: string
}

/** A page of the events of all jobs. */
export interface EventsOfAllShape {
  data: EventOfAllShape[]
  /** Where the list continues, now or later. */
  next_cursor: string
  /** There are no more events yet. */
  caught_up: boolean
}

/** A page of a list. */
export interface Page<T> {
  data: T[]
  next_cursor: string | null
}
