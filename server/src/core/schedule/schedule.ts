import { Cron, CronPattern } from 'croner'
import { invalid, type Problem } from '../json/problem.ts'
import { isNumber, isObjectOf, isOneOf, isText, orNull } from '../json/stored-json.ts'
import { remember } from '../node/remember.ts'

/**
 * When a definition is due. Cron rules speak of wall time, so two nights a year need a rule of their own:
 * - A wall time that happens twice (clocks are set back) is one tick, at the first of the two.
 * - A wall time that does not happen (clocks are set forward) is a tick at the jump. All that the jump leaves out, and a
 *   tick that is due at the jump anyway, are one.
 * - A rule for every hour (the hour field is `*`) means every hour that passes: each instant whose minute and second match
 *   is one tick. Otherwise a rule for every minute would be silent for an hour, and one for every hour have a tick too many.
 *
 * croner is asked for wall times only. Its own rule around a change differs: it loses both ticks of
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
  /** The first instant that can no longer be a tick. */
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
/** At most this many ticks are caught up one by one. */
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

/** The first tick strictly after an instant; null if there is none. */
export function nextTick(schedule: Schedule, afterMs: number): number | null {
  const { cron, timeZone, startsAtMs, endsAtMs } = schedule
  const rule = ruleOf(cron)
  const after = startsAtMs === null ? afterMs : Math.max(afterMs, startsAtMs - 1)
  const tick = rule.everyHour ? nextPassing(rule, timeZone, after) : nextShown(rule, timeZone, after)
  return tick !== null && (endsAtMs === null || tick < endsAtMs) ? tick : null
}

/** The first `max` ticks from `fromMs` on and before `toMs`. */
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

/** For a rule that names hours: the wall time counts, and each wall time once. */
function nextShown(rule: Rule, zone: string, afterMs: number): number | null {
  const shown = afterMs + offsetAt(zone, afterMs)
  const [first = afterMs, second] = instantsOf(zone, shown)
  // While clocks repeat an hour, nothing is due.
  const from = second === afterMs ? changeBetween(zone, first, second) + offsetAt(zone, first) - 1 : shown
  for (let wall = rule.next(from); wall !== null; wall = rule.next(wall)) {
    const [tick = jumpOver(zone, wall)] = instantsOf(zone, wall)
    if (tick > afterMs) return tick
  }
  return null
}

/** For a rule for every hour: the passing time counts, and each instant that matches is a tick. */
function nextPassing(rule: Rule, zone: string, afterMs: number): number | null {
  const shown = afterMs + offsetAt(zone, afterMs)
  const ahead = nextAhead(rule, zone, afterMs, shown)
  const [first = afterMs, second] = instantsOf(zone, shown)
  if (first !== afterMs || second === undefined) return ahead
  // Clocks will be set back, and will show the matching wall time again.
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

/** Says what is wrong with a schedule, with the field's name on the wire; null if it is valid. */
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

const problem = (field: string, message: string): Problem =>
  invalid(`schedule.${field}`, `schedule.${field} ${message}`)

const FIELDS = ['second', 'minute', 'hour', 'day of month', 'month', 'day of week']
const BOUNDS = ['0 to 59', '0 to 59', '0 to 23', '1 to 31', '1 to 12 or JAN to DEC', '0 to 7 or SUN to SAT']
/** croner reads these names. */
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

/** croner would accept more: `?` as the time of parsing, `+` as another way to join the two days. */
function parses(cron: string): boolean {
  if (!/^[0-9A-Za-z*,/# -]+$/.test(cron)) return false
  try {
    parse(cron)
    return true
  } catch {
    return false
  }
}

/**
 * Wall times of a time zone. A wall time is what clocks show, as if it were UTC, in milliseconds since 1970. Only one
 * of two clock changes within two days would be found; from 1995 to 2045 no zone has that.
 */

const DAY_MS = 86_400_000
const ZONES_MAX = 1_000

const formatOf = remember(
  ZONES_MAX,
  (zone: string) => new Intl.DateTimeFormat('en-US', { timeZone: zone, timeZoneName: 'longOffset' }),
)

/** True if it is a name of the IANA database. A bare offset is not: it has no summer time. */
export function isZone(zone: string): boolean {
  if (!/^[A-Za-z][A-Za-z0-9_+/-]{0,63}$/.test(zone)) return false
  try {
    formatOf(zone)
    return true
  } catch {
    return false
  }
}

/** How far the zone's clocks are ahead of UTC at an instant. */
export function offsetAt(zone: string, instantMs: number): number {
  if (zone === 'UTC') return 0
  const found = /GMT(?:([+-])(\d\d):(\d\d)(?::(\d\d))?)?$/.exec(formatOf(zone).format(instantMs))
  if (found === null) throw new TypeError(`No offset of ${zone} is known`)
  const [, sign, hours = '0', minutes = '0', seconds = '0'] = found
  const ahead = (Number(hours) * 3600 + Number(minutes) * 60 + Number(seconds)) * 1000
  return sign === '-' ? -ahead : ahead
}

/**
 * The instants at which clocks show a wall time: one; two, where clocks are set back; or none, where they are set
 * forward.
 */
export function instantsOf(zone: string, wallMs: number): number[] {
  const { before, after } = offsetsAround(zone, wallMs)
  if (before === after) return [wallMs - before]
  return [wallMs - before, wallMs - after]
    .filter((instant) => offsetAt(zone, instant) === wallMs - instant)
    .sort((a, b) => a - b)
}

/** The instant at which clocks skip a wall time. */
function jumpOver(zone: string, wallMs: number): number {
  const { before, after } = offsetsAround(zone, wallMs)
  return changeBetween(zone, wallMs - after, wallMs - before)
}

/** The first instant with another offset than `fromMs`. There must be one between the two. */
function changeBetween(zone: string, fromMs: number, toMs: number): number {
  const old = offsetAt(zone, fromMs)
  let [low, high] = [fromMs, toMs]
  while (high - low > 1) {
    const middle = Math.floor((low + high) / 2)
    if (offsetAt(zone, middle) === old) low = middle
    else high = middle
  }
  return high
}

/** No zone is further than 14 hours from UTC, so a day before and a day after are on either side of the wall time. */
function offsetsAround(zone: string, wallMs: number): { before: number; after: number } {
  return { before: offsetAt(zone, wallMs - DAY_MS), after: offsetAt(zone, wallMs + DAY_MS) }
}
