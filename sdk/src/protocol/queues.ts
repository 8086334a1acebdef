/** A queue with its settings and its work. */
export interface QueueShape {
  name: string
  paused: boolean
  paused_at: string | null
  /** How many runs workers may hold at a time; null: no limit. */
  max_concurrent: number | null
  /** The default for jobs that do not set it; null: the server's default. */
  lease_ttl_seconds: number | null
  continuation_seconds: number | null
  result_ttl_seconds: number | null
  /** A failure with one of these codes is not retried. */
  fatal_error_codes: string[] | null
  ready: number
  delayed: number
  running: number
  oldest_ready_seconds: number | null
}
