import type { DeclaredStage, SeqScope } from '../events/seq.ts'
import type { JobPolicy } from '../run/job.ts'
import type { Schedule } from './schedule.ts'
import type { TriggerRule } from './trigger.ts'

/** What a person writes: the jobs to make, and when. */
export interface DefinitionContent {
  kind: string
  /** Null: the default queue, or the one that belongs to where a job under this name comes from. */
  queue: string | null
  /** JSON text. */
  payload: string
  policy: JobPolicy
  priority: number
  labels: Readonly<Record<string, string>> | null
  /** Of its jobs' events; null: the kind. */
  domain: string | null
  stages: readonly DeclaredStage[] | 'eco2' | null
  seqScope: SeqScope
  schedule: Schedule | null
  /** Null: no trigger makes a job of it. */
  on: TriggerRule | null
}

export interface Definition extends DefinitionContent {
  id: string
  name: string
  /** Whose jobs its ticks and triggers make. */
  userId: string
  pausedAtMs: number | null
  /** Raised by every change that a person makes; ticks leave it as it is. */
  version: number
  /** The first tick that nothing was decided about yet; null without a schedule, or when it has ended. */
  nextTickAtMs: number | null
  /** The latest tick that something was decided about. */
  lastTickAtMs: number | null
  createdAtMs: number
  updatedAtMs: number
}
