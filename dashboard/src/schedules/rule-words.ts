import type { Language } from '../words.ts'
import { type RuleFields, readRule } from './rule-fields.ts'

/** Longer lists of values say less than the rule itself. */
const LISTED_MAX = 12
const CLOCK_TIMES_MAX = 4

/** The phrases of a language. Two rules with the same words have the same ticks. */
interface Phrases {
  every(unit: 'second' | 'minute' | 'hour', count: number): string
  /** The `inner` values of each passing `outer` unit. */
  at(unit: 'second' | 'minute', values: string): string
  ofEach(unit: 'minute' | 'hour', at: string): string
  inMinutes(values: string, what: string): string
  inHours(values: string, what: string): string
  between(from: string, to: string, what: string): string
  and(values: readonly string[]): string
  /** Ascending values without a gap, at least three of them. */
  range(first: string, last: string): string
  month(month: number): string
  weekDay(day: number): string
  monthDays(days: string | null, last: boolean): string
  weekDays(days: string): string
  nthWeekDay(nth: string, day: string): string
  either(one: string, other: string): string
  /** Null: each month, or each day. */
  clock(times: string, days: string | null, months: string | null, ofMonth: boolean): string
  passing(what: string, days: string | null, months: string | null, ofMonth: boolean): string
}

/** A rule in words, or the rule itself if there are no words for it. */
export function ruleInWords(cron: string, language: Language): string {
  const fields = readRule(cron)
  const phrases = language === 'ja' ? JAPANESE : ENGLISH
  const words = fields === null ? null : describe(fields, phrases)
  return words === null ? cron : words.charAt(0).toUpperCase() + words.slice(1)
}

function describe(fields: RuleFields, say: Phrases): string | null {
  const { monthDays, weekDays, months } = fields
  const month = months.length === 12 ? null : listed(months.map(say.month), months, say)
  const dayWords = [
    monthDays === null ? null : say.monthDays(numbers(monthDays.days, say), monthDays.last),
    weekDays === null ? null : weekDayWords(weekDays, say),
  ].filter((words) => words !== null)
  const [one, other] = dayWords
  const days = one === undefined ? null : other === undefined ? one : say.either(one, other)
  const ofMonth = monthDays !== null || (weekDays?.nth ?? null) !== null
  const times = clockTimes(fields)
  if (times !== null) return say.clock(say.and(times), days, month, ofMonth)
  const what = passingWords(fields, say)
  return what === null ? null : say.passing(what, days, month, ofMonth)
}

function weekDayWords({ days, nth }: NonNullable<RuleFields['weekDays']>, say: Phrases): string {
  // A week begins on Monday.
  const inOrder = days.map((day) => (day + 6) % 7).sort((a, b) => a - b)
  const words = listed(
    inOrder.map((day) => say.weekDay((day + 1) % 7)),
    inOrder,
    say,
  )
  return nth === null ? say.weekDays(words) : say.nthWeekDay(nth, words)
}

/** The times of a day, if there are few. */
function clockTimes({ seconds, minutes, hours }: RuleFields): string[] | null {
  if (seconds.length * minutes.length * hours.length > CLOCK_TIMES_MAX) return null
  return hours.flatMap((hour) =>
    minutes.flatMap((minute) =>
      seconds.map((second) => `${two(hour)}:${two(minute)}${second === 0 ? '' : `:${two(second)}`}`),
    ),
  )
}

function passingWords({ seconds, minutes, hours }: RuleFields, say: Phrases): string | null {
  const whole = isZero(seconds) && isZero(minutes)
  const hourStep = stepOf(hours, 24)
  if (whole && hourStep !== null) return say.every('hour', hourStep)
  const what = whole ? say.every('hour', 1) : withinHour(seconds, minutes, say)
  if (what === null || hours.length === 24) return what
  const [first = 0, last = 0] = [hours[0], hours.at(-1)]
  if (last - first === hours.length - 1) {
    return say.between(`${two(first)}:00`, `${two(last)}:${whole ? '00' : '59'}`, what)
  }
  return hours.length > LISTED_MAX ? null : say.inHours(say.and(hours.map(String)), what)
}

function withinHour(seconds: readonly number[], minutes: readonly number[], say: Phrases): string | null {
  const minuteStep = stepOf(minutes, 60)
  if (isZero(seconds)) {
    if (minuteStep !== null) return say.every('minute', minuteStep)
    const values = numbers(minutes, say)
    return values === null ? null : say.ofEach('hour', say.at('minute', values))
  }
  const secondStep = stepOf(seconds, 60)
  const values = numbers(seconds, say)
  if (secondStep === null && values === null) return null
  const what =
    secondStep === null ? say.ofEach('minute', say.at('second', values ?? '')) : say.every('second', secondStep)
  if (minutes.length === 60) return what
  const inMinutes = numbers(minutes, say)
  return inMinutes === null ? null : say.inMinutes(inMinutes, what)
}

