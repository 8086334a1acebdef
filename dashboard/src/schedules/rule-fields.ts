/** The values that each field of a cron rule names. Null: a form for which there are no words. */
export interface RuleFields {
  seconds: number[]
  minutes: number[]
  hours: number[]
  months: number[]
  /** Null: the field does not restrict the day. If both do, a day that matches either is due. */
  monthDays: { days: number[]; last: boolean } | null
  weekDays: { days: number[]; nth: string | null } | null
}

const NICKNAMES = new Map([
  ['@hourly', '0 * * * *'],
  ['@daily', '0 0 * * *'],
  ['@weekly', '0 0 * * 0'],
  ['@monthly', '0 0 1 * *'],
  ['@yearly', '0 0 1 1 *'],
])
const DAY_NAMES = ['SUN', 'MON', 'TUE', 'WED', 'THU', 'FRI', 'SAT']
const MONTH_NAMES = ['JAN', 'FEB', 'MAR', 'APR', 'MAY', 'JUN', 'JUL', 'AUG', 'SEP', 'OCT', 'NOV', 'DEC']

export function readRule(cron: string): RuleFields | null {
  const given = (NICKNAMES.get(cron) ?? cron).trim().toUpperCase().split(/\s+/)
  const [second = '', minute = '', hour = '', day = '', month = '', weekDay = ''] =
    given.length === 5 ? ['0', ...given] : given
  if (given.length > 6) return null
  const seconds = valuesOf(second, 0, 59)
  const minutes = valuesOf(minute, 0, 59)
  const hours = valuesOf(hour, 0, 23)
  const months = valuesOf(numbered(month, MONTH_NAMES, 1), 1, 12)
  const monthDays = day === '*' ? null : readMonthDays(day)
  const weekDays = weekDay === '*' ? null : readWeekDays(weekDay)
  if (seconds === null || minutes === null || hours === null || months === null) return null
  if (monthDays === undefined || weekDays === undefined) return null
  return { seconds, minutes, hours, months, monthDays, weekDays }
}

function numbered(field: string, names: readonly string[], first: number): string {
  return names.reduce((text, name, i) => text.replaceAll(name, String(i + first)), field)
}

function readMonthDays(field: string): RuleFields['monthDays'] | undefined {
  const parts = field.split(',')
  const numbers = parts.filter((part) => part !== 'L')
  const days = numbers.length === 0 ? [] : valuesOf(numbers.join(','), 1, 31)
  return days === null ? undefined : { days, last: numbers.length < parts.length }
}

function readWeekDays(field: string): RuleFields['weekDays'] | undefined {
  // A range that ends on Sunday ends on 7, because 0 would be before its beginning.
  const numbers = numbered(field.replaceAll('-SUN', '-7'), DAY_NAMES, 0)
  const nth = /^([0-7])(?:#([1-5L])|(L))$/.exec(numbers)
  if (nth !== null) return { days: [Number(nth[1]) % 7], nth: nth[2] ?? 'L' }
  const days = valuesOf(numbers.replace('*', '0-6'), 0, 7)
  if (days === null) return undefined
  return { days: sorted(days.map((day) => day % 7)), nth: null }
}

/** Lists of numbers, ranges and steps. */
function valuesOf(field: string, min: number, max: number): number[] | null {
  const values: number[] = []
  for (const part of field.split(',')) {
    const found = /^(?:(\*)|(\d+)(?:-(\d+))?)(?:\/(\d+))?$/.exec(part)
    if (found === null) return null
    const [, star, from, to, step = '1'] = found
    const first = star === undefined ? Number(from) : min
    const last = star === undefined ? Number(to ?? from) : max
    if (first < min || last > max || first > last || Number(step) < 1) return null
    for (let value = first; value <= last; value += Number(step)) values.push(value)
  }
  return sorted(values)
}

const sorted = (values: readonly number[]) => [...new Set(values)].sort((a, b) => a - b)
