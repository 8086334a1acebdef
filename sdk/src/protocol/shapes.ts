import type { Stages } from './seq.ts'

/** What travels over the wire, in the wire's own words: snake_case, instants as ISO 8601 in UTC. */

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
export type JobState = (typeof JOB_STATES)[number]

export const ROLES = ['viewer', 'submitter', 'operator', 'admin'] as const
export type Role = (typeof ROLES)[number]

export interface BackoffShape {
  base_seconds?: number | undefined
  cap_seconds?: number | undefined
  jitter?: number | undefined
}

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
  /** Of its events; default: the kind. */
  domain?: string | undefined
  stages?: StageShape[] | 'eco2' | undefined
  seq_scope?: 'job' | 'attempt' | undefined
  labels?: Record<string, string> | undefined
  estimated_cost?: number | undefined
  traceparent?: string | undefined
  reservation_id?: string | undefined
  idempotency_key?: string | undefined
  key_ttl_hours?: number | undefined
  artifacts?: AwaitedArtifactShape[] | undefined
  upload_ttl_seconds?: number | undefined
}

/** A file that a job waits for. */
export interface AwaitedArtifactShape {
  name: string
  sha256?: string | undefined
  size_bytes?: number | undefined
}

export interface ArtifactShape {
  artifact_id: string
  job_id: string | null
  /** The run that made it; null for what was sent to a job. */
  run_id: string | null
  name: string
  sha256: string | null
  size_bytes: number | null
  state: 'awaited' | 'ready'
  created_at: string
  expires_at: string | null
}

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

export interface RunErrorShape {
  code: string
  message: string
  traceback?: string | undefined
}

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
  /** It is held back until the artifacts that it waits for have been sent. */
  awaits_artifacts: boolean
  started_at: string | null
  finished_at: string | null
  cancel_requested_at: string | null
  replaces_job_id: string | null
  /** The definition that it was made by. */
  definition: string | null
  /** The tick that it was made for. */
  scheduled_for: string | null
  error: RunErrorShape | null
}

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
  /** CONFIRMING: the worker has not been heard of, and has until the deadline before the run ends without it. */
  continuation_state: 'NONE' | 'CONFIRMING'
  continuation_check_deadline_at: string | null
  cancel_requested_at: string | null
  error: RunErrorShape | null
}

/** What the promises were kept against, of one job. */
export interface OnceShape {
  duplicates_refused: number
  replays_served: number
  stale_writes_fenced: number
  reassignments: number
}

export interface JobDetail extends JobShape {
  payload: unknown
  policy: Record<string, unknown>
  traceparent: string | null
  idempotency_key: string | null
  /** Why nobody works on it; null when it does not wait. */
  waiting_for: WaitingForShape | null
  runs: RunShape[]
  once: OnceShape
}

export const WAITING_REASONS = ['artifacts', 'run_at', 'paused', 'limit', 'no_worker', 'workers_busy', 'quota'] as const
export type WaitingReason = (typeof WAITING_REASONS)[number]

export interface WaitingForShape {
  reason: WaitingReason
  message: string
  queue?: string | undefined
  /** What would help. */
  command?: string | undefined
  run_at?: string | undefined
  since?: string | undefined
  max_concurrent?: number | undefined
  running?: number | undefined
  /** Names of those that have not come. */
  artifacts?: string[] | undefined
  redrive_id?: string | undefined
}

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

export interface Page<T> {
  data: T[]
  next_cursor: string | null
}

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

export interface ReservationShape {
  reservation_id: string
  user_id: string
  state: 'active' | 'consumed' | 'released' | 'expired'
  created_at: string
  expires_at: string
  job_id: string | null
}

export interface QuotaShape {
  user_id: string
  max_concurrent: number | null
  cost_limit: number | null
  period: 'day' | 'month'
  /** Whether the limits are the user's own; otherwise they are those of `*`. */
  custom: boolean
  active_jobs: number
  active_reservations: number
  spent: number
}

export interface TokenShape {
  token_id: string
  user_id: string
  role: Role
  name: string
  created_at: string
  expires_at: string | null
  revoked_at: string | null
}

/** A lease, as a worker is handed it. */
export interface LeaseShape {
  job_id: string
  run_id: string
  attempt: number
  lease_id: string
  version: number
  leader_epoch: number | null
  queue: string
  kind: string
  payload: unknown
  lease_ttl_seconds: number
  continuation_seconds: number
  timeout_seconds: number | null
  traceparent: string | null
  /** Which seq numbers the stages of its events have; null: one open stage, `progress`. */
  stages: Stages | null
  /** What the worker can fetch before it begins. */
  artifacts: { artifact_id: string; name: string; sha256: string; size_bytes: number }[]
  /** The data of the last progress event of the attempts before this one, for checkpoints; null when there is none. */
  last_progress: unknown
}

