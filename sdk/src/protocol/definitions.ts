import type { BackoffShape, JobState } from './jobs.ts'
import type { StageShape } from './seq.ts'

/** A cron rule; fields that are left out get their default. */
export interface ScheduleRequest {
  /** Minute, hour, day of month, month, day of week; with six fields, the second comes first. */
  cron: string
  /** A name of the IANA database; default UTC. */
  time_zone?: string | undefined
  /** Which missed ticks are made; default `last`. */
  catch_up?: 'skip' | 'last' | 'all' | undefined
  catch_up_window_seconds?: number | undefined
  /** Decides about a tick while an earlier job of the definition has not ended; default `allow`. */
  overlap?: 'allow' | 'skip' | 'queue_one' | undefined
  /** A job begins up to this much later than its tick. */
  jitter_seconds?: number | undefined
  starts_at?: string | null | undefined
  ends_at?: string | null | undefined
}

/** A cron rule with all its fields. */
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
  /** A group of kinds for the events of its jobs; default: the kind. */
  domain?: string | null | undefined
  stages?: StageShape[] | 'eco2' | null | undefined
  seq_scope?: 'job' | 'attempt' | undefined
  schedule?: ScheduleRequest | null | undefined
  /** The triggers that make its jobs, besides or instead of a schedule. */
  on?: TriggerRuleRequest | null | undefined
}

/** A named template of jobs, with or without a schedule. */
export interface DefinitionShape {
  definition_id: string
  name: string
  kind: string
  queue: string | null
  payload: unknown
  priority: number
  labels: Record<string, string>
  /** Null, here and below: the default when a job is made. */
  max_attempts: number | null
  backoff: BackoffShape | null
  timeout_seconds: number | null
  lease_ttl_seconds: number | null
  continuation_seconds: number | null
  domain: string | null
  stages: StageShape[] | 'eco2' | null
  seq_scope: 'job' | 'attempt'
  schedule: ScheduleShape | null
  on: TriggerRuleShape | null
  paused: boolean
  paused_at: string | null
  /** Raised by every change. */
  version: number
  /** The owner of the jobs that its ticks and triggers make. */
  user_id: string
  /** Null without a schedule, after the end of the schedule, and during a pause. */
  next_tick_at: string | null
  last_tick_at: string | null
  created_at: string
  updated_at: string
}

/** An instant at which a definition is due, and the same instant in its time zone. */
export interface TickShape {
  scheduled_for: string
  local_time: string
}

/** The outcomes of a tick. */
export const OCCURRENCE_OUTCOMES = ['job', 'skipped', 'waiting_quota', 'waiting_overlap', 'pending', 'missing'] as const
/** The outcome of a tick. */
export type OccurrenceOutcome = (typeof OCCURRENCE_OUTCOMES)[number]

/** The entry of a tick in the ledger, or a tick without an entry. */
export interface OccurrenceShape {
  scheduled_for: string
  outcome: OccurrenceOutcome
  /** It stays when retention has removed the job. */
  job_id: string | null
  /** Null: there is no job, or retention has removed it. */
  job_state: JobState | null
  reason: string | null
  origin: 'schedule' | 'backfill'
  /** This skip stands for all ticks up to this one. */
  skipped_until: string | null
  /** When the tick was recorded; null for a tick without an entry. */
  created_at: string | null
  /** The time from the tick until its job was made, or until now; null if it does not apply. */
  late_seconds: number | null
}

/** The states of a backfill. */
export const BACKFILL_STATES = ['running', 'done', 'aborted'] as const
/** The state of a backfill. */
export type BackfillState = (typeof BACKFILL_STATES)[number]

/** The jobs of a past range that are being made. */
export interface BackfillShape {
  backfill_id: string
  definition: string
  actor: string
  state: BackfillState
  from: string
  to: string
  /** Ticks in the range, by the rule with which the backfill began. */
  matched: number
  made: number
  /** Ticks that already have a job or wait for one. */
  made_before: number
  /** Ticks that were skipped and stay skipped. */
  skipped: number
  began_at: string
  ended_at: string | null
}

