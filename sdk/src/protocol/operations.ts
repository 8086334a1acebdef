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
  /** A failure with one of these codes is not retried. */
  fatal_error_codes: string[] | null
  ready: number
  delayed: number
  running: number
  oldest_ready_seconds: number | null
}

/** What an operator can change while nodes run. */
export interface BackupShape {
  /** The file's name in the folder `backups` of the server's `DATA_DIR`. */
  name: string
  rows: number
  bytes: number
}

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
