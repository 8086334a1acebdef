/**
 * A setting that operators can change while nodes run. It has a default, bounds, and an environment variable that
 * overrides the stored value. Retention times are in seconds or days; 0 keeps data for ever.
 */
interface Setting {
  readonly default: number
  readonly min: number
  readonly max: number
  /** Counts are whole numbers; spans of time may have fractions. */
  readonly whole: boolean
  readonly says: string
}

const YEAR_SECONDS = 366 * 24 * 3600
const DAY_SECONDS = 24 * 3600
const CENTURY_DAYS = 36_600

const setting =
  (whole: boolean, least: number) =>
  (value: number, max: number, says: string, min = least): Setting => ({ default: value, min, max, whole, says })
const span = setting(false, 0.05)
const count = setting(true, 1)

/** Settings that every alert rule with a window has. */
const window = (seconds: number) => count(seconds, DAY_SECONDS, 'The window of this rule', 60)
const BROKEN_FOR = count(0, DAY_SECONDS, 'How long this rule must be broken before its alert opens', 0)

export const SETTINGS = {
  reap_interval_seconds: span(5, 30, 'How often the leader looks for lost workers'),
  reap_batch_max: count(200, 10_000, 'Runs that one transaction of the reaper ends or orphans'),
  promote_interval_seconds: span(1, 30, 'How often due runs enter their queues'),
  promote_batch_max: count(1_000, 10_000, 'Delayed runs that enter their queues in one transaction'),
  schedule_interval_seconds: span(1, 30, 'How often the leader looks for due ticks; it also wakes for the next tick'),
  schedule_batch_max: count(500, 10_000, 'Ticks that one transaction processes'),
  trigger_interval_seconds: span(1, 30, 'How often the leader looks for triggers; a new trigger also wakes it'),
  trigger_batch_max: count(500, 10_000, 'Jobs that one transaction makes from triggers'),
  operation_interval_seconds: span(1, 30, 'How often the leader continues operations'),
  operation_batch_max: count(200, 1_000, 'Jobs that one step of an operation changes'),
  webhooks_interval_seconds: span(1, 60, 'How often the leader looks for ends of jobs and due deliveries for webhooks'),
  webhooks_batch_max: count(500, 10_000, 'Ends of jobs that one transaction turns into deliveries for webhooks'),
  retain_interval_seconds: span(60, 3_600, 'How often the leader removes data whose retention has ended'),
  retain_batch_max: count(500, 10_000, 'Jobs, keys, events or audit entries that one transaction removes'),
  archive_interval_seconds: span(60, 3_600, 'How often the leader moves old logs to files'),
  archive_batch_max: count(20, 1_000, 'Logs that the leader archives at a time'),
  backup_interval_seconds: count(0, YEAR_SECONDS, 'How often a server on SQLite makes a backup; 0: never', 0),
  backups_kept: count(7, 10_000, 'Backups that a server on SQLite keeps; it removes older ones'),
  alert_interval_seconds: span(15, 3_600, 'How often the leader checks the rules of alerts'),
  alert_batch_max: count(100, 10_000, 'Alerts that one transaction opens, closes or removes'),
  evidence_interval_seconds: span(1, 60, 'How often a node stores its counts of refused, replayed and fenced calls'),
  evidence_batch_max: count(1_000, 10_000, 'Jobs whose counters one transaction changes'),
  uploads_interval_seconds: span(5, 3_600, 'How often nodes cancel jobs whose uploads are overdue'),
  uploads_batch_max: count(200, 10_000, 'Jobs with overdue uploads that one transaction cancels'),
  artifacts_interval_seconds: span(60, 3_600, 'How often nodes remove unused files'),
  artifacts_batch_max: count(200, 10_000, 'Artifacts or files that a node removes at a time'),
  relay_interval_seconds: span(1, 60, 'How often the leader sends missing events to Redis'),
  relay_batch_max: count(5_000, 10_000, 'Events that the leader sends to Redis at a time'),
  event_state_ttl_seconds: span(3_600, YEAR_SECONDS, "How long Redis keeps a job's latest event", 1),
  event_mark_ttl_seconds: span(7_200, YEAR_SECONDS, 'How long Redis recognizes a repeated event', 1),
  reassign_after_seconds: span(10, YEAR_SECONDS, 'How long an assigned run may take to start before it is orphaned', 1),
  job_retention_seconds: span(0, 100 * YEAR_SECONDS, 'How long ended jobs are kept; 0: for ever', 0),
  event_retention_seconds: span(
    0,
    100 * YEAR_SECONDS,
    'How long the events of ended jobs are kept; 0: as long as the job',
    0,
  ),
  dead_letter_retention_seconds: span(0, 100 * YEAR_SECONDS, 'How long dead letters are kept; 0: for ever', 0),
  trigger_retention_seconds: span(
    7 * 24 * 3600,
    100 * YEAR_SECONDS,
    'How long triggers and their dedupe keys are kept after their last outcome; 0: for ever',
    0,
  ),
  reservation_retention_days: span(
    7,
    CENTURY_DAYS,
    'How long used, released and expired reservations are kept; 0: for ever',
    0,
  ),
  audit_retention_days: span(0, CENTURY_DAYS, 'How long the audit is kept; 0: for ever', 0),
  alert_retention_days: span(90, CENTURY_DAYS, 'How long closed alerts are kept; 0: for ever', 0),
  webhook_delivery_retention_days: span(
    7,
    CENTURY_DAYS,
    'How long deliveries of webhooks are kept after they were delivered; 0: for ever',
    0,
  ),
  webhook_dead_retention_days: span(
    30,
    CENTURY_DAYS,
    'How long deliveries of webhooks are kept after their last try failed; 0: for ever',
    0,
  ),
  log_retention_days_db: span(
    7,
    CENTURY_DAYS,
    'How long logs stay in the database before they move to files; 0: for ever',
    0,
  ),
  webhooks_allow_private: count(
    0,
    1,
    '1: webhooks may lead to private addresses, and may use http; 0: they may not',
    0,
  ),
  connections_max: count(20_000, 1_000_000, 'Open connections of a node', 10),
  connections_per_address_max: count(
    2_500,
    1_000_000,
    'Open connections of one address (IPv6: one /64), or its open requests behind a trusted proxy',
  ),
  token_requests_per_second_max: count(
    5_000,
    1_000_000,
    'Requests a second of one API token on a node, on average over ten seconds',
  ),
  worker_requests_per_second_max: count(
    5_000,
    1_000_000,
    'Requests a second of one worker on a node, on average over ten seconds',
    50,
  ),
  event_streams_per_user_max: count(2_500, 1_000_000, 'Open event streams of one user on a node'),
  log_streams_per_user_max: count(50, 1_000_000, 'Open streams of logs and of all events, of one user on a node'),
  polls_per_worker_max: count(100, 1_000_000, 'Waiting calls of one worker on a node', 2),
  leases_per_worker_max: count(10_000, 1_000_000, 'Leases that one worker may hold'),
  queues_per_user_max: count(10_000, 1_000_000, 'Different queues that one user may use in a day'),
  domains_per_user_max: count(
    10_000,
    1_000_000,
    'Different event domains that one user may use in a day; a job without a domain uses its kind',
  ),
  labels_per_user_max: count(10_000, 1_000_000, 'Different label names that one user may use in a day'),
  operations_per_user_max: count(20, 10_000, 'Running operations and backfills of one user'),
  submitter_priority_max: count(100, 1_000, 'The highest priority that a submitter may ask for', -1_000),
  operator_priority_max: count(1_000, 1_000, 'The highest priority that an operator or admin may ask for', -1_000),
  alert_dead_letters_threshold: count(10, 1_000_000, 'An alert opens if more dead letters were made in the window', 0),
  alert_dead_letters_window_seconds: window(3_600),
  alert_dead_letters_for_seconds: BROKEN_FOR,
  alert_retry_failures_threshold_percent: span(
    5,
    100,
    'An alert opens if a larger share of the retries in the window failed',
    0,
  ),
  alert_retry_failures_window_seconds: window(3_600),
  alert_retry_failures_min_events: count(20, 1_000_000, 'No alert opens with fewer retries in the window'),
  alert_retry_failures_for_seconds: BROKEN_FOR,
  alert_duplicate_keys_threshold_percent: span(
    50,
    100,
    'An alert opens if a larger share of the submissions in the window repeated a key',
    0,
  ),
  alert_duplicate_keys_window_seconds: window(3_600),
  alert_duplicate_keys_min_events: count(
    20,
    1_000_000,
    'No alert opens with fewer submissions with a key in the window',
  ),
  alert_duplicate_keys_for_seconds: BROKEN_FOR,
  alert_start_delay_threshold_seconds: span(
    300,
    YEAR_SECONDS,
    'An alert opens if the mean delay of the starts in the window is longer',
    0,
  ),
  alert_start_delay_window_seconds: window(3_600),
  alert_start_delay_min_events: count(5, 1_000_000, 'No alert opens with fewer starts in the window'),
  alert_start_delay_for_seconds: BROKEN_FOR,
  alert_leader_changes_threshold: count(
    3,
    1_000_000,
    'An alert opens if the leader changed more often in the window',
    0,
  ),
  alert_leader_changes_window_seconds: window(600),
  alert_leader_changes_for_seconds: BROKEN_FOR,
  alert_queue_unserved_for_seconds: span(
    300,
    YEAR_SECONDS,
    'An alert opens if a run has been due for longer in a queue without workers',
    1,
  ),
  alert_oldest_waiting_threshold_seconds: span(600, YEAR_SECONDS, 'An alert opens if a run has been due for longer', 1),
  alert_disk_nearly_full_threshold_percent: span(90, 100, 'An alert opens if more of a disk is used', 1),
  alert_credential_ending_threshold_days: span(14, 366, 'An alert opens if a token or certificate expires sooner', 0),
} as const satisfies Record<string, Setting>

export type SettingName = keyof typeof SETTINGS

/** Values of the environment, already checked. They override stored values. */
export type FixedSettings = Partial<Record<SettingName, number>>

export const SETTING_NAMES = Object.keys(SETTINGS) as SettingName[]

export function isSettingName(name: string): name is SettingName {
  return Object.hasOwn(SETTINGS, name)
}

/** Says what is wrong with a value, as the end of a sentence that begins with the setting's name. */
export function settingProblem(name: SettingName, value: unknown): string | null {
  const { min, max, whole } = SETTINGS[name]
  if (typeof value === 'number' && value >= min && value <= max && (!whole || Number.isInteger(value))) return null
  return `must be a ${whole ? 'whole ' : ''}number from ${min} to ${max}`
}

/** The environment variable that overrides the stored value. */
export const settingVariable = (name: SettingName) => name.toUpperCase()
