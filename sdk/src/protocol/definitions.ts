import type { BackoffShape } from './jobs.ts'
import type { StageShape } from './seq.ts'
import type { TriggerRuleRequest, TriggerRuleShape } from './triggers.ts'

/** A cron rule; fields that are left out get their default. */
export interface ScheduleRequest {
  /** Minute, hour, day of month, month, day of week; with six fields, the second comes first. */
  cron: string
  /** A name of the IANA database; default UTC. */
  time_zone?: string | undefined
  /** Which missed ticks are made; default `last`. */
  catch_up?: 'skip' | 'last' | 'all' | undefined
  catch_up_window_seconds?: number | undefined
  /** What happens to a tick while an earlier job of the definition has not ended; default `allow`. */
  overlap?: 'allow' | 'skip' | 'queue_one' | undefined
  /** A job begins up to this much later than its tick. */
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

export const OCCURRENCE_OUTCOMES = ['job', 'skipped', 'waiting_quota', 'waiting_overlap', 'pending', 'missing'] as const
export type OccurrenceOutcome = (typeof OCCURRENCE_OUTCOMES)[number]

/** The entry of a tick in the ledger, or a tick without an entry. */
export interface OccurrenceShape {
  scheduled_for: string
  outcome: OccurrenceOutcome
  /** It stays when retention has removed the job. */
  job_id: string | null
  reason: string | null
  origin: 'schedule' | 'backfill'
  /** This skip stands for all ticks up to this one. */
  skipped_until: string | null
  /** When the tick was recorded; null for a tick without an entry. */
  created_at: string | null
  /** The time from the tick until its job was made, or until now; null if it does not apply. */
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
