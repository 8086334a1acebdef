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
const DASHES = [[], [6, 3], [2, 3]]

export function openPlot(options: PlotOptions): Plot {
  const { holder, swatches, formatValue, formatTime, max, onPoint } = options
  const ink = () => getComputedStyle(holder).color
  const rule = () => getComputedStyle(holder).borderTopColor
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
          stroke: () => getComputedStyle(swatches()[i] ?? holder).color,
          width: 2,
          dash: DASHES[i % DASHES.length] ?? [],
          points: { show: false },
        })),
      ],
      hooks: {
        drawClear: [(drawn) => drawBands(drawn, data, rule())],
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
  ctx.fillStyle = colour
  for (const second of unmeasured) {
    const from = Math.max(valToPos(second - stepSeconds / 2, 'x', true), bbox.left)
    const to = Math.min(valToPos(second + stepSeconds / 2, 'x', true), bbox.left + bbox.width)
    if (to > from) ctx.fillRect(from, bbox.top, to - from, bbox.height)
  }
  ctx.restore()
}
