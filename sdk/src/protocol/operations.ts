export interface QueueShape {
  name: string
  paused: boolean
  paused_at: string | null
  /** How many runs workers may hold at a time; null: no limit. */
  max_concurrent: number | null
  /** The default for jobs that do not set it; null: the server's default. */
  lease_ttl_seconds: number | null
  continuation_seconds: number | null
  result_ttl_seconds: number | null
  /** A failure with one of these codes is not retried. */
  fatal_error_codes: string[] | null
  ready: number
  delayed: number
  running: number
  oldest_ready_seconds: number | null
}

/** A setting that can be changed while nodes run. */
export interface BackupShape {
  /** The file's name in the folder `backups` of the server's `DATA_DIR`. */
  name: string
  rows: number
  bytes: number
}

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
