import type { BytesRefusal } from '../../core/limits/quota.ts'
import type { SettingName } from '../../core/limits/settings.ts'
import type { JobPolicy } from '../../core/run/job.ts'
import type { AwaitedArtifacts } from '../artifacts/artifacts.ts'
import type { EndedRefusal } from '../jobs/ended-jobs.ts'
import { CREATED } from './submit.sql.ts'

export interface SubmitItem {
  /** Made before the transaction begins, so that the same submission can be tried again without doubling. */
  jobId: string
  runId: string
  userId: string
  kind: string
  queue: string
  payload: string
  policy: JobPolicy
  priority: number
  labels: Readonly<Record<string, string>> | null
  estimatedCostMicros: number
  traceparent: string | null
  replacesJobId: string | null
  /** Absolute, or a delay from the moment of acceptance. */
  runAtMs: number | null
  delayMs: number
  /** Its place among the runs of its queue that are due. */
  fairTag: number
  key: { key: string; operation: string; requestHash: string; ttlMs: number } | null
  reservationId: string | null
  /** Write a consumed reservation row of this id beside the job, as S0 has it. */
  consumedReservationId: string | null
  /** What it is refused with, unless its key was used before. */
  refusal?: SubmitRefusal
  /** The definition that it was made by; for a tick, its due instant. */
  definition?: { id: string; scheduledForMs: number | null }
  /** Its run is held back until they are all there. */
  artifacts?: AwaitedArtifacts
}

/** Before its place is known, which it is given last of all. */
export type UntaggedItem = Omit<SubmitItem, 'fairTag'>

export function withTags(items: readonly UntaggedItem[], tags: readonly number[]): SubmitItem[] {
  return items.map((item, i) => ({ ...item, fairTag: tags[i] ?? 0 }))
}

/** What the first answer says; its text is stored with the key and replayed byte for byte. */
export interface Accepted {
  jobId: string
  kind: string
  queue: string
  /** Instants as they stand on the wire. */
  createdAt: string
  runAt: string
  quotaWarnings: string[]
  costLimitWarning: string | null
}

export type SubmitRefusal =
  | { code: 'IDEMPOTENCY_KEY_REUSED'; message: string; jobId: string }
  | { code: 'QUOTA_EXCEEDED' | 'COST_LIMIT_EXCEEDED' | 'RESERVATION_NOT_ACTIVE'; message: string }
  | BytesRefusal
  | { code: 'MAXIMUM_REACHED'; message: string; details: { setting: SettingName; max: number } }
  | { code: 'INVALID_PAYLOAD'; message: string; field: string }
  /** Of the job that it would take the place of. */
  | { code: EndedRefusal['reason']; message: string; replaces: EndedRefusal; jobId: string }

export type SubmitOutcome =
  | { kind: 'created' | 'replayed'; jobId: string; status: number; body: string; queue: string; due: boolean }
  | { kind: 'refused'; refusal: SubmitRefusal }

export type RenderAccepted = (accepted: Accepted) => string

/** Several items with one key are one submission: the first that is let in is carried out, those behind it get its answer. */
export function submissionName({ key, userId, jobId }: SubmitItem): string {
  // Neither a key nor an operation can hold a line break.
  return key === null ? jobId : `${key.key}\n${key.operation}\n${userId}`
}

export function created({ jobId, queue }: SubmitItem, body: string, due: boolean): SubmitOutcome {
  return { kind: 'created', jobId, status: CREATED, body, queue, due }
}
