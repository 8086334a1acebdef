import { amount, ratioText, targetText, type Verdict } from './comparison.ts'

const HEADINGS = ['', 'ours', 'against', '', 'ratio', 'target', '']
const NUMBERS = new Set([1, 3, 4, 5])

/** The table for a terminal: one line for each comparison. */
export function textTable(verdicts: readonly Verdict[]): string {
  const rows = verdicts.map((verdict) => [
    verdict.what,
    amount(verdict.oursMedian, verdict.unit),
    verdict.note === undefined ? verdict.against : `${verdict.against} (${verdict.note})`,
    amount(verdict.theirsMedian, verdict.unit),
    ratioText(verdict.ratio),
    targetText(verdict.target),
    verdict.target === null ? '' : verdict.met ? 'met' : 'MISSED',
  ])
  const all = [HEADINGS, ...rows]
  const widths = HEADINGS.map((_, column) => Math.max(...all.map((row) => row[column]?.length ?? 0)))
  const line = (row: readonly string[]) =>
    row.map((cell, i) => (NUMBERS.has(i) ? cell.padStart(widths[i] ?? 0) : cell.padEnd(widths[i] ?? 0))).join('  ')
  return all.map((row) => line(row).trimEnd()).join('\n')
}
