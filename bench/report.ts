import { median } from './measure.ts'

/** `least` is the minimum of the ratio, `most` its maximum. */
export type Target = { least: number } | { most: number }

export interface Comparison {
  what: string
  unit: '/s' | 'ms' | 'bytes'
  /** One value per round. The medians are compared. */
  ours: readonly number[]
  /** The name of the other side. */
  against: string
  theirs: readonly number[]
  /** Null: the comparison is only reported. */
  target: Target | null
}

export interface Verdict extends Comparison {
  oursMedian: number
  theirsMedian: number
  ratio: number
  met: boolean
}

export function judge(comparison: Comparison): Verdict {
  const oursMedian = median(comparison.ours)
  const theirsMedian = median(comparison.theirs)
  const ratio = oursMedian / theirsMedian
  return { ...comparison, oursMedian, theirsMedian, ratio, met: meets(ratio, comparison.target) }
}

function meets(ratio: number, target: Target | null): boolean {
  if (target === null) return true
  return 'least' in target ? ratio >= target.least : ratio <= target.most
}

const HEADINGS = ['', 'ours', 'against', '', 'ratio', 'target', '']

export function table(verdicts: readonly Verdict[]): string {
  const rows = verdicts.map((verdict) => [
    verdict.what,
    amount(verdict.oursMedian, verdict.unit),
    verdict.against,
    amount(verdict.theirsMedian, verdict.unit),
    `${verdict.ratio.toFixed(2)} ×`,
    targetText(verdict.target),
    verdict.target === null ? '' : verdict.met ? 'met' : 'MISSED',
  ])
  const all = [HEADINGS, ...rows]
  const widths = HEADINGS.map((_, column) => Math.max(...all.map((row) => row[column]?.length ?? 0)))
  const isNumber = (column: number) => [1, 3, 4, 5].includes(column)
  const line = (row: readonly string[]) =>
    row.map((cell, i) => (isNumber(i) ? cell.padStart(widths[i] ?? 0) : cell.padEnd(widths[i] ?? 0))).join('  ')
  return all.map((row) => line(row).trimEnd()).join('\n')
}

export function amount(value: number, unit: Comparison['unit']): string {
  if (unit === 'ms') return `${value.toFixed(value < 10 ? 2 : 1)} ms`
  if (unit === 'bytes') return `${(value / 1e6).toFixed(1)} MB`
  return `${Math.round(value).toLocaleString('en-US')}/s`
}

function targetText(target: Target | null): string {
  if (target === null) return ''
  return 'least' in target ? `≥ ${target.least}` : `≤ ${target.most}`
}
