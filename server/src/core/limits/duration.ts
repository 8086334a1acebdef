const SECONDS_OF = { ms: 0.001, s: 1, m: 60, h: 3600, d: 86_400 } as const

export type TimeUnit = keyof typeof SECONDS_OF

const isUnit = (text: string): text is TimeUnit => Object.hasOwn(SECONDS_OF, text)

/** Reads `30s`, `10m`, `2h`, `7d` and `500ms`; a plain number is in `unit`, and so is the answer. Null: it is none of these. */
export function readTime(text: string, unit: TimeUnit): number | null {
  const [, digits, given = unit] = /^(\d+(?:\.\d+)?)(ms|s|m|h|d)?$/.exec(text) ?? []
  if (digits === undefined || !isUnit(given)) return null
  return given === unit ? Number(digits) : (Number(digits) * SECONDS_OF[given]) / SECONDS_OF[unit]
}

export const secondsIn = (unit: TimeUnit): number => SECONDS_OF[unit]

/** The unit of a setting, which the end of its name says; null: it is no time. */
export function unitOfSetting(name: string): TimeUnit | null {
  if (name.endsWith('_seconds')) return 's'
  return /_days(_db)?$/.test(name) ? 'd' : null
}
