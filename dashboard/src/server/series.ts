import { withQuery } from './call.ts'
import { CALM_MS, useRead } from './queries.ts'

// The wire type of GET /v1/stats/series. It moves to @ichido/sdk/protocol together with the route.
export const SERIES_RANGES = ['15m', '1h', '24h', '7d'] as const
export type SeriesRange = (typeof SERIES_RANGES)[number]

interface Quantiles {
  p50: number | null
  p99: number | null
}

/** One step of time. Counts belong to the whole step; the other numbers were measured in it. */
export interface SeriesPoint {
  at: string
  submitted: number
  started: number
  succeeded: number
  failed: number
  timed_out: number
  canceled: number
  retried: number
  dead_lettered: number
  key_hits: number
  cost: number
  wait_ms: Quantiles
  run_ms: Quantiles
  ready: number | null
  delayed: number | null
  running: number | null
  oldest_waiting_seconds: number | null
  dead_letters: number | null
  workers_online: number | null
  /** False: no node measured in this step, so the measured numbers say nothing. */
  sampled: boolean
}

export interface SeriesShape {
  range: SeriesRange
  step_seconds: number
  from: string
  to: string
  queue: string | null
  queues: string[]
  points: SeriesPoint[]
}

export const useSeries = (range: SeriesRange, queue?: string) =>
  useRead<SeriesShape>(withQuery('/v1/stats/series', { range, queue }), CALM_MS)
