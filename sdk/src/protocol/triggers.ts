/** What `data` of a trigger may have at most, as JSON text in UTF-8. */
export const TRIGGER_DATA_BYTES_MAX = 256 * 1024
/** Triggers in one call. */
export const TRIGGERS_MAX = 1_000

export type Scalar = string | number | boolean | null

/** Which triggers make a job of a definition. */
export interface TriggerRuleRequest {
  topic: string
  /** Paths in `data` and what must stand there; all of them. */
  where?: Record<string, Scalar> | undefined
  /** During a pause, triggers are kept for its end or skipped; default `keep`. */
  when_paused?: 'keep' | 'skip' | undefined
}

export interface TriggerRuleShape {
  topic: string
  where: Record<string, Scalar>
  when_paused: 'keep' | 'skip'
}

/** Something that happened outside. */
export interface TriggerRequest {
  topic: string
  /** Names what happened: the same key again is the same trigger. */
  dedupe_key: string
  data?: unknown
}

/** The answer to a trigger: the first one's, however often it is sent. */
export interface RecordedTriggerShape {
  trigger_id: string
  topic: string
  dedupe_key: string
  created_at: string
  /** The key was known already: nothing was stored. */
  duplicate: boolean
}

export const TRIGGER_OUTCOMES = ['job', 'skipped', 'waiting_quota', 'waiting_pause', 'waiting_turn'] as const
export type TriggerOutcome = (typeof TRIGGER_OUTCOMES)[number]

export const TRIGGER_STATES = ['unprocessed', 'waiting', 'processed'] as const
export type TriggerState = (typeof TRIGGER_STATES)[number]

interface MadeShape {
  outcome: TriggerOutcome
  /** Stays when retention has removed the job. */
  job_id: string | null
  reason: string | null
  /** The path that `data` does not have, where that is the reason. */
  field: string | null
  updated_at: string
}

/** What a trigger made of a definition. */
export interface TriggerOutcomeShape extends MadeShape {
  definition_id: string
  /** Its name; null when it was deleted. */
  definition: string | null
}

/** An entry in the ledger of a definition. */
export interface TriggerEntryShape extends MadeShape {
  trigger_id: string
  topic: string
  dedupe_key: string
  triggered_at: string
}

export interface TriggerShape {
  trigger_id: string
  topic: string
  dedupe_key: string
  user_id: string
  state: TriggerState
  created_at: string
  /** When the leader decided what it makes. */
  processed_at: string | null
  outcomes: TriggerOutcomeShape[]
}

export interface TriggerDetail extends TriggerShape {
  data: unknown
}
