import type { JobCountsShape, JobDetail, JobFilterShape } from './jobs.ts'

/** A backup that the server made. */
export interface BackupShape {
  /** The file's name in the folder `backups` of the server's `DATA_DIR`. */
  name: string
  rows: number
  bytes: number
}

/** A setting that can be changed while nodes run. */
export interface SettingShape {
  name: string
  /** The value in force on the node that answers. */
  value: number
  default: number
  min: number
  max: number
  source: 'default' | 'stored' | 'environment'
  description: string
  /** When the stored value was last changed, even if the environment overrides it. */
  updated_at: string | null
  updated_by: string | null
}

/** An entry of the audit log. */
export interface AuditShape {
  audit_id: string
  /** A user, `local`, or `worker:` and its id. */
  actor: string
  action: string
  subject: string
  /** Null if it did not exist before, or no longer exists. */
  before: unknown
  after: unknown
  created_at: string
}

/** The rules of alerts. */
export const ALERT_RULES = [
  'schedule_overdue',
  'loop_late',
  'dead_letters',
  'retry_failures',
  'duplicate_keys',
  'start_delay',
  'queue_unserved',
  'oldest_waiting',
  'leader_changes',
  'disk_nearly_full',
  'credential_ending',
  'store_full',
] as const
/** The rule of an alert. */
export type AlertRule = (typeof ALERT_RULES)[number]

/** A detected problem. A rule has at most one open alert for each subject. */
export interface AlertShape {
  alert_id: string
  rule: AlertRule
  subject: string
  message: string
  opened_at: string
  /** Null while it is open. */
  closed_at: string | null
}

/** A job that has used up its retries. */
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

/** A dead letter with its job. */
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
  /** How many became dead letters in each step, the oldest step first. */
  counts: number[]
}

/** The largest groups of dead letters. */
export interface DeadLetterGroups {
  /** The beginning of the first step. */
  from: string
  /** The length of each step. */
  step_seconds: number
  data: DeadLetterGroup[]
}

/** Selects dead letters. */
export interface DeadLetterFilter {
  queue?: string | undefined
  kind?: string | undefined
  error_code?: string | undefined
  user_id?: string | undefined
  dead_after?: string | undefined
  dead_before?: string | undefined
  text?: string | undefined
}

/** The changes that an operation makes to many jobs. */
export const OPERATION_ACTIONS = ['cancel', 'retry', 'redrive'] as const
/** The change that an operation makes to many jobs. */
export type OperationAction = (typeof OPERATION_ACTIONS)[number]

/** The states of an operation. */
export const OPERATION_STATES = ['running', 'done', 'aborted'] as const
/** The state of an operation. */
export type OperationState = (typeof OPERATION_STATES)[number]

/** A change of many jobs that runs on the server. */
export interface OperationShape {
  operation_id: string
  action: OperationAction
  state: OperationState
  /** A redrive has a filter of dead letters. Null: the operation has a list of jobs. */
  filter: JobFilterShape | DeadLetterFilter | null
  /** The jobs of the list that could be changed when the operation began. Null: it has a filter. */
  job_ids: string[] | null
  per_second: number | null
  matched: number
  done: number
  /** Only in a redrive: jobs that found the quota full and will be tried again. */
  waiting: number
  /** Jobs whose state changed meanwhile, or whose key names another job now. */
  skipped: number
  /** Jobs that a full quota kept from a retry. */
  refused: number
  created_by: string
  created_at: string
  ended_at: string | null
}

/** The jobs that an operation would change. */
export interface OperationDryRun {
  dry_run: true
  action: OperationAction
  matched: number
  /** There may be more: the server looks at a limited number of jobs. */
  capped: boolean
  by_state: JobCountsShape['by_state']
}

