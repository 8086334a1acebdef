/**
 * What an operator can change while nodes run. Each setting has a default, bounds, and a variable of the environment that
 * beats what is stored. Retention times are in seconds or days; 0 keeps for ever.
 */
export interface Setting {
  readonly default: number
  readonly min: number
  readonly max: number
  /** Fractions make sense for spans of time, not for counts. */
  readonly whole: boolean
  readonly says: string
}

const YEAR_SECONDS = 366 * 24 * 3600
const DAY_SECONDS = 24 * 3600
const CENTURY_DAYS = 36_600

const span = (value: number, max: number, says: string, min = 0.05): Setting => ({
  default: value,
  min,
  max,
  whole: false,
  says,
})
const count = (value: number, max: number, says: string, min = 1): Setting => ({
  default: value,
  min,
  max,
  whole: true,
  says,
})

export const SETTINGS = {
  reap_interval_seconds: span(5, 30, 'How often the leader looks for workers that are gone'),
  reap_batch_max: count(200, 10_000, 'Runs that the reaper ends or orphans in one transaction'),
  promote_interval_seconds: span(1, 30, 'How often delayed runs that are due are let into their queues'),
  promote_batch_max: count(1_000, 10_000, 'Delayed runs let in by one transaction'),
  schedule_interval_seconds: span(
    1,
    30,
    'How often the leader looks for ticks at least; it wakes for the next one by itself',
  ),
  schedule_batch_max: count(500, 10_000, 'Ticks made by one transaction'),
  trigger_interval_seconds: span(
    1,
    30,
    'How often the leader looks for triggers at least; it is woken when one is recorded',
  ),
  trigger_batch_max: count(500, 10_000, 'Jobs made of triggers by one transaction'),
  redrive_interval_seconds: span(1, 30, 'How often redrives go on'),
  redrive_batch_max: count(200, 1_000, 'Dead letters redriven by one transaction'),
  retain_interval_seconds: span(60, 3_600, 'How often what is past its retention is removed'),
  retain_batch_max: count(500, 10_000, 'Jobs, keys, events or audit entries removed by one transaction'),
  archive_interval_seconds: span(60, 3_600, 'How often old logs are moved to files'),
  archive_batch_max: count(20, 1_000, 'Logs archived in one go'),
  backup_interval_seconds: count(0, YEAR_SECONDS, 'How often the embedded store is backed up; 0: never', 0),
  backups_kept: count(7, 10_000, 'Backups in the folder of the embedded store; the oldest beyond are removed'),
  alert_interval_seconds: span(15, 3_600, 'How often the rules of alerts are looked at'),
  alert_batch_max: count(100, 10_000, 'Alerts opened, closed or removed by one transaction'),
  evidence_interval_seconds: span(1, 60, 'How often a node writes down what it refused, replayed and fenced'),
  evidence_batch_max: count(1_000, 10_000, 'Jobs whose counters one transaction raises'),
  uploads_interval_seconds: span(5, 3_600, 'How often jobs whose artifacts did not come in time are canceled'),
  uploads_batch_max: count(200, 10_000, 'Jobs canceled for it by one transaction'),
  artifacts_interval_seconds: span(60, 3_600, 'How often files that nobody needs any more are removed'),
  artifacts_batch_max: count(200, 10_000, 'Artifacts or files removed in one go'),
  relay_interval_seconds: span(1, 60, 'How often the leader takes to Redis what nodes did not'),
  relay_batch_max: count(5_000, 10_000, 'Events offered to Redis in one go'),
  event_state_ttl_seconds: span(3_600, YEAR_SECONDS, "How long Redis keeps a job's latest event", 1),
  event_mark_ttl_seconds: span(7_200, YEAR_SECONDS, 'How long Redis knows that it was given an event', 1),
  reassign_after_seconds: span(10, YEAR_SECONDS, 'How long an assigned run has to start before it may be orphaned', 1),
  job_retention_seconds: span(0, 100 * YEAR_SECONDS, 'How long ended jobs are kept; 0: for ever', 0),
  event_retention_seconds: span(
    0,
    100 * YEAR_SECONDS,
    'How long the events of ended jobs are kept; 0: as long as the job',
    0,
  ),
  dead_letter_retention_seconds: span(
    0,
    100 * YEAR_SECONDS,
    'How long dead letters wait for a person before they go with their jobs; 0: for ever',
    0,
  ),
  trigger_retention_seconds: span(
    7 * 24 * 3600,
    100 * YEAR_SECONDS,
    'How long triggers, and with them their dedupe keys, are kept after nothing of them waits any more; 0: for ever',
    0,
  ),
  reservation_retention_days: span(
    7,
    CENTURY_DAYS,
    'How long reservations are kept after they were used, released or expired; 0: for ever',
    0,
  ),
  audit_retention_days: span(0, CENTURY_DAYS, 'How long the audit is kept; 0: for ever', 0),
  alert_retention_days: span(90, CENTURY_DAYS, 'How long alerts are kept after they were closed; 0: for ever', 0),
  log_retention_days_db: span(
    7,
    CENTURY_DAYS,
    'How long logs stay in the database before they move to files; 0: for ever',
    0,
  ),
  connections_max: count(20_000, 1_000_000, 'Connections of clients that a node has at the same time', 10),
  connections_per_address_max: count(
    2_500,
    1_000_000,
    'Connections of one address (IPv6: one /64); behind proxies of TRUST_PROXY, its open requests',
  ),
  token_requests_per_second_max: count(
    5_000,
    1_000_000,
    'Requests a second that a node takes with one API token, on average over ten seconds',
  ),
  worker_requests_per_second_max: count(
    5_000,
    1_000_000,
    'Requests a second that a node takes from one worker, on average over ten seconds',
    50,
  ),
  event_streams_per_user_max: count(2_500, 1_000_000, "Streams of jobs' events that one user may have open on a node"),
  log_streams_per_user_max: count(
    50,
    1_000_000,
    'Streams of logs, and of the events of all jobs, that one user may have open on a node',
  ),
  polls_per_worker_max: count(100, 1_000_000, 'Calls of one worker that may wait on a node at the same time', 2),
  leases_per_worker_max: count(10_000, 1_000_000, 'Leases that one worker may hold at a time'),
  queues_per_user_max: count(10_000, 1_000_000, 'Queues that one user may name in a day'),
  domains_per_user_max: count(
    10_000,
    1_000_000,
    'Domains of events that one user may name in a day; a kind is one, too',
  ),
  labels_per_user_max: count(10_000, 1_000_000, 'Names of labels that one user may use in a day'),
  operations_per_user_max: count(20, 10_000, 'Redrives and backfills that one user may have running'),
  submitter_priority_max: count(100, 1_000, 'The highest priority that a submitter may ask for', -1_000),
  operator_priority_max: count(1_000, 1_000, 'The highest priority that an operator or admin may ask for', -1_000),
  alert_dead_letters_threshold: count(10, 1_000_000, 'More dead letters made in the window open an alert', 0),
  alert_dead_letters_window_seconds: count(3_600, DAY_SECONDS, 'The window of this rule', 60),
  alert_dead_letters_for_seconds: count(0, DAY_SECONDS, 'How long this rule must be broken before its alert opens', 0),
  alert_retry_failures_threshold_percent: span(
    5,
    100,
    'A larger share of failed retries in the window opens an alert',
    0,
  ),
  alert_retry_failures_window_seconds: count(3_600, DAY_SECONDS, 'The window of this rule', 60),
  alert_retry_failures_min_events: count(20, 1_000_000, 'Fewer retries in the window open no alert'),
  alert_retry_failures_for_seconds: count(
    0,
    DAY_SECONDS,
    'How long this rule must be broken before its alert opens',
    0,
  ),
  alert_duplicate_keys_threshold_percent: span(
    50,
    100,
    'A larger share of repeated keys in the window opens an alert',
    0,
  ),
  alert_duplicate_keys_window_seconds: count(3_600, DAY_SECONDS, 'The window of this rule', 60),
  alert_duplicate_keys_min_events: count(20, 1_000_000, 'Fewer submissions with a key in the window open no alert'),
  alert_duplicate_keys_for_seconds: count(
    0,
    DAY_SECONDS,
    'How long this rule must be broken before its alert opens',
    0,
  ),
  alert_start_delay_threshold_seconds: span(
    300,
    YEAR_SECONDS,
    'A longer mean delay of starts in the window opens an alert',
    0,
  ),
  alert_start_delay_window_seconds: count(3_600, DAY_SECONDS, 'The window of this rule', 60),
  alert_start_delay_min_events: count(5, 1_000_000, 'Fewer starts in the window open no alert'),
  alert_start_delay_for_seconds: count(0, DAY_SECONDS, 'How long this rule must be broken before its alert opens', 0),
  alert_leader_changes_threshold: count(3, 1_000_000, 'More changes of the leader in the window open an alert', 0),
  alert_leader_changes_window_seconds: count(600, DAY_SECONDS, 'The window of this rule', 60),
  alert_leader_changes_for_seconds: count(
    0,
    DAY_SECONDS,
    'How long this rule must be broken before its alert opens',
    0,
  ),
  alert_queue_unserved_for_seconds: span(
    300,
    YEAR_SECONDS,
    'A run that has been due for longer in a queue without workers opens an alert',
    1,
  ),
  alert_oldest_waiting_threshold_seconds: span(
    600,
    YEAR_SECONDS,
    'A run that has been due for longer opens an alert',
    1,
  ),
  alert_disk_nearly_full_threshold_percent: span(90, 100, 'A fuller disk opens an alert', 1),
  alert_credential_ending_threshold_days: span(14, 366, 'A token or certificate that ends sooner opens an alert', 0),
} as const satisfies Record<string, Setting>

export type SettingName = keyof typeof SETTINGS

/** Values of the environment, checked already; they beat what is stored. */
export type FixedSettings = Partial<Record<SettingName, number>>

export const SETTING_NAMES = Object.keys(SETTINGS) as SettingName[]

export function isSettingName(name: string): name is SettingName {
  return Object.hasOwn(SETTINGS, name)
}

/** What is wrong with a value, as the end of a sentence that begins with the setting's name. */
export function settingProblem(name: SettingName, value: unknown): string | null {
  const { min, max, whole } = SETTINGS[name]
  if (typeof value === 'number' && value >= min && value <= max && (!whole || Number.isInteger(value))) return null
  return `must be a ${whole ? 'whole ' : ''}number from ${min} to ${max}`
}

/** The variable of the environment that beats the stored value. */
export const settingVariable = (name: SettingName) => name.toUpperCase()
