import { Cron, CronPattern } from 'croner'
import type { Problem } from '../json/problem.ts'
import { isNumber, isObjectOf, isOneOf, isText, orNull } from '../json/stored-json.ts'
import { remember } from '../node/remember.ts'
import { changeBetween, instantsOf, isZone, jumpOver, offsetAt } from './zone.ts'

/**
 * When a definition is due. Cron rules speak of wall time, so two nights a year need a rule of their own:
 * - A wall time that happens twice (clocks are set back) is one tick, at the first of the two.
 * - A wall time that does not happen (clocks are set forward) is a tick at the jump. All that the jump leaves out, and a
 *   tick that is due at the jump anyway, are one.
 * - A rule for every hour (the hour field is `*`) means every hour that passes: each instant whose minute and second match
 *   is one tick. Otherwise a rule for every minute would be silent for an hour, and one for every hour have a tick too many.
 *
 * croner is asked for wall times only. What it does by itself around a change is another rule: it loses both ticks of
 * `0,30 2 * * *` when the clocks are set forward.
 */
export interface Schedule {
  cron: string
  timeZone: string
  catchUp: (typeof CATCH_UPS)[number]
  catchUpWindowSeconds: number
  overlap: (typeof OVERLAPS)[number]
  jitterSeconds: number
  /** The first instant that can be a tick. */
  startsAtMs: number | null
  /** The first instant that can be none any more. */
  endsAtMs: number | null
}

export const CATCH_UPS = ['skip', 'last', 'all'] as const
export const OVERLAPS = ['allow', 'skip', 'queue_one'] as const

export const isSchedule = isObjectOf<Schedule>({
  cron: isText,
  timeZone: isText,
  catchUp: isOneOf(CATCH_UPS),
  catchUpWindowSeconds: isNumber,
  overlap: isOneOf(OVERLAPS),
  jitterSeconds: isNumber,
  startsAtMs: orNull(isNumber),
  endsAtMs: orNull(isNumber),
})

export const CRON_LENGTH_MAX = 256
export const CATCH_UP_WINDOW_SECONDS_MAX = 30 * 86_400
/** More ticks than this are not caught up one by one. */
export const CATCH_UP_TICKS_MAX = 100_000

/** croner's form of a rule has a place for each of 10,000 years: 80 kB. */
const RULES_MAX = 256

interface Rule {
  /** The next wall time, strictly after. */
  next(wallMs: number): number | null
  everyHour: boolean
  ticksPerDay: number
}

const ruleOf = remember(RULES_MAX, (text: string): Rule => {
  const pattern = parse(text)
  const cron = new Cron(text, { mode: '5-or-6-parts', utcOffset: 0 })
  return {
    next: (wallMs) => cron.nextRun(new Date(wallMs))?.getTime() ?? null,
    everyHour: count(pattern.hour) === 24,
    ticksPerDay: count(pattern.hour) * count(pattern.minute) * count(pattern.second),
  }
})

const parse = (text: string) => new CronPattern(text, undefined, { mode: '5-or-6-parts' })
const count = (marks: readonly number[]) => marks.filter((mark) => mark !== 0).length

/** The first tick strictly after an instant; null when there is none any more. */
export function nextTick(schedule: Schedule, afterMs: number): number | null {
  const { cron, timeZone, startsAtMs, endsAtMs } = schedule
  const rule = ruleOf(cron)
  const after = startsAtMs === null ? afterMs : Math.max(afterMs, startsAtMs - 1)
  const tick = rule.everyHour ? nextPassing(rule, timeZone, after) : nextShown(rule, timeZone, after)
  return tick !== null && (endsAtMs === null || tick < endsAtMs) ? tick : null
}

/** The ticks from an instant on and before another, the first `max` of them. */
export function ticksBetween(schedule: Schedule, fromMs: number, toMs: number, max: number): number[] {
  const ticks: number[] = []
  for (let tick = nextTick(schedule, fromMs - 1); ticks.length < max; tick = nextTick(schedule, tick)) {
    if (tick === null || tick >= toMs) break
    ticks.push(tick)
  }
  return ticks
}

/** The first ticks after an instant. */
export function nextTicks(schedule: Schedule, afterMs: number, max: number): number[] {
  return ticksBetween(schedule, afterMs + 1, Number.POSITIVE_INFINITY, max)
}

/** Of a rule that names hours: what the clocks show counts, and each wall time once. */
function nextShown(rule: Rule, zone: string, afterMs: number): number | null {
  const shown = afterMs + offsetAt(zone, afterMs)
  const [first = afterMs, second] = instantsOf(zone, shown)
  // While clocks show again what they have shown, nothing is due.
  const from = second === afterMs ? changeBetween(zone, first, second) + offsetAt(zone, first) - 1 : shown
  for (let wall = rule.next(from); wall !== null; wall = rule.next(wall)) {
    const [tick = jumpOver(zone, wall)] = instantsOf(zone, wall)
    if (tick > afterMs) return tick
  }
  return null
}

