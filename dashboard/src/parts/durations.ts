const SECONDS: Record<string, number> = { s: 1, m: 60, h: 3_600, d: 86_400 }
const UNITS = ['d', 'h', 'm', 's'] as const
const PART = /(\d+(?:\.\d+)?)\s*([a-z]*)/y
const NAMES: Record<string, keyof typeof SECONDS> = {
  '': 's',
  s: 's',
  sec: 's',
  m: 'm',
  min: 'm',
  h: 'h',
  d: 'd',
}

/** Reads `90`, `10m`, `2h` or `1h 30m`, as the command line does; null if it is no duration. */
export function parseDuration(text: string): number | null {
  const given = text.trim().toLowerCase()
  let seconds = 0
  let at = 0
  while (at < given.length) {
    PART.lastIndex = at
    const [whole, count, unit = ''] = PART.exec(given) ?? []
    const name = NAMES[unit]
    if (whole === undefined || name === undefined) return null
    seconds += Number(count) * (SECONDS[name] ?? 1)
    at += whole.length
    while (given.charAt(at) === ' ') at++
  }
  return given === '' ? null : seconds
}

/** The shortest text that `parseDuration` reads as these seconds. */
export function durationText(seconds: number): string {
  let rest = seconds
  const parts: string[] = []
  for (const unit of UNITS) {
    const size = SECONDS[unit] ?? 1
    const count = unit === 's' ? rest : Math.floor(rest / size)
    if (count > 0) parts.push(`${count}${unit}`)
    rest -= count * size
  }
  return parts.join(' ') || '0s'
}
