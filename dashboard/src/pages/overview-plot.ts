import 'uplot/dist/uPlot.min.css'
import uPlot from 'uplot'

/** Everything that a plot draws. Null is a gap in a line. */
export interface PlotData {
  seconds: number[]
  lines: (number | null)[][]
  /** Steps that nobody measured; they get a grey band. */
  unmeasured: number[]
  stepSeconds: number
}

interface PlotOptions {
  /** Its text colour is that of the labels, and its border colour that of the grid. */
  holder: HTMLElement
  /** One element for each line, in the colour of the line. */
  swatches(): Element[]
  formatValue(value: number): string
  formatTime(seconds: number): string
  /** The highest value of the axis; null: that of the data. */
  max: number | null
  onPoint(index: number | null): void
}

export interface Plot {
  show(data: PlotData): void
  /** The theme has changed. */
  recolour(): void
  close(): void
}

const HEIGHT_PX = 170
const AXIS_PX = 58
const TIME_AXIS_PX = 30
const BAND_ALPHA = 0.45
const DOT_PX = 2.5
const DASHES = [[], [6, 3], [2, 3]]

export function openPlot(options: PlotOptions): Plot {
  const { holder, swatches, formatValue, formatTime, max, onPoint } = options
  const ink = () => getComputedStyle(holder).color
  const rule = () => getComputedStyle(holder).borderTopColor
  const colourOf = (line: number) => getComputedStyle(swatches()[line] ?? holder).color
  let data: PlotData = { seconds: [], lines: [], unmeasured: [], stepSeconds: 60 }
  const axis = { stroke: ink, grid: { stroke: rule, width: 1 }, ticks: { show: false } }
  const plot = new uPlot(
    {
      width: Math.max(holder.clientWidth, 1),
      height: HEIGHT_PX,
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false } },
      scales: { y: { range: (_, __, top) => [0, max ?? Math.max(top ?? 0, 1) * 1.1] } },
      axes: [
        { ...axis, size: TIME_AXIS_PX, values: (_, splits) => splits.map(formatTime) },
        { ...axis, size: AXIS_PX, values: (_, splits) => splits.map(formatValue) },
      ],
      series: [
        {},
        ...swatches().map((_, i) => ({
          stroke: () => colourOf(i),
          width: 2,
          dash: DASHES[i % DASHES.length] ?? [],
          points: { show: false },
        })),
      ],
      hooks: {
        drawClear: [(drawn) => drawBands(drawn, data, rule())],
        draw: [(drawn) => drawDots(drawn, data, colourOf)],
        setCursor: [({ cursor: { idx } }) => onPoint(idx ?? null)],
      },
    },
    [[], ...swatches().map(() => [])],
    holder,
  )
  const observer = new ResizeObserver(() => {
    if (holder.clientWidth > 0) plot.setSize({ width: holder.clientWidth, height: HEIGHT_PX })
  })
  observer.observe(holder)
  return {
    show(next) {
      data = next
      plot.setData([next.seconds, ...next.lines])
    },
    recolour: () => plot.redraw(),
    close() {
      observer.disconnect()
      plot.destroy()
    },
  }
}

function drawBands({ ctx, bbox, valToPos }: uPlot, { unmeasured, stepSeconds }: PlotData, colour: string): void {
  ctx.save()
  ctx.globalAlpha = BAND_ALPHA
  ctx.fillStyle = colour
  for (const [first, last] of spansOf(unmeasured, stepSeconds)) {
    const from = Math.max(valToPos(first - stepSeconds / 2, 'x', true), bbox.left)
    const to = Math.min(valToPos(last + stepSeconds / 2, 'x', true), bbox.left + bbox.width)
    if (to > from) ctx.fillRect(from, bbox.top, to - from, bbox.height)
  }
  ctx.restore()
}

/** Steps that follow each other are one span: bands side by side would show a line where they meet. */
function spansOf(seconds: readonly number[], stepSeconds: number): [first: number, last: number][] {
  const spans: [number, number][] = []
  for (const second of seconds) {
    const span = spans.at(-1)
    if (span !== undefined && second - span[1] <= stepSeconds) span[1] = second
    else spans.push([second, second])
  }
  return spans
}

/** A value without neighbours is no line, so it is a dot. */
function drawDots({ ctx, valToPos }: uPlot, { seconds, lines }: PlotData, colourOf: (line: number) => string): void {
  ctx.save()
  for (const [n, values] of lines.entries()) {
    ctx.fillStyle = colourOf(n)
    for (const [i, value] of values.entries()) {
      if (value === null || (values[i - 1] ?? null) !== null || (values[i + 1] ?? null) !== null) continue
      ctx.beginPath()
      ctx.arc(
        valToPos(seconds[i] ?? 0, 'x', true),
        valToPos(value, 'y', true),
        DOT_PX * devicePixelRatio,
        0,
        2 * Math.PI,
      )
      ctx.fill()
    }
  }
  ctx.restore()
}
