import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { root } from '../../scripts/boot/fetch-packages.mjs'
import { amount, type Comparison, judge, timesAsGood } from './comparison.ts'
import { readResults } from './files.ts'
import { withResults } from './markdown.ts'
import { picture } from './picture.ts'
import { type Results, toRow } from './results.ts'
import { textTable } from './text-table.ts'

const comparison: Comparison = {
  what: 'submit, in process',
  unit: '/s',
  ours: [900, 16_000, 17_000],
  against: 'pg-boss',
  rival: 'peer',
  theirs: [2_000, 1_000, 9_000],
  target: { least: 8 },
}

const lost: Comparison = { ...comparison, against: 'bee-queue', theirs: [32_000], note: 'keeps no runs <yet>' }

const results: Results = {
  date: '2026-11-18',
  mode: 'quick',
  machine: 'two cores',
  peers: 'pg-boss 12',
  seconds: 120,
  others: 0.5,
  failed: ['growth'],
  rows: [comparison, lost].map((each) => toRow('submit', judge(each))),
}

describe('verdicts', () => {
  test('medians are compared, not single rounds', () => {
    expect(judge(comparison)).toMatchObject({ oursMedian: 16_000, theirsMedian: 2_000, ratio: 8, met: true })
  })

  test('a target is a minimum, a maximum, or none', () => {
    expect(judge({ ...comparison, target: { least: 8.01 } }).met).toBe(false)
    expect(judge({ ...comparison, unit: 'ms', target: { most: 8 } }).met).toBe(true)
    expect(judge({ ...comparison, unit: 'ms', target: { most: 7.99 } }).met).toBe(false)
    expect(judge({ ...comparison, target: null }).met).toBe(true)
  })

  test('more is better of rates, less of everything else', () => {
    expect(timesAsGood(judge(comparison))).toBe(8)
    expect(timesAsGood(judge({ ...comparison, unit: 'ms' }))).toBe(1 / 8)
  })
})

describe('reports', () => {
  test('the table shows which targets were met and missed', () => {
    const lines = textTable([judge(comparison), judge({ ...comparison, what: 'list', target: { least: 9 } })]).split(
      '\n',
    )
    expect(lines[1]).toMatch(/^submit, in process +16,000\/s {2}pg-boss +2,000\/s +8\.00 × +≥ 8 {2}met$/)
    expect(lines[2]).toMatch(/^list .* ≥ 9 {2}MISSED$/)
  })

  test('amounts have the digits of their unit', () => {
    expect(amount(0.1234, 'ms')).toBe('0.12 ms')
    expect(amount(12.34, 'ms')).toBe('12.3 ms')
    expect(amount(12_340_000, 'MB')).toBe('12.3 MB')
    expect(amount(1_234.5, 'bytes')).toBe('1,235 bytes')
  })

  test('a page gets one line for a workload, with lost rows like won ones', () => {
    const page = withResults(
      'before\n<!-- The benchmark writes the lines from here to the end mark. -->\nold\n<!-- end -->\nafter',
      results,
    )
    expect(page).toMatch(/^before\n/)
    expect(page).toMatch(/\nafter$/)
    expect(page).not.toContain('old')
    expect(page).toContain('1 of 2 targets are met')
    expect(page).toContain('not quiet')
    expect(page).toContain('ended with an error: growth')
    expect(page).toContain('| 8.00 ×<br>0.50 × | ≥ 8, met<br>≥ 8, **missed** |')
  })

  test('the picture shows the best other queue, and tells it in words', () => {
    const svg = picture(results)
    expect(svg).toContain(
      '<desc id="desc">In 0 of 1 bars Ichido is at least as good. submit, in process: 0.50 × bee-queue.',
    )
    expect(svg.match(/<rect class="own"/g)).toHaveLength(2)
    expect(svg).toContain('prefers-color-scheme: dark')
  })
})

describe('the published results', () => {
  const read = (path: string) => readFileSync(join(root, path), 'utf8')
  const published = readResults(join(root, 'docs/benchmarks.json'))
  const advice = '`npm run bench -- picture docs/benchmarks.json` writes it'

  test('the tables of the page are those of the results', () => {
    const page = read('docs/benchmarks.md')
    expect(withResults(page, published), advice).toBe(page)
  })

  test('the picture is that of the results', () => {
    expect(picture(published), advice).toBe(read('docs/benchmarks.svg'))
  })
})
