import { median } from '../measure.ts'

/** `least` is the minimum of the ratio, `most` its maximum. */
export type Target = { least: number } | { most: number }

/** `peer`: another queue. `limit`: the barest loop with the same rows. `self`: Ichido under other conditions, or a fixed amount. */
export type Rival = 'peer' | 'limit' | 'self'

export type Unit = '/s' | 'ms' | 'MB' | 'bytes' | 'rows' | '%'

export interface Comparison {
  what: string
  unit: Unit
  /** One value per round. The medians are compared. */
  ours: readonly number[]
  /** The name of the other side. */
  against: string
  rival: Rival
  theirs: readonly number[]
  /** Null: the comparison is only reported. */
  target: Target | null
  /** A feature that the other side lacks. */
  note?: string | undefined
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

/** Only of rates is more better. */
export const isRate = (unit: Unit): boolean => unit === '/s'

/** How many times as good as the other side: more than 1 is better, in any unit. */
export const timesAsGood = ({ unit, ratio }: Pick<Verdict, 'unit' | 'ratio'>): number =>
  isRate(unit) ? ratio : 1 / ratio

const whole = (value: number) => Math.round(value).toLocaleString('en-US')

export function amount(value: number, unit: Unit): string {
  if (unit === 'ms') return `${value.toFixed(value < 10 ? 2 : 1)} ms`
  if (unit === '%') return `${value.toFixed(1)} %`
  if (unit === 'MB') return `${(value / 1e6).toFixed(1)} MB`
  return unit === '/s' ? `${whole(value)}/s` : `${whole(value)} ${unit}`
}

export const ratioText = (ratio: number): string => `${ratio.toFixed(2)} ×`

export function targetText(target: Target | null): string {
  if (target === null) return ''
  const short = (value: number) => Number(value.toFixed(2))
  return 'least' in target ? `≥ ${short(target.least)}` : `≤ ${short(target.most)}`
}
