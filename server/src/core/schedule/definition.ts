import type { DeclaredStage, SeqScope } from '../events/event.ts'
import type { JobPolicy } from '../run/job.ts'
import type { Schedule } from './schedule.ts'
import type { TriggerRule } from './trigger.ts'

/** The content that a person writes: the jobs to make, and when. */
export interface DefinitionContent {
  kind: string
  /** Null: the default queue, or the queue of the caller that submits by this name. */
  queue: string | null
  /** JSON text. */
  payload: string
  policy: JobPolicy
  priority: number
  labels: Readonly<Record<string, string>> | null
  /** The domain of the jobs' events; null: the kind. */
  domain: string | null
  stages: readonly DeclaredStage[] | 'eco2' | null
  seqScope: SeqScope
  schedule: Schedule | null
  /** Null: triggers make no jobs. */
  on: TriggerRule | null
}

export interface Definition extends DefinitionContent {
  id: string
  name: string
  /** The user whose jobs its ticks and triggers make. */
  userId: string
  pausedAtMs: number | null
  /** Every change by a person raises it; ticks do not. */
  version: number
  /** The first tick that was not decided yet; null without a schedule, or when the schedule has ended. */
  nextTickAtMs: number | null
  /** The latest tick that was decided. */
  lastTickAtMs: number | null
  createdAtMs: number
  updatedAtMs: number
}
