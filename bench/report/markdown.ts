import { amount, ratioText, targetText } from './comparison.ts'
import { QUIET_MAX, type Results, type Row } from './results.ts'

const BEGIN = '<!-- The benchmark writes the lines from here to the end mark. -->'
const END = '<!-- end -->'
const HEAD = '| | Ichido | compared with | | ratio | target |\n| --- | ---: | --- | ---: | ---: | --- |'

/** Puts the results of a run between the two marks of a page. */
export function withResults(page: string, results: Results): string {
  const [begin, end] = [page.indexOf(BEGIN), page.indexOf(END)]
  if (begin < 0 || end < begin) throw new Error(`The page has no lines ${BEGIN} and ${END}`)
  return `${page.slice(0, begin)}${BEGIN}\n\n${markdown(results)}\n\n${page.slice(end)}`
}

export function markdown(results: Results): string {
  const suites = [...new Set(results.rows.map(({ suite }) => suite))]
  const tables = suites.map((suite) =>
    table(
      suite,
      results.rows.filter((row) => row.suite === suite),
    ),
  )
  return [summary(results), ...tables].join('\n\n')
}

function summary({ date, mode, machine, peers, seconds, others, failed, rows }: Results): string {
  const aimed = rows.filter(({ target }) => target !== null)
  const met = aimed.filter((row) => row.met).length
  const lines = [
    `A ${mode} run of ${Math.round(seconds / 60)} minutes on ${date}: ${machine}; ${peers}. ${met} of ${aimed.length} targets are met.`,
  ]
  if (others > QUIET_MAX) {
    const share = Math.round(others * 100)
    lines.push(`**The machine was not quiet**: other programs used up to ${share} % of it. The ratios are rough.`)
  }
  if (failed.length > 0) lines.push(`These suites ended with an error: ${failed.join(', ')}.`)
  return lines.join('\n\n')
}

/** One line for each workload, with a line of text in each cell for each rival. */
function table(suite: string, rows: readonly Row[]): string {
  const workloads = [...new Set(rows.map(({ what }) => what))]
  const lines = workloads.map((what) =>
    line(
      what,
      rows.filter((row) => row.what === what),
    ),
  )
  return [`### The suite \`${suite}\``, `${HEAD}\n${lines.join('\n')}`].join('\n\n')
}

function line(what: string, rows: readonly Row[]): string {
  const [first] = rows
  if (first === undefined) return ''
  const cells = [
    what,
    amount(first.oursMedian, first.unit),
    rows.map(({ against, note }) => (note === undefined ? against : `${against} (${note})`)).join('<br>'),
    rows.map(({ theirsMedian, unit }) => amount(theirsMedian, unit)).join('<br>'),
    rows.map(({ ratio }) => ratioText(ratio)).join('<br>'),
    rows
      .map(verdict)
      .join('<br>')
      .replace(/(<br>)+$/, ''),
  ]
  return `| ${cells.join(' | ')} |`
}

function verdict({ target, met }: Row): string {
  return target === null ? '' : `${targetText(target)}, ${met ? 'met' : '**missed**'}`
}