/** The maximum size of `data` of a trigger, as JSON text in UTF-8. */
export const TRIGGER_DATA_BYTES_MAX = 256 * 1024
/** The maximum number of triggers in one call. */
export const TRIGGERS_MAX = 1_000

/** A JSON value that is neither an array nor an object. */
export type Scalar = string | number | boolean | null

/** The rule for the triggers that make jobs from a definition. */
export interface TriggerRuleRequest {
  topic: string
  /** Paths in `data` and the values that must be there; all must match. */
  where?: Record<string, Scalar> | undefined
  /** Whether triggers that are processed during a pause wait for its end (`keep`, the default) or are skipped. */
  when_paused?: 'keep' | 'skip' | undefined
}

/** The rule for triggers with all its fields. */
export interface TriggerRuleShape {
  topic: string
  where: Record<string, Scalar>
  when_paused: 'keep' | 'skip'
}

/** A message that something happened outside Ichido. */
export interface TriggerRequest {
  topic: string
  /** Identifies what happened: the same key is the same trigger. */
  dedupe_key: string
  data?: unknown
}

/** The answer to a trigger; a repeat gets the first trigger. */
export interface RecordedTriggerShape {
  trigger_id: string
  topic: string
  dedupe_key: string
  created_at: string
  /** True if the key was known; nothing was stored. */
  duplicate: boolean
}

/** The outcomes of a trigger for a definition. */
export const TRIGGER_OUTCOMES = ['job', 'skipped', 'waiting_quota', 'waiting_pause', 'waiting_turn'] as const
/** The outcome of a trigger for a definition. */
export type TriggerOutcome = (typeof TRIGGER_OUTCOMES)[number]

/** The states of a trigger. */
export const TRIGGER_STATES = ['unprocessed', 'waiting', 'processed'] as const
/** The state of a trigger. */
export type TriggerState = (typeof TRIGGER_STATES)[number]

interface MadeShape {
  outcome: TriggerOutcome
  /** It stays when retention has removed the job. */
  job_id: string | null
  reason: string | null
  /** The path that `data` does not have, if that is the reason. */
  field: string | null
  updated_at: string
}

/** The outcome of a trigger for a definition. */
export interface TriggerOutcomeShape extends MadeShape {
  definition_id: string
  /** The name of the definition; null if it was deleted. */
  definition: string | null
}

/** An entry in the ledger of a definition. */
export interface TriggerEntryShape extends MadeShape {
  trigger_id: string
  topic: string
  dedupe_key: string
  triggered_at: string
}

/** A recorded trigger with its outcomes. */
export interface TriggerShape {
  trigger_id: string
  topic: string
  dedupe_key: string
  user_id: string
  state: TriggerState
  created_at: string
  /** When the leader processed it. */
  processed_at: string | null
  outcomes: TriggerOutcomeShape[]
}

/** A trigger with its data. */
export interface TriggerDetail extends TriggerShape {
  data: unknown
}

/** How a sender signs its webhooks: Standard Webhooks, or GitHub's `X-Hub-Signature-256`. */
export const HOOK_SCHEMES = ['standard', 'github'] as const
/** The signature scheme of a hook. */
export type HookScheme = (typeof HOOK_SCHEMES)[number]

/** A URL that turns signed webhooks into triggers. */
export interface HookShape {
  name: string
  scheme: HookScheme
  /** The topic of its triggers. With the scheme `github`, the name of the event is appended: `github` becomes `github.push`. */
  topic: string
  /** The owner of its triggers. */
  user_id: string
  created_at: string
  updated_at: string
}

/** The settings of a hook. */
export interface HookRequest {
  scheme: HookScheme
  topic: string
  /** Default: a new hook gets a new secret, and an existing hook keeps its secret. */
  secret?: string | undefined
}

/** The answer to a call that creates or changes a hook. */
export interface PutHookResponse extends HookShape {
  /** Shown only once, if the server made it; null otherwise. */
  secret: string | null
}