/** A fact of a job's progress. */
export interface EventShape {
  /** Gapless within the job, in the order of delivery. */
  cursor: number
  stage: string
  seq: number
  data: unknown
  timestamp: string
}

/** How a job stands: its state, its last event, and the last one of each stage that its workers publish in. */
export interface JobStateShape {
  job_id: string
  domain: string
  state: JobState
  attempt: number
  /** Null once its events are past their time. */
  event: EventShape | null
  stages: Record<string, EventShape>
}

/** Opens the events of one job, for a few minutes: for browsers, which cannot send a token otherwise. */
export interface StreamTokenShape {
  token: string
  expires_at: string
}

/** An event among those of all jobs. */
export interface EventOfAllShape extends EventShape {
  job_id: string
  kind: string
  queue: string
  domain: string
}

export interface EventsOfAllShape {
  data: EventOfAllShape[]
  /** The list goes on from here, now or when there is more. */
  next_cursor: string
  /** There is no more yet. */
  caught_up: boolean
}

export const WORKER_STATES = ['online', 'detached', 'unseen', 'revoked'] as const
export type WorkerState = (typeof WORKER_STATES)[number]

export interface EnrollTokenShape {
  enroll_token: string
  expires_at: string
  ttl_seconds: number
  label: string | null
  /** The queues that the worker may lease from; null: all of them. */
  queues: string[] | null
  /** Where workers reach the server, if it knows. */
  public_url: string | null
}

export interface RegisterRequest {
  enroll_token: string
  name?: string | undefined
  queues?: string[] | undefined
  meta?: Record<string, unknown> | undefined
  /** Who the worker was before, and its token of before, expired or not. */
  worker_id?: string | undefined
  worker_token?: string | undefined
  /** Random: with it a registration whose answer got lost is sent again. */
  register_id?: string | undefined
}

export interface RegisteredShape {
  worker_id: string
  worker_token: string
  expires_at: string
  name: string
  queues: string[] | null
  registered_at: string
}

export interface RenewedShape {
  worker_token: string
  expires_at: string
}

export interface DetachedShape {
  worker_id: string
  detached_at: string
}

export interface WorkerShape {
  worker_id: string
  name: string
  state: WorkerState
  queues: string[] | null
  meta: Record<string, unknown>
  registered_at: string
  last_seen_at: string | null
  token_expires_at: string | null
  /** When it said that it stops; null since it was heard of again. */
  detached_at: string | null
  revoked_at: string | null
  live_leases: number
}

export interface RevokedShape {
  worker_id: string
  revoked_at: string
  /** Leases that it held; nothing it reports by them counts any more. */
  fenced_leases: number
  revoked_tokens: number
}

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

/** A piece of what a run's program wrote. */
export interface RunLogShape {
  run_id: string
  run_no: number
  n: number
  stream: 'stdout' | 'stderr'
  text: string
  created_at: string
}

export interface QueueShape {
  name: string
  paused: boolean
  paused_at: string | null
  /** Runs of it that workers may hold at one time; null: no limit. */
  max_concurrent: number | null
  /** For jobs that do not set their own; null: the server's defaults. */
  lease_ttl_seconds: number | null
  continuation_seconds: number | null
  result_ttl_seconds: number | null
  ready: number
  delayed: number
  running: number
  oldest_ready_seconds: number | null
}

/** What an operator can change while nodes run. */
export interface SettingShape {
  name: string
  /** In force on the node that answers. */
  value: number
  default: number
  min: number
  max: number
  source: 'default' | 'stored' | 'environment'
  description: string
  /** Of the last change that was stored, also when the environment beats it. */
  updated_at: string | null
  updated_by: string | null
}

/** Who changed what. */
export interface AuditShape {
  audit_id: string
  /** A user, `local`, or `worker:` and its id. */
  actor: string
  action: string
  subject: string
  /** Null: there was nothing before, or there is nothing any more. */
  before: unknown
  after: unknown
  created_at: string
}

export const ALERT_RULES = ['schedule_overdue', 'loop_late'] as const
export type AlertRule = (typeof ALERT_RULES)[number]

