import type { SeriesShape } from '@ichido/sdk/protocol'
import { withQuery } from './call.ts'
import { CALM_MS, useRead } from './queries.ts'

export type SeriesRange = SeriesShape['range']
export const SERIES_RANGES = ['15m', '1h', '24h', '7d'] as const satisfies readonly SeriesRange[]

export const useSeries = (range: SeriesRange, queue?: string) =>
  useRead<SeriesShape>(withQuery('/v1/stats/series', { range, queue }), CALM_MS)
