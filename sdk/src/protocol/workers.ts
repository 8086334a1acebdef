import type { Stages } from './seq.ts'

/** A lease that a worker gets. */
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
  /** The range of seq numbers of each stage; null: one open stage, `progress`. */
  stages: Stages | null
  /** The artifacts that the worker can fetch before it begins. */
  artifacts: { artifact_id: string; name: string; sha256: string; size_bytes: number }[]
  /** The data of the last progress event of earlier attempts, for checkpoints; null if there is none. */
  last_progress: unknown
}

/** The states of a worker. */
export const WORKER_STATES = ['online', 'detached', 'unseen', 'revoked'] as const
/** The state of a worker. */
export type WorkerState = (typeof WORKER_STATES)[number]

/** A token that registers one worker. */
export interface EnrollTokenShape {
  enroll_token: string
  expires_at: string
  ttl_seconds: number
  label: string | null
  /** The queues that the worker may lease from; null: all of them. */
  queues: string[] | null
  /** The URL of the server for workers, if it is known. */
  public_url: string | null
}

/** The registration of a worker. */
export interface RegisterRequest {
  enroll_token: string
  name?: string | undefined
  queues?: string[] | undefined
  meta?: Record<string, unknown> | undefined
  /** The earlier id of the worker, and its last token, which may have expired. */
  worker_id?: string | undefined
  worker_token?: string | undefined
  /** A random text, so that a registration whose answer got lost can be repeated. */
  register_id?: string | undefined
}

/** A registered worker with its token. */
export interface RegisteredShape {
  worker_id: string
  worker_token: string
  expires_at: string
  name: string
  queues: string[] | null
  registered_at: string
}

/** A worker's renewed token. */
export interface RenewedShape {
  worker_token: string
  expires_at: string
}

/** A worker that reported its stop. */
export interface DetachedShape {
  worker_id: string
  detached_at: string
}

/** A worker and its state. */
export interface WorkerShape {
  worker_id: string
  name: string
  state: WorkerState
  queues: string[] | null
  meta: Record<string, unknown>
  registered_at: string
  last_seen_at: string | null
  token_expires_at: string | null
  /** When it reported that it stops; null after its next call. */
  detached_at: string | null
  /** Since when it gets no new runs; null: it does not drain. */
  draining_since: string | null
  revoked_at: string | null
  live_leases: number
  /** The runs that it has held longest. */
  holds: HeldRunShape[]
}

/** A run that a worker holds. */
export interface HeldRunShape {
  job_id: string
  kind: string
  queue: string
  attempt: number
  assigned_at: string
  /** Null: it has not started. */
  started_at: string | null
}

/** A revoked worker. */
export interface RevokedShape {
  worker_id: string
  revoked_at: string
  /** How many leases it held; later reports with them are refused. */
  fenced_leases: number
  revoked_tokens: number
}