/** Something that is not as it should be. At most one is open for a rule and what it is about. */
export interface AlertShape {
  alert_id: string
  rule: AlertRule
  subject: string
  message: string
  opened_at: string
  /** Null while it is open. */
  closed_at: string | null
}

/** A cron rule; what is left out takes the default. */
export interface ScheduleRequest {
  /** Minute, hour, day of month, month, day of week; with six fields the second comes before them. */
  cron: string
  /** Of the IANA database; default UTC. */
  time_zone?: string | undefined
  /** What is made up for of ticks that were missed; default `last`. */
  catch_up?: 'skip' | 'last' | 'all' | undefined
  catch_up_window_seconds?: number | undefined
  /** What becomes of a tick while the job of the one before has not ended; default `allow`. */
  overlap?: 'allow' | 'skip' | 'queue_one' | undefined
  /** A job may begin this much later than its tick. */
  jitter_seconds?: number | undefined
  starts_at?: string | null | undefined
  ends_at?: string | null | undefined
}

export interface ScheduleShape {
  cron: string
  time_zone: string
  catch_up: 'skip' | 'last' | 'all'
  catch_up_window_seconds: number
  overlap: 'allow' | 'skip' | 'queue_one'
  jitter_seconds: number
  starts_at: string | null
  ends_at: string | null
}

/** A stage of a job's events and the numbers that belong to it. */
export interface StageShape {
  name: string
  from: number
  to: number
  final?: boolean | undefined
}

/** The jobs to make, and when. */
export interface DefinitionRequest {
  kind: string
  queue?: string | null | undefined
  payload?: unknown
  priority?: number | undefined
  labels?: Record<string, string> | undefined
  max_attempts?: number | null | undefined
  backoff?: BackoffShape | null | undefined
  timeout_seconds?: number | null | undefined
  lease_ttl_seconds?: number | null | undefined
  continuation_seconds?: number | null | undefined
  /** Of its jobs' events; default: the kind. */
  domain?: string | null | undefined
  stages?: StageShape[] | 'eco2' | null | undefined
  seq_scope?: 'job' | 'attempt' | undefined
  schedule?: ScheduleRequest | null | undefined
}

/** A named template of jobs, perhaps with a cron rule. */
export interface DefinitionShape {
  definition_id: string
  name: string
  kind: string
  queue: string | null
  payload: unknown
  priority: number
  labels: Record<string, string>
  /** Null, here and below: the default at the time that it is needed. */
  max_attempts: number | null
  backoff: BackoffShape | null
  timeout_seconds: number | null
  lease_ttl_seconds: number | null
  continuation_seconds: number | null
  domain: string | null
  stages: StageShape[] | 'eco2' | null
  seq_scope: 'job' | 'attempt'
  schedule: ScheduleShape | null
  paused: boolean
  paused_at: string | null
  /** Raised by every change that somebody makes. */
  version: number
  /** Whose jobs its ticks make. */
  user_id: string
  /** Null without a schedule, when it has ended, and while it is paused. */
  next_tick_at: string | null
  last_tick_at: string | null
  created_at: string
  updated_at: string
}

/** An instant at which a definition is due, and what clocks in its time zone show then. */
export interface TickShape {
  scheduled_for: string
  local_time: string
}

export const OCCURRENCE_OUTCOMES = ['job', 'skipped', 'waiting_quota', 'waiting_overlap', 'pending', 'missing'] as const
export type OccurrenceOutcome = (typeof OCCURRENCE_OUTCOMES)[number]

/** What became of a tick, or that nothing did. */
export interface OccurrenceShape {
  scheduled_for: string
  outcome: OccurrenceOutcome
  /** Stays when retention has removed the job. */
  job_id: string | null
  reason: string | null
  origin: 'schedule' | 'backfill'
  /** This skip stands for all ticks up to this one. */
  skipped_until: string | null
  /** When it was recorded; null for what is not. */
  created_at: string | null
  /** From the tick until its job was made, or until now; null where it says nothing. */
  late_seconds: number | null
}

export const BACKFILL_STATES = ['running', 'done', 'aborted'] as const
export type BackfillState = (typeof BACKFILL_STATES)[number]

export interface BackfillShape {
  backfill_id: string
  definition: string
  actor: string
  state: BackfillState
  from: string
  to: string
  /** Ticks in the range, by the rule that it began with. */
  matched: number
  made: number
  /** Ticks whose job was made before, or waits to be. */
  made_before: number
  /** Ticks that were skipped, and stay so. */
  skipped: number
  began_at: string
  ended_at: string | null
}