/** Of a rule for every hour: the time that passes counts, and each instant that matches. */
function nextPassing(rule: Rule, zone: string, afterMs: number): number | null {
  const shown = afterMs + offsetAt(zone, afterMs)
  const ahead = nextAhead(rule, zone, afterMs, shown)
  const [first = afterMs, second] = instantsOf(zone, shown)
  if (first !== afterMs || second === undefined) return ahead
  // Clocks are about to be set back, and show again what matched before.
  const change = changeBetween(zone, first, second)
  const back = offsetAt(zone, change)
  const again = rule.next(change + back - 1)
  return again === null || again > shown ? ahead : Math.min(ahead ?? again - back, again - back)
}

function nextAhead(rule: Rule, zone: string, afterMs: number, shownMs: number): number | null {
  for (let wall = rule.next(shownMs); wall !== null; ) {
    const tick = instantsOf(zone, wall).find((instant) => instant > afterMs)
    if (tick !== undefined) return tick
    const jump = jumpOver(zone, wall)
    wall = rule.next(jump + offsetAt(zone, jump) - 1)
  }
  return null
}

/** What is wrong with a schedule, by the name that the wire has for the field; null when it can be kept. */
export function scheduleProblem(schedule: Schedule, nowMs: number): Problem | null {
  const { cron, timeZone, catchUp, catchUpWindowSeconds, startsAtMs, endsAtMs } = schedule
  const wrong = cronProblem(cron)
  if (wrong !== null) return problem('cron', wrong)
  if (!isZone(timeZone))
    return problem(
      'time_zone',
      `must be the name of a time zone, such as Europe/Berlin, not ${JSON.stringify(timeZone)}`,
    )
  if (startsAtMs !== null && endsAtMs !== null && endsAtMs <= startsAtMs) {
    return problem('ends_at', 'must be after starts_at')
  }
  const window = Math.ceil(catchUpWindowSeconds / 86_400) * ruleOf(cron).ticksPerDay
  if (catchUp === 'all' && catchUpWindowSeconds > CATCH_UP_WINDOW_SECONDS_MAX) {
    return problem('catch_up_window_seconds', `must be at most ${CATCH_UP_WINDOW_SECONDS_MAX}`)
  }
  if (catchUp === 'all' && window > CATCH_UP_TICKS_MAX) {
    return problem(
      'catch_up_window_seconds',
      `holds up to ${window} ticks; at most ${CATCH_UP_TICKS_MAX} are caught up`,
    )
  }
  if (nextTick({ ...schedule, startsAtMs: null, endsAtMs: null }, nowMs) === null) {
    return problem('cron', 'has no next run: no date matches it')
  }
  return nextTick(schedule, nowMs) === null ? problem('ends_at', 'leaves no next run') : null
}

const problem = (field: string, message: string): Problem => ({
  field: `schedule.${field}`,
  message: `schedule.${field} ${message}`,
})

const FIELDS = ['second', 'minute', 'hour', 'day of month', 'month', 'day of week']
const BOUNDS = ['0 to 59', '0 to 59', '0 to 23', '1 to 31', '1 to 12 or JAN to DEC', '0 to 7 or SUN to SAT']
/** Read by croner. */
const NICKNAMES = ['@hourly', '@daily', '@weekly', '@monthly', '@yearly']

function cronProblem(cron: string): string | null {
  if (NICKNAMES.includes(cron)) return null
  const given = cron.trim().split(/\s+/)
  if (cron.length > CRON_LENGTH_MAX) return `must have at most ${CRON_LENGTH_MAX} characters`
  if (given.length !== 5 && given.length !== 6) {
    const fields = '5 fields (minute, hour, day of month, month, day of week), or 6 with the second before them'
    return `must have ${fields}, or be one of ${NICKNAMES.join(', ')}`
  }
  const fields = given.length === 5 ? ['0', ...given] : given
  const bad = fields.findIndex((field, i) => !parses(FIELDS.map((_, j) => (i === j ? field : '*')).join(' ')))
  return bad === -1 ? null : `has a ${FIELDS[bad]} that cannot be read: ${fields[bad]} (${BOUNDS[bad]})`
}

/** croner would read more than that: `?` as the time of reading, `+` as another way to join the two days. */
function parses(cron: string): boolean {
  if (!/^[0-9A-Za-z*,/# -]+$/.test(cron)) return false
  try {
    parse(cron)
    return true
  } catch {
    return false
  }
}
