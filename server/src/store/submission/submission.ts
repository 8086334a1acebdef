import type { BytesRefusal } from '../../core/limits/quota.ts'
import type { SettingName } from '../../core/limits/settings.ts'
import type { JobPolicy } from '../../core/run/job.ts'
import type { AwaitedArtifacts } from '../artifacts/artifacts.ts'
import type { EndedRefusal } from '../jobs/ended-jobs.ts'
import { CREATED } from './submit.sql.ts'

export interface SubmitItem {
  /** Made before the transaction begins, so that a second try cannot make a second job. */
  jobId: string
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
  /** Null: `delayMs` after the acceptance. */
  runAtMs: number | null
  delayMs: number
  /** The place of its run in the queue. */
  fairTag: number
  key: { key: string; operation: string; requestHash: string; ttlMs: number } | null
  reservationId: string | null
  /** Also writes a consumed reservation with this id, as S0 does. */
  consumedReservationId: string | null
  /** It is refused with this, unless its key was used before. */
  refusal?: SubmitRefusal
  /** The definition that makes the job; for a tick, also its instant. */
  definition?: { id: string; scheduledForMs: number | null }
  /** Its run waits for these uploads. */
  artifacts?: AwaitedArtifacts
  /** Gets a message when the job ends. */
  callbackUrl?: string
}

/** Before it has a place in the queue. */
export type UntaggedItem = Omit<SubmitItem, 'fairTag'>

/** The first answer. Its text is stored with the key and replayed byte for byte. */
export interface Accepted {
  jobId: string
  kind: string
  queue: string
  /** Instants as on the wire. */
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
  /** About the job that it would replace. */
  | { code: EndedRefusal['reason']; message: string; replaces: EndedRefusal; jobId: string }

export type SubmitOutcome =
  | { kind: 'created' | 'replayed'; jobId: string; status: number; body: string; queue: string; due: boolean }
  | { kind: 'refused'; refusal: SubmitRefusal }

export type RenderAccepted = (accepted: Accepted) => string

/** Items with one key are one submission: the first admitted item is stored, and the items behind it get its answer. */
export function submissionName({ key, userId, jobId }: SubmitItem): string {
  // Neither a key nor an operation can hold a line break.
  return key === null ? jobId : `${key.key}\n${key.operation}\n${userId}`
}

export function created({ jobId, queue }: SubmitItem, body: string, due: boolean): SubmitOutcome {
  return { kind: 'created', jobId, status: CREATED, body, queue, due }
}
