import { timesAsGood } from './comparison.ts'
import { QUIET_MAX, type Results, type Row } from './results.ts'

const WIDTH = 800
const LEFT = 300
const RIGHT = 130
const BAR = 11
const LINE = 16
const HEADING = 30
const TOP = 92
const FOOT = 34
/** The scale ends here. A longer bar is cut, and its number still says the truth. */
const LEAST = 0.01
const MOST = 1_000
const TICKS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000]
/** Ticks closer than this would run into each other. */
const TICK_SPACE = 26

const PLACES = [
  { suffix: ', in process', name: 'Ichido in process', style: 'own' },
  { suffix: ', over HTTP', name: 'Ichido over HTTP', style: 'http' },
] as const

interface Bar {
  suite: string
  label: string
  style: string
  times: number
  against: string
}

const STYLE = `
  text { font: 12px system-ui, sans-serif; fill: #1f2328 }
  .title { font-size: 16px; font-weight: 600 }
  .heading { font-weight: 600 }
  .faint, .tick { fill: #59636e }
  .small, .tick { font-size: 11px }
  .own { fill: #0969da }
  .http { fill: #8250df }
  .grid { stroke: #d1d9e0 }
  .one { stroke: #1f2328; stroke-width: 1.5 }
  .page { fill: #ffffff }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .faint, .tick { fill: #9198a1 }
    .own { fill: #4493f8 }
    .http { fill: #ab7df8 }
    .grid { stroke: #3d444d }
    .one { stroke: #f0f6fc }
    .page { fill: #0d1117 }
  }`

/** Draws each workload beside the best other queue: bars to the right of the line are better, those to the left worse. */
export function picture(results: Results): string {
  const bars = barsOf(results.rows)
  const scale = scaleOf(bars)
  const [body, bottom] = draw(bars, scale)
  const height = bottom + FOOT
  const won = bars.filter(({ times }) => times >= 1).length
  const title = 'Ichido beside the best other queue'
  const desc = `In ${won} of ${bars.length} bars Ichido is at least as good. ${bars.map(told).join('. ')}.`
  const quiet = results.others > QUIET_MAX ? ' The machine was not quiet.' : ''
  const foot = `A ${results.mode} run on ${results.date}, the same durability for all.${quiet} Numbers: docs/benchmarks.md`
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${height}" viewBox="0 0 ${WIDTH} ${height}" role="img" aria-labelledby="title desc">
<title id="title">${escaped(title)}</title>
<desc id="desc">${escaped(desc)}</desc>
<style>${STYLE}
</style>
<rect class="page" width="${WIDTH}" height="${height}"/>
<text class="title" x="16" y="28">${escaped(title)}</text>
<text class="faint" x="16" y="48">Times as fast, as prompt or as small as the best of pg-boss, graphile-worker, BullMQ and bee-queue</text>
${legend()}
${axis(scale, bottom)}
${body}
<text class="faint small" x="16" y="${height - 12}">${escaped(foot)}</text>
</svg>
`
}

const told = ({ label, times, against, style }: Bar) =>
  `${label}, ${style === 'own' ? 'in process' : 'over HTTP'}: ${timesText(times)} ${against}`

/** For each workload the row with the lowest figure: it is the one against the best other queue. */
function barsOf(rows: readonly Row[]): Bar[] {
  const bars = new Map<string, Bar>()
  for (const row of rows) {
    const place = PLACES.find(({ suffix }) => row.what.endsWith(suffix))
    if (row.rival !== 'peer' || place === undefined) continue
    const id = `${row.suite} ${row.what}`
    const times = timesAsGood(row)
    if ((bars.get(id)?.times ?? Number.POSITIVE_INFINITY) <= times) continue
    const label = row.what.slice(0, -place.suffix.length)
    bars.set(id, { suite: row.suite, label, style: place.style, times, against: row.against })
  }
  return [...bars.values()]
}

type Scale = (times: number) => number

/** Logarithmic, and wide enough for all bars. */
function scaleOf(bars: readonly Bar[]): Scale & { ticks: number[] } {
  const all = bars.map(({ times }) => times)
  const low = TICKS.findLast((tick) => tick <= Math.min(0.5, ...all)) ?? LEAST
  const high = TICKS.find((tick) => tick >= Math.max(2, ...all)) ?? MOST
  const share = (times: number) => Math.log(times / low) / Math.log(high / low)
  const at = (times: number) => LEFT + Math.min(1, Math.max(0, share(times))) * (WIDTH - LEFT - RIGHT)
  const shown: number[] = []
  for (const tick of [1, ...TICKS.filter((each) => each >= low && each <= high)]) {
    if (shown.every((other) => Math.abs(at(other) - at(tick)) >= TICK_SPACE)) shown.push(tick)
  }
  return Object.assign(at, { ticks: shown })
}

/** Returns the bars and the place below them. */
function draw(bars: readonly Bar[], scale: Scale): [string, number] {
  const parts: string[] = []
  let y = TOP
  for (const suite of new Set(bars.map((bar) => bar.suite))) {
    parts.push(text(16, y + 16, suite, 'heading'))
    y += HEADING - 6
    const own = bars.filter((bar) => bar.suite === suite)
    for (const label of new Set(own.map((bar) => bar.label))) {
      const same = own.filter((bar) => bar.label === label)
      parts.push(text(LEFT - 10, y + (same.length * LINE) / 2 + 3, label, 'small', 'end'))
      for (const bar of same) {
        parts.push(drawn(bar, scale, y))
        y += LINE
      }
      y += 5
    }
    y += 4
  }
  return [parts.join('\n'), y]
}

function drawn({ times, style, against }: Bar, scale: Scale, y: number): string {
  const [from, to] = [scale(1), scale(times)].toSorted((a, b) => a - b) as [number, number]
  const width = Math.max(1, to - from)
  const bar = `<rect class="${style}" x="${fixed(from)}" y="${fixed(y + (LINE - BAR) / 2)}" width="${fixed(width)}" height="${BAR}" rx="2"/>`
  return `${bar}${text(Math.max(scale(1), to) + 5, y + LINE / 2 + 4, `${timesText(times)} ${against}`, 'small')}`
}

function axis(scale: Scale & { ticks: number[] }, bottom: number): string {
  return scale.ticks
    .map((tick) => {
      const x = fixed(scale(tick))
      const line = `<line class="${tick === 1 ? 'one' : 'grid'}" x1="${x}" x2="${x}" y1="${TOP - 2}" y2="${bottom}"/>`
      return `${line}${text(scale(tick), TOP - 8, `${tick} ×`, 'tick', 'middle')}`
    })
    .join('\n')
}

const legend = () =>
  PLACES.map(({ name, style }, i) => {
    const y = 60 + i * 15
    return `<rect class="${style}" x="16" y="${y}" width="${BAR}" height="${BAR}" rx="2"/>${text(33, y + 10, name, 'small')}`
  }).join('\n')

function text(x: number, y: number, words: string, style: string, anchor = 'start'): string {
  return `<text class="${style}" x="${fixed(x)}" y="${fixed(y)}" text-anchor="${anchor}">${escaped(words)}</text>`
}

const timesText = (times: number) => `${times < 0.1 ? times.toPrecision(1) : times.toFixed(times < 10 ? 2 : 0)} ×`
const fixed = (value: number) => String(Math.round(value * 10) / 10)
const escaped = (words: string) => words.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;')