/** Dead letters that are being retried. */
export interface RedriveShape {
  redrive_id: string
  state: OperationState
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

/** A slot of the quota that is held before its job exists. */
export interface ReservationShape {
  reservation_id: string
  user_id: string
  state: 'active' | 'consumed' | 'released' | 'expired'
  created_at: string
  expires_at: string
  job_id: string | null
}

/** A reservation that was just made. */
export interface NewReservationShape extends ReservationShape {
  quota_warnings: string[]
}

/** The limits of a user and their use. */
export interface QuotaShape {
  user_id: string
  max_concurrent: number | null
  cost_limit: number | null
  period: 'day' | 'month'
  /** True: the limits are the user's own; false: they are those of `*`. */
  custom: boolean
  active_jobs: number
  active_reservations: number
  spent: number
  max_bytes: number | null
  /** Null: bytes are not counted without a limit. */
  used_bytes: number | null
}

/** A user with limits and their use. */
export interface UserShape extends QuotaShape {
  /** When its first token was made; null: it never had one. */
  created_at: string | null
}

/** The roles of API tokens. */
export const ROLES = ['viewer', 'submitter', 'operator', 'admin'] as const
/** The role of an API token. */
export type Role = (typeof ROLES)[number]

/** An API token without its secret. */
export interface TokenShape {
  token_id: string
  user_id: string
  role: Role
  name: string
  created_at: string
  expires_at: string | null
  revoked_at: string | null
}

/** The caller of a request, for a page that shows only what the caller may do. */
export interface SessionShape {
  user_id: string
  role: Role
  abilities: ('readAll' | 'readOwn' | 'submit' | 'operate' | 'administer')[]
  /** When the session ends. Null: the caller has no session, but a token or open mode. */
  expires_at: string | null
  /** The value of the header `ichido-csrf`. Null: the caller has no session, and needs no such header. */
  csrf_token: string | null
  /** True in open mode: there is nothing to sign in to. */
  open: boolean
}

/** The state of the node that answers, of its store, and of the leader. */
export interface SystemShape {
  node: {
    version: string
    node_version: string
    started_at: string
  }
  leader: {
    /** The number of the current term, or of the last one. */
    epoch: number
    /** False: no node leads now. */
    present: boolean
    /** True: the node that answers leads. */
    this_node: boolean
    /** Since when the node that answers leads; null if it does not lead. */
    since: string | null
  }
  /** The loops of the node that answers. The leader also has those of its duties. */
  loops: LoopShape[]
  store: {
    engine: 'sqlite' | 'postgres'
    engine_version: string
    location: string
    schema_version: number
    bytes: number
    durable: boolean
    durability: Record<string, string>
    pooled: boolean
    /** The store's clock minus the clock of the node. */
    clock_skew_ms: number
  }
  /** Null without Redis. */
  redis: 'ok' | 'away' | 'full' | null
  /** The disks that the node writes to. */
  disks: { folder: string; free_percent: number }[]
}

/** A background task of a node. */
export interface LoopShape {
  name: string
  interval_seconds: number
  /** Null before the first run has ended. */
  last_run_at: string | null
  last_run_ms: number | null
  /** True: no run has ended for five intervals. */
  late: boolean
}

/** The statistics of a range, of one queue or of all. */
export interface SeriesShape {
  range: '15m' | '1h' | '24h' | '7d'
  step_seconds: number
  from: string
  to: string
  /** Null: all queues together. `*`: those without a series of their own. */
  queue: string | null
  /** The queues with figures in the range, the most active first; at most 200. */
  queues: string[]
  points: SeriesPointShape[]
}

/** How fast a queue moves now. */
export interface QueueRateShape {
  queue: string
  /** Jobs that were submitted, or made by ticks and triggers. */
  submitted_per_minute: number
  /** Runs that ended. */
  ended_per_minute: number
}

/** Gauges are null if the leader took no sample in the step. */
export interface SeriesPointShape {
  at: string
  /** False for the last step, which has not ended yet. */
  complete: boolean
  submitted: number
  started: number
  succeeded: number
  failed: number
  timed_out: number
  canceled: number
  retried: number
  dead_lettered: number
  key_hits: number
  cost: number
  wait_ms: PercentilesShape
  run_ms: PercentilesShape
  ready: number | null
  delayed: number | null
  running: number | null
  oldest_waiting_seconds: number | null
  dead_letters: number | null
  workers_online: number | null
  sampled: boolean
  sampled_minutes: number
}

/** Null without values. */
export interface PercentilesShape {
  p50: number | null
  p99: number | null
}
