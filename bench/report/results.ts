import { z } from 'zod'
import type { Verdict } from './comparison.ts'

const target = z.union([z.object({ least: z.number() }), z.object({ most: z.number() })])

/** One comparison of a run, with the suite that made it. */
export const row = z.object({
  suite: z.string(),
  what: z.string(),
  unit: z.enum(['/s', 'ms', 'MB', 'bytes', 'rows', '%']),
  ours: z.array(z.number()),
  against: z.string(),
  rival: z.enum(['peer', 'limit', 'self']),
  theirs: z.array(z.number()),
  target: target.nullable(),
  note: z.string().optional(),
  oursMedian: z.number(),
  theirsMedian: z.number(),
  ratio: z.number(),
  met: z.boolean(),
})
export type Row = z.output<typeof row>

/** A run of the benchmark, as `--json` writes it. */
export const results = z.object({
  /** The day of the run. */
  date: z.string(),
  mode: z.enum(['quick', 'long']),
  machine: z.string(),
  peers: z.string(),
  seconds: z.int(),
  /** The largest CPU share of other programs before a suite, from 0 to 1. */
  others: z.number(),
  /** Suites that ended with an error. */
  failed: z.array(z.string()),
  rows: z.array(row),
})
export type Results = z.output<typeof results>

/** With more than this share of other programs, the machine was not quiet. */
export const QUIET_MAX = 0.1

const DIGITS = 5

export function toRow(suite: string, verdict: Verdict): Row {
  const { note, ...rest } = verdict
  return {
    suite,
    ...rest,
    ours: verdict.ours.map(shorter),
    theirs: verdict.theirs.map(shorter),
    oursMedian: shorter(verdict.oursMedian),
    theirsMedian: shorter(verdict.theirsMedian),
    ratio: shorter(verdict.ratio),
    ...(note === undefined ? {} : { note }),
  }
}

/** More digits than a measurement has would only make the file larger. */
const shorter = (value: number): number => Number(value.toPrecision(DIGITS))