const isZero = (values: readonly number[]) => values.length === 1 && values[0] === 0
const two = (value: number) => String(value).padStart(2, '0')

/** The step of values that divide the whole evenly, from 0 on. */
function stepOf(values: readonly number[], whole: number): number | null {
  const step = whole / values.length
  return values.length > 1 && values.every((value, i) => value === i * step) ? step : null
}

function numbers(values: readonly number[], say: Phrases): string | null {
  return values.length === 0 ? null : listed(values.map(String), values, say)
}

function listed(texts: readonly string[], values: readonly number[], say: Phrases): string {
  const [first = 0, last = 0] = [values[0], values.at(-1)]
  const isRange = values.length > 2 && last - first === values.length - 1
  return isRange ? say.range(texts[0] ?? '', texts.at(-1) ?? '') : say.and(texts)
}

const MONTHS = 'January February March April May June July August September October November December'.split(' ')
const WEEK_DAYS = 'Sunday Monday Tuesday Wednesday Thursday Friday Saturday'.split(' ')
const NTH: Record<string, string> = { 1: 'first', 2: 'second', 3: 'third', 4: 'fourth', 5: 'fifth', L: 'last' }

const ENGLISH: Phrases = {
  every: (unit, count) => (count === 1 ? `every ${unit}` : `every ${count} ${unit}s`),
  at: (unit, values) => `at ${/^\d+$/.test(values) ? unit : `${unit}s`} ${values}`,
  ofEach: (unit, at) => `${at} of every ${unit}`,
  inMinutes: (values, what) => `${what}, in ${/^\d+$/.test(values) ? 'minute' : 'minutes'} ${values} of every hour`,
  inHours: (values, what) => `${what}, in the hours ${values}`,
  between: (from, to, what) => `${what} from ${from} to ${to}`,
  and: (values) => (values.length < 2 ? values.join('') : `${values.slice(0, -1).join(', ')} and ${values.at(-1)}`),
  range: (first, last) => `${first} to ${last}`,
  month: (month) => MONTHS[month - 1] ?? '',
  weekDay: (day) => WEEK_DAYS[day] ?? '',
  monthDays: (days, last) =>
    days === null
      ? 'on the last day of the month'
      : `on ${/^\d+$/.test(days) ? 'day' : 'days'} ${days}${last ? ' and on the last day' : ''} of the month`,
  weekDays: (days) => (days.includes(' to ') ? days : `on ${days}`),
  nthWeekDay: (nth, day) => `on the ${NTH[nth]} ${day} of the month`,
  either: (one, other) => `${one} or ${other.startsWith('on ') ? other : `on ${other}`}`,
  clock: (times, days, months) => `${days ?? 'every day'}${months === null ? '' : ` in ${months}`} at ${times}`,
  passing: (what, days, months) =>
    [what, days, months === null ? null : `in ${months}`].filter((part) => part !== null).join(', '),
}

const UNITS = { second: '秒', minute: '分', hour: '時間' }

const JAPANESE: Phrases = {
  every: (unit, count) =>
    count === 1 ? { second: '毎秒', minute: '毎分', hour: '毎時' }[unit] : `${count} ${UNITS[unit]}ごと`,
  at: (unit, values) => `${values} ${UNITS[unit]}`,
  ofEach: (unit, at) => `${unit === 'hour' ? '毎時' : '毎分'} ${at}`,
  inMinutes: (values, what) => `毎時 ${values} 分台に${what}`,
  inHours: (values, what) => `${values} 時台に${what}`,
  between: (from, to, what) => `${from} から ${to} まで${what}`,
  and: (values) => values.join('、'),
  range: (first, last) => `${first} から ${last} まで`,
  month: (month) => `${month} 月`,
  weekDay: (day) => `${'日月火水木金土'.charAt(day)}曜日`,
  monthDays: (days, last) => (days === null ? '末日' : `${days} の日${last ? 'と末日' : ''}`),
  weekDays: (days) => `毎週 ${days}`,
  nthWeekDay: (nth, day) => (nth === 'L' ? `最終${day}` : `第 ${nth} ${day}`),
  either: (one, other) => `${one}または${other}`,
  clock: (times, days, months, ofMonth) => `${whenJapanese(days, months, ofMonth)} ${times}`,
  passing: (what, days, months, ofMonth) =>
    days === null && months === null ? what : `${whenJapanese(days, months, ofMonth)}に${what}`,
}

function whenJapanese(days: string | null, months: string | null, ofMonth: boolean): string {
  if (months !== null) return `${months}の${days ?? '毎日'}`
  return days === null ? '毎日' : ofMonth ? `毎月 ${days}` : days
}
