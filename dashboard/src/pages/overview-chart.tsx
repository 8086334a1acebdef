import type { JobState, SeriesPointShape, SeriesShape } from '@ichido/sdk/protocol'
import { useEffect, useRef, useState } from 'preact/hooks'
import { theme } from '../theme.ts'
import { formatInstant, language, words } from '../words.ts'
import type { Plot } from './overview-plot.ts'

const w = words(
  {
    table: 'Show as a table',
    time: 'Time',
    unmeasured: (count: number) => `${count} steps were not measured (grey)`,
    notMeasured: 'not measured',
    chart: (title: string, values: string) =>
      `Chart: ${title}. Latest values: ${values}. The table below has all values.`,
  },
  {
    table: '表で見る',
    time: '時刻',
    unmeasured: (count) => `測定なし: ${count} 区間(灰色)`,
    notMeasured: '測定なし',
    chart: (title, values) => `グラフ: ${title}。最新の値: ${values}。すべての値は下の表にあります。`,
  },
)

export interface Line {
  name: string
  /** The line has the colour of this state. */
  tone: JobState
  /** Null: there is no value, so the line has a gap. */
  of(point: SeriesPointShape, stepSeconds: number): number | null
}

export interface ChartProps {
  title: string
  series: SeriesShape
  lines: Line[]
  format(value: number): string
  /** True: the values were measured at an instant, and a step without a measurement is marked. */
  measured?: boolean
  max?: number
}

export function Chart({ title, series, lines, format, measured = false, max }: ChartProps) {
  const holder = useRef<HTMLDivElement>(null)
  const key = useRef<HTMLUListElement>(null)
  const plot = useRef<Plot | null>(null)
  const [hovered, hover] = useState<number | null>(null)
  const [listed, list] = useState(false)
  const valueAt = (line: Line, point: SeriesPointShape) =>
    measured && !point.sampled ? null : line.of(point, series.step_seconds)
  // The last step has not ended, so it may still be measured.
  const unmeasured = measured ? series.points.slice(0, -1).filter(({ sampled }) => !sampled) : []
  const shown = useRef<() => void>(() => {})
  shown.current = () =>
    plot.current?.show({
      seconds: series.points.map(secondOf),
      lines: lines.map((line) => series.points.map((point) => valueAt(line, point))),
      unmeasured: unmeasured.map(secondOf),
      stepSeconds: series.step_seconds,
    })
  useEffect(() => {
    let left = false
    void import('./overview-plot.ts').then(({ openPlot }) => {
      if (left || holder.current === null) return
      plot.current = openPlot({
        holder: holder.current,
        swatches: () => [...(key.current?.querySelectorAll('i') ?? [])],
        formatValue: format,
        formatTime: timeFormat(series.step_seconds * series.points.length),
        max: max ?? null,
        onPoint: hover,
      })
      shown.current()
    })
    return () => {
      left = true
      plot.current?.close()
      plot.current = null
    }
  }, [language.value, series.range])
  useEffect(() => shown.current(), [series])
  useEffect(() => {
    plot.current?.recolour()
    const system = matchMedia('(prefers-color-scheme: dark)')
    const recolour = () => plot.current?.recolour()
    system.addEventListener('change', recolour)
    return () => system.removeEventListener('change', recolour)
  }, [theme.value])
  const text = (line: Line, point: SeriesPointShape | undefined) => {
    const value = point === undefined ? null : valueAt(line, point)
    return value === null ? '–' : format(value)
  }
  const last = series.points.findLast((point) => lines.some((line) => valueAt(line, point) !== null))
  const point = hovered === null ? last : (series.points[hovered] ?? last)
  const latest = lines.map((line) => `${line.name} ${text(line, last)}`).join(', ')
  return (
    <section class="card pad chart">
      <h3>{title}</h3>
      <ul ref={key}>
        {lines.map((line) => (
          <li key={line.name}>
            <i data-state={line.tone} /> {line.name} <b>{text(line, point)}</b>
          </li>
        ))}
        <li class="faint">{point !== undefined && hovered !== null && formatInstant(point.at)}</li>
      </ul>
      <div ref={holder} class="plot" role="img" aria-label={w().chart(title, latest)} />
      {unmeasured.length > 0 && <p class="note">{w().unmeasured(unmeasured.length)}</p>}
      <details onToggle={(event) => list(event.currentTarget.open)}>
        <summary>{w().table}</summary>
        {listed && (
          // biome-ignore lint/a11y/noNoninteractiveTabindex: a long table is scrolled with the arrow keys
          <section class="scroll" tabIndex={0} aria-label={title}>
            <table>
              <caption class="unseen">{title}</caption>
              <thead>
                <tr>
                  <th scope="col">{w().time}</th>
                  {lines.map(({ name }) => (
                    <th key={name} scope="col" class="number">
                      {name}
                    </th>
                  ))}
                </tr>
              </thead>
              <tbody>
                {series.points.toReversed().map((point) => (
                  <tr key={point.at}>
                    <th scope="row">{formatInstant(point.at)}</th>
                    {lines.map((line) => (
                      <td key={line.name} class="number">
                        {measured && !point.sampled ? w().notMeasured : text(line, point)}
                      </td>
                    ))}
                  </tr>
                ))}
              </tbody>
            </table>
          </section>
        )}
      </details>
    </section>
  )
}

const secondOf = ({ at }: SeriesPointShape): number => Date.parse(at) / 1_000

const DAY_SECONDS = 86_400

/** A range of several days needs the day, a shorter one only the time. */
function timeFormat(rangeSeconds: number): (seconds: number) => string {
  const parts =
    rangeSeconds > DAY_SECONDS
      ? ({ month: 'numeric', day: 'numeric' } as const)
      : ({ hour: '2-digit', minute: '2-digit', hourCycle: 'h23' } as const)
  const format = new Intl.DateTimeFormat(language.value, parts)
  return (seconds) => format.format(seconds * 1_000)
}
