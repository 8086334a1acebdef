export interface ReservationShape {
  reservation_id: string
  user_id: string
  state: 'active' | 'consumed' | 'released' | 'expired'
  created_at: string
  expires_at: string
  job_id: string | null
}

/** A reservation that was just made. */
export interface NewReservationShape extends ReservationShape {
  quota_warnings: string[]
}

export interface QuotaShape {
  user_id: string
  max_concurrent: number | null
  cost_limit: number | null
  period: 'day' | 'month'
  /** True: the limits are the user's own; false: they are those of `*`. */
  custom: boolean
  active_jobs: number
  active_reservations: number
  spent: number
  max_bytes: number | null
  /** Null: bytes are not counted without a limit. */
  used_bytes: number | null
}

/** A user with limits and their use. */
export interface UserShape extends QuotaShape {
  /** When its first token was made; null: it never had one. */
  created_at: string | null
}
