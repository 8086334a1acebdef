import { remember } from '../node/remember.ts'

/**
 * What clocks in a time zone show. A wall time is what they show, written as if it were UTC: the milliseconds since 1970
 * that UTC's clocks would show the same at. Of two changes within two days only one would be seen: from 1995 to 2045 no
 * zone has that.
 */

const DAY_MS = 86_400_000
const ZONES_MAX = 1_000

const formatOf = remember(
  ZONES_MAX,
  (zone: string) => new Intl.DateTimeFormat('en-US', { timeZone: zone, timeZoneName: 'longOffset' }),
)

/** A name of the IANA database. A bare offset is none: it knows no summer. */
export function isZone(zone: string): boolean {
  if (!/^[A-Za-z][A-Za-z0-9_+/-]{0,63}$/.test(zone)) return false
  try {
    formatOf(zone)
    return true
  } catch {
    return false
  }
}

/** How far the zone's clocks are ahead of UTC's at an instant. */
export function offsetAt(zone: string, instantMs: number): number {
  if (zone === 'UTC') return 0
  const found = /GMT(?:([+-])(\d\d):(\d\d)(?::(\d\d))?)?$/.exec(formatOf(zone).format(instantMs))
  if (found === null) throw new TypeError(`No offset of ${zone} is known`)
  const [, sign, hours = '0', minutes = '0', seconds = '0'] = found
  const ahead = (Number(hours) * 3600 + Number(minutes) * 60 + Number(seconds)) * 1000
  return sign === '-' ? -ahead : ahead
}

/** When clocks show a wall time: once; twice, where they are set back; or never, where they are set forward. */
export function instantsOf(zone: string, wallMs: number): number[] {
  const { before, after } = offsetsAround(zone, wallMs)
  if (before === after) return [wallMs - before]
  return [wallMs - before, wallMs - after]
    .filter((instant) => offsetAt(zone, instant) === wallMs - instant)
    .sort((a, b) => a - b)
}

/** The instant at which clocks were set past a wall time that they never show. */
export function jumpOver(zone: string, wallMs: number): number {
  const { before, after } = offsetsAround(zone, wallMs)
  return changeBetween(zone, wallMs - after, wallMs - before)
}

/** The first instant with another offset than `fromMs` has; one must lie between the two. */
export function changeBetween(zone: string, fromMs: number, toMs: number): number {
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
