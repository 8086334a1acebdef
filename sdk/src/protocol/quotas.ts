export interface ReservationShape {
  reservation_id: string
  user_id: string
  state: 'active' | 'consumed' | 'released' | 'expired'
  created_at: string
  expires_at: string
  job_id: string | null
}

/** As it was just made. */
export interface NewReservationShape extends ReservationShape {
  quota_warnings: string[]
}

export interface QuotaShape {
  user_id: string
  max_concurrent: number | null
  cost_limit: number | null
  period: 'day' | 'month'
  /** Whether the limits are the user's own; otherwise they are those of `*`. */
  custom: boolean
  active_jobs: number
  active_reservations: number
  spent: number
  max_bytes: number | null
  /** Null: without a limit they are not counted. */
  used_bytes: number | null
}

/** A user, with its limits and what is used of them. */
export interface UserShape extends QuotaShape {
  /** When its first token was made; null: it has come without one. */
  created_at: string | null
}
