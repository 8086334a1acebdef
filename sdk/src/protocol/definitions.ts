import type { BackoffShape } from './jobs.ts'
import type { StageShape } from './seq.ts'
import type { TriggerRuleRequest, TriggerRuleShape } from './triggers.ts'

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
  /** Triggers that make a job of it, beside or instead of a schedule. */
  on?: TriggerRuleRequest | null | undefined
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
  on: TriggerRuleShape | null
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
