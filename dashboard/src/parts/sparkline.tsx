const [WIDTH, HEIGHT] = [144, 28]
/** A step with one is seen beside a step with thousands. */
const LEAST = 2

/** Bars on one line, the newest at the right. `text` tells those who do not see it what it shows. */
export function Sparkline({ values, text }: { values: readonly number[]; text: string }) {
  const highest = Math.max(1, ...values)
  const step = WIDTH / Math.max(1, values.length)
  return (
    <svg
      class="sparkline"
      role="img"
      aria-label={text}
      viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
      width={WIDTH}
      height={HEIGHT}
    >
      <title>{text}</title>
      {values.map((value, i) => {
        const height = value === 0 ? 1 : Math.max(LEAST, (value / highest) * HEIGHT)
        return (
          <rect
            key={i}
            class={value === 0 ? 'none' : ''}
            x={i * step}
            y={HEIGHT - height}
            width={step - 1}
            height={height}
          />
        )
      })}
    </svg>
  )
}
