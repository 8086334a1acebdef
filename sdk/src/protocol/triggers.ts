/** The maximum size of `data` of a trigger, as JSON text in UTF-8. */
export const TRIGGER_DATA_BYTES_MAX = 256 * 1024
/** The maximum number of triggers in one call. */
export const TRIGGERS_MAX = 1_000

export type Scalar = string | number | boolean | null

/** The rule for the triggers that make jobs from a definition. */
export interface TriggerRuleRequest {
  topic: string
  /** Paths in `data` and the values that must be there; all must match. */
  where?: Record<string, Scalar> | undefined
  /** Whether triggers that are processed during a pause wait for its end (`keep`, the default) or are skipped. */
  when_paused?: 'keep' | 'skip' | undefined
}

export interface TriggerRuleShape {
  topic: string
  where: Record<string, Scalar>
  when_paused: 'keep' | 'skip'
}

/** A message that something happened outside of Ichido. */
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

export const TRIGGER_OUTCOMES = ['job', 'skipped', 'waiting_quota', 'waiting_pause', 'waiting_turn'] as const
export type TriggerOutcome = (typeof TRIGGER_OUTCOMES)[number]

export const TRIGGER_STATES = ['unprocessed', 'waiting', 'processed'] as const
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

export interface TriggerDetail extends TriggerShape {
  data: unknown
}
