import type { Stages } from './seq.ts'

/** A lease, as a worker is handed it. */
export interface LeaseShape {
  job_id: string
  run_id: string
  attempt: number
  lease_id: string
  version: number
  leader_epoch: number | null
  queue: string
  kind: string
  payload: unknown
  lease_ttl_seconds: number
  continuation_seconds: number
  timeout_seconds: number | null
  traceparent: string | null
  /** Which seq numbers the stages of its events have; null: one open stage, `progress`. */
  stages: Stages | null
  /** What the worker can fetch before it begins. */
  artifacts: { artifact_id: string; name: string; sha256: string; size_bytes: number }[]
  /** The data of the last progress event of the attempts before this one, for checkpoints; null when there is none. */
  last_progress: unknown
}

export const WORKER_STATES = ['online', 'detached', 'unseen', 'revoked'] as const
export type WorkerState = (typeof WORKER_STATES)[number]

export interface EnrollTokenShape {
  enroll_token: string
  expires_at: string
  ttl_seconds: number
  label: string | null
  /** The queues that the worker may lease from; null: all of them. */
  queues: string[] | null
  /** Where workers reach the server, if it knows. */
  public_url: string | null
}

export interface RegisterRequest {
  enroll_token: string
  name?: string | undefined
  queues?: string[] | undefined
  meta?: Record<string, unknown> | undefined
  /** Who the worker was before, and its token of before, expired or not. */
  worker_id?: string | undefined
  worker_token?: string | undefined
  /** Random: with it a registration whose answer got lost is sent again. */
  register_id?: string | undefined
}

export interface RegisteredShape {
  worker_id: string
  worker_token: string
  expires_at: string
  name: string
  queues: string[] | null
  registered_at: string
}

export interface RenewedShape {
  worker_token: string
  expires_at: string
}

export interface DetachedShape {
  worker_id: string
  detached_at: string
}

export interface WorkerShape {
  worker_id: string
  name: string
  state: WorkerState
  queues: string[] | null
  meta: Record<string, unknown>
  registered_at: string
  last_seen_at: string | null
  token_expires_at: string | null
  /** When it said that it stops; null since it was heard of again. */
  detached_at: string | null
  revoked_at: string | null
  live_leases: number
}

export interface RevokedShape {
  worker_id: string
  revoked_at: string
  /** Leases that it held; nothing it reports by them counts any more. */
  fenced_leases: number
  revoked_tokens: number
}
