import { describe, expect, test } from 'vitest'
import {
  CATCH_UP_TICKS_MAX,
  instantsOf,
  nextTick,
  offsetAt,
  type Schedule,
  scheduleProblem,
  ticksBetween,
} from './schedule.ts'

const MINUTE_MS = 60_000
const HOUR_MS = 3_600_000
const DAY_MS = 86_400_000

function schedule(cron: string, timeZone = 'UTC', more: Partial<Schedule> = {}): Schedule {
  return {
    cron,
    timeZone,
    catchUp: 'last',
    catchUpWindowSeconds: 86_400,
    overlap: 'allow',
    jitterSeconds: 0,
    startsAtMs: null,
    endsAtMs: null,
    ...more,
  }
}

const at = (text: string) => Date.parse(text)

/** The wall time of each tick, and its offset from UTC. */
function shown(cron: string, zone: string, from: string, to: string): string[] {
  return ticksBetween(schedule(cron, zone), at(from), at(to), 1_000).map((tick) => {
    const hours = offsetAt(zone, tick) / HOUR_MS
    return `${new Date(tick + hours * HOUR_MS).toISOString().slice(8, 16)}${hours < 0 ? '' : '+'}${hours}`
  })
}

describe('next tick', () => {
  test.each([
    ['*/15 * * * *', 'UTC', '2031-05-06T07:08:09Z', '2031-05-06T07:15:00Z'],
    ['*/10 * * * * *', 'UTC', '2031-05-06T07:08:09.999Z', '2031-05-06T07:08:10Z'],
    ['0 9 * * MON-FRI', 'Europe/Berlin', '2031-05-09T07:00:00Z', '2031-05-12T07:00:00Z'],
    ['30 4 1 JAN,jul *', 'Asia/Kolkata', '2031-05-06T00:00:00Z', '2031-06-30T23:00:00Z'],
    ['0 0 29 2 *', 'UTC', '2029-01-01T00:00:00Z', '2032-02-29T00:00:00Z'],
    ['0 0 L * *', 'UTC', '2031-02-01T00:00:00Z', '2031-02-28T00:00:00Z'],
    ['0 12 * * FRI#2', 'UTC', '2031-05-01T00:00:00Z', '2031-05-09T12:00:00Z'],
    // With a day of the month and a day of the week, either matches, as in cron.
    ['0 0 13 * FRI', 'UTC', '2031-05-10T00:00:00Z', '2031-05-13T00:00:00Z'],
    ['0 0 13 * FRI', 'UTC', '2031-05-13T00:00:00Z', '2031-05-16T00:00:00Z'],
    ['0 0 * * 7', 'UTC', '2031-05-05T00:00:00Z', '2031-05-11T00:00:00Z'],
    ['0 0 1 1 *', 'Pacific/Kiritimati', '2031-12-31T09:59:59Z', '2031-12-31T10:00:00Z'],
    ['0 0 1 1 *', 'Pacific/Pago_Pago', '2032-01-01T10:59:59Z', '2032-01-01T11:00:00Z'],
  ])('%s in %s after %s', (cron, zone, after, expected) => {
    expect(nextTick(schedule(cron, zone), at(after))).toBe(at(expected))
  })

  test('is strictly after the instant', () => {
    const noon = at('2031-05-06T12:00:00Z')
    const daily = schedule('0 12 * * *')
    expect(nextTick(daily, noon - 1)).toBe(noon)
    expect(nextTick(daily, noon)).toBe(noon + DAY_MS)
    expect(nextTick(daily, noon + 1)).toBe(noon + DAY_MS)
  })

  test('does not depend on the zone of this machine', () => {
    const before = process.env.TZ
    try {
      for (const zone of ['America/New_York', 'Asia/Tokyo', 'Europe/Berlin']) {
        process.env.TZ = zone
        expect(nextTick(schedule('30 2 * * *', 'UTC'), at('2031-03-09T00:00:00Z'))).toBe(at('2031-03-09T02:30:00Z'))
      }
    } finally {
      if (before === undefined) delete process.env.TZ
      else process.env.TZ = before
    }
  })

  test('from starts_at on and before ends_at', () => {
    const [first, last] = [at('2031-05-06T12:00:00Z'), at('2031-05-08T12:00:00Z')]
    const bounded = schedule('0 12 * * *', 'UTC', { startsAtMs: first, endsAtMs: last })
    expect(nextTick(bounded, 0)).toBe(first)
    expect(nextTick(bounded, first)).toBe(first + DAY_MS)
    expect(nextTick(bounded, first + DAY_MS)).toBeNull()
    expect(ticksBetween(bounded, 0, at('2040-01-01T00:00:00Z'), 100)).toEqual([first, first + DAY_MS])
  })

  test('a range includes its beginning, not its end, and at most max ticks', () => {
    const from = at('2031-05-06T12:00:00Z')
    const minutely = schedule('* * * * *')
    expect(ticksBetween(minutely, from, from + 2 * MINUTE_MS, 10)).toEqual([from, from + MINUTE_MS])
    expect(ticksBetween(minutely, from, from + DAY_MS, 3)).toHaveLength(3)
    expect(ticksBetween(minutely, from, from, 3)).toEqual([])
    expect(ticksBetween(minutely, from, from + DAY_MS, 0)).toEqual([])
  })
})

describe('Europe/Berlin', () => {
  const zone = 'Europe/Berlin'

  describe('sets clocks forward from 02:00 to 03:00 on 30 March 2031', () => {
    const night = (cron: string) => shown(cron, zone, '2031-03-29T12:00:00Z', '2031-03-31T12:00:00Z')

    test.each([
      ['30 2 * * *', ['30T03:00+2', '31T02:30+2']],
      ['0 2 * * *', ['30T03:00+2', '31T02:00+2']],
      ['0,30 2 * * *', ['30T03:00+2', '31T02:00+2', '31T02:30+2']],
      ['0 2,3 * * *', ['30T03:00+2', '31T02:00+2', '31T03:00+2']],
      ['30 1-3 * * *', ['30T01:30+1', '30T03:00+2', '30T03:30+2', '31T01:30+2', '31T02:30+2', '31T03:30+2']],
      ['30 2 30 3 *', ['30T03:00+2']],
    ])('%s', (cron, expected) => {
      expect(night(cron)).toEqual(expected)
    })

    test('the day has 23 ticks of a rule for every hour, and 1,380 of one for every minute', () => {
      const day = (cron: string) =>
        ticksBetween(schedule(cron, zone), at('2031-03-29T23:00:00Z'), at('2031-03-30T22:00:00Z'), 10_000)
      for (const minute of [0, 30, 59]) expect(gaps(day(`${minute} * * * *`))).toEqual({ [HOUR_MS]: 22 })
      expect(gaps(day('* * * * *'))).toEqual({ [MINUTE_MS]: 1_379 })
      expect(gaps(day('*/20 * * * *'))).toEqual({ [20 * MINUTE_MS]: 68 })
    })
  })

  describe('sets clocks back from 03:00 to 02:00 on 26 October 2031', () => {
    const night = (cron: string) => shown(cron, zone, '2031-10-25T12:00:00Z', '2031-10-27T12:00:00Z')

    test.each([
      ['30 2 * * *', ['26T02:30+2', '27T02:30+1']],
      ['0 2 * * *', ['26T02:00+2', '27T02:00+1']],
      ['0 3 * * *', ['26T03:00+1', '27T03:00+1']],
      ['0,30 2 26 10 *', ['26T02:00+2', '26T02:30+2']],
      ['30 1-3 26 * *', ['26T01:30+2', '26T02:30+2', '26T03:30+1']],
    ])('%s', (cron, expected) => {
      expect(night(cron)).toEqual(expected)
    })

    test('the next tick during the repeated hour', () => {
      const between = at('2031-10-26T01:10:00Z')
      expect(nextTick(schedule('30 2 * * *', zone), between)).toBe(at('2031-10-27T01:30:00Z'))
      expect(nextTick(schedule('* * 2 * * *', zone), between)).toBe(at('2031-10-27T01:00:00Z'))
      expect(nextTick(schedule('*/20 2,3 * * *', zone), between)).toBe(at('2031-10-26T02:00:00Z'))
      expect(nextTick(schedule('30 * * * *', zone), between)).toBe(at('2031-10-26T01:30:00Z'))
    })

    test('the day has 25 ticks of a rule for every hour, and 1,500 of one for every minute', () => {
      const day = (cron: string) =>
        ticksBetween(schedule(cron, zone), at('2031-10-25T22:00:00Z'), at('2031-10-26T23:00:00Z'), 10_000)
      for (const minute of [0, 30, 59]) expect(gaps(day(`${minute} * * * *`))).toEqual({ [HOUR_MS]: 24 })
      expect(gaps(day('* * * * *'))).toEqual({ [MINUTE_MS]: 1_499 })
      expect(gaps(day('*/20 * * * *'))).toEqual({ [20 * MINUTE_MS]: 74 })
    })
  })
})

describe('America/New_York', () => {
  const zone = 'America/New_York'

  test('sets clocks forward from 02:00 to 03:00 on 9 March 2031', () => {
    const night = (cron: string) => shown(cron, zone, '2031-03-09T05:00:00Z', '2031-03-10T09:00:00Z')
    expect(night('30 2 * * *')).toEqual(['09T03:00-4', '10T02:30-4'])
    expect(night('15,45 2 * * SUN')).toEqual(['09T03:00-4'])
    expect(night('45 */2 9 * *').slice(0, 3)).toEqual(['09T00:45-5', '09T03:00-4', '09T04:45-4'])
    expect(night('30 * 9 * *').slice(0, 4)).toEqual(['09T00:30-5', '09T01:30-5', '09T03:30-4', '09T04:30-4'])
  })

  test('sets clocks back from 02:00 to 01:00 on 2 November 2031', () => {
    const night = (cron: string) => shown(cron, zone, '2031-11-02T04:00:00Z', '2031-11-03T08:00:00Z')
    expect(night('30 1 * * *')).toEqual(['02T01:30-4', '03T01:30-5'])
    expect(night('0 1,2 * * SUN')).toEqual(['02T01:00-4', '02T02:00-5'])
    expect(night('30 * 2 * *').slice(0, 4)).toEqual(['02T00:30-4', '02T01:30-4', '02T01:30-5', '02T02:30-5'])
  })
})

/**
 * Every minute of the days around a change is checked by itself: the wall time, whether clocks have shown it before,
 * and what they skipped.
 */
describe('agrees with the clocks, minute by minute', () => {
  const CHANGES = [
    ['Europe/Berlin', '2031-03-30T01:00:00Z'],
    ['Europe/Berlin', '2031-10-26T01:00:00Z'],
    ['America/New_York', '2031-03-09T07:00:00Z'],
    ['America/New_York', '2031-11-02T06:00:00Z'],
    // At midnight, so that a day has no beginning, or two.
    ['Africa/Cairo', '2026-04-23T22:00:00Z'],
    ['Africa/Cairo', '2026-10-29T21:00:00Z'],
    ['America/Havana', '2026-11-01T05:00:00Z'],
    // By half an hour.
    ['Australia/Lord_Howe', '2026-10-03T15:30:00Z'],
    ['Australia/Lord_Howe', '2026-04-04T15:00:00Z'],
    // By a whole day.
    ['Pacific/Apia', '2011-12-30T10:00:00Z'],
  ] as const

  test.each(CHANGES)('%s, %s', (zone, change) => {
    const [from, to] = [at(change) - 4 * HOUR_MS, at(change) + 5 * HOUR_MS]
    const lead = from - 2 * HOUR_MS
    const walls: number[] = []
    for (let instant = lead; instant < to; instant += MINUTE_MS) walls.push(instant + clock(zone, instant))
    for (const hours of ['*', '*/2', '0', '1', '2', '3', '0-3', '1,23']) {
      for (const minutes of ['0', '30', '*/20', '7,59']) {
        const expected = slowTicks(walls, lead, minutes, hours).filter((tick) => tick >= from)
        const rule = schedule(`${minutes} ${hours} * * *`, zone)
        expect(ticksBetween(rule, from, to, 10_000), rule.cron).toEqual(expected)
        // From any starting point the same ticks come.
        for (const after of [at(change) - 1, at(change), at(change) + 25 * MINUTE_MS, at(change) - 25 * MINUTE_MS]) {
          const [next] = expected.filter((tick) => tick > after)
          if (next !== undefined) expect(nextTick(rule, after), `${rule.cron} after ${after}`).toBe(next)
        }
      }
    }
  })

  function slowTicks(walls: readonly number[], from: number, minutes: string, hours: string): number[] {
    const matches = (wall: number) => {
      const shown = new Date(wall)
      return covers(minutes, shown.getUTCMinutes()) && covers(hours, shown.getUTCHours())
    }
    const ticks: number[] = []
    let highest = Number.NEGATIVE_INFINITY
    walls.forEach((wall, i) => {
      const seen = wall <= highest
      const skipped = i > 0 && wall > highest + MINUTE_MS
      const left: number[] = []
      for (let missing = highest + MINUTE_MS; skipped && missing < wall; missing += MINUTE_MS) left.push(missing)
      highest = Math.max(highest, wall)
      const due = hours === '*' ? matches(wall) : (!seen && matches(wall)) || left.some(matches)
      if (due) ticks.push(from + i * MINUTE_MS)
    })
    return ticks
  }

  function covers(field: string, value: number): boolean {
    return field.split(',').some((part) => {
      if (part.startsWith('*')) return value % Number(part.slice(2) || 1) === 0
      const [low, high = low] = part.split('-').map(Number)
      return low !== undefined && high !== undefined && low <= value && value <= high
    })
  }

  const formats = new Map<string, Intl.DateTimeFormat>()

  /** Computed from the formatted time, unlike the code under test. */
  function clock(zone: string, instant: number): number {
    const format =
      formats.get(zone) ?? new Intl.DateTimeFormat('sv-SE', { timeZone: zone, dateStyle: 'short', timeStyle: 'medium' })
    formats.set(zone, format)
    return Date.parse(`${format.format(instant).replace(' ', 'T')}Z`) - instant
  }
})

test('a wall time has one instant, two or none', () => {
  const wall = (text: string) =>
    instantsOf('Europe/Berlin', at(`${text}Z`)).map((instant) => new Date(instant).toISOString())
  expect(wall('2031-07-01T12:00:00')).toEqual(['2031-07-01T10:00:00.000Z'])
  expect(wall('2031-10-26T02:30:00')).toEqual(['2031-10-26T00:30:00.000Z', '2031-10-26T01:30:00.000Z'])
  expect(wall('2031-03-30T02:30:00')).toEqual([])
})

describe('a schedule is refused', () => {
  const NOW = at('2031-05-06T07:08:09Z')
  const year = 366 * 86_400

  test.each<[string, Partial<Schedule>, string, RegExp]>([
    ['30 February', { cron: '0 0 30 2 *' }, 'cron', /no next run/],
    ['31 April and June', { cron: '0 0 31 4,6 *' }, 'cron', /no next run/],
    ['four fields', { cron: '* * * *' }, 'cron', /5 fields/],
    ['seven fields', { cron: '* * * * * * 2031' }, 'cron', /5 fields/],
    ['no fields', { cron: '' }, 'cron', /5 fields/],
    ['another nickname', { cron: '@reboot' }, 'cron', /5 fields.*@hourly, @daily, @weekly, @monthly, @yearly$/],
    ['an instant', { cron: '2031-05-06T07:08:09' }, 'cron', /5 fields/],
    ['minute 60', { cron: '60 * * * *' }, 'cron', /minute.*60 \(0 to 59\)/],
    ['hour 24', { cron: '0 24 * * *' }, 'cron', /hour.*24/],
    ['second 61', { cron: '61 * * * * *' }, 'cron', /second.*61/],
    ['day 32', { cron: '0 0 32 * *' }, 'cron', /day of month.*32/],
    ['month 13', { cron: '0 0 1 13 *' }, 'cron', /month.*13/],
    ['weekday 8', { cron: '0 0 * * 8' }, 'cron', /day of week.*8/],
    ['a name of nothing', { cron: '0 0 * * FOO' }, 'cron', /day of week.*FOO/],
    ['a range that goes back', { cron: '0 22-2 * * *' }, 'cron', /hour.*22-2/],
    ['steps of nothing', { cron: '*/0 * * * *' }, 'cron', /minute/],
    ['the time of reading', { cron: '? * * * *' }, 'cron', /minute.*\?/],
    ['two days joined', { cron: '0 0 13 * +5' }, 'cron', /day of week/],
    ['a rule without end', { cron: `${'1,'.repeat(200)}1 * * * *` }, 'cron', /256/],
    ['a zone of another planet', { timeZone: 'Mars/Phobos' }, 'time_zone', /name of a time zone.*"Mars\/Phobos"/],
    ['an offset', { timeZone: '+02:00' }, 'time_zone', /name of a time zone/],
    ['no zone', { timeZone: '' }, 'time_zone', /name of a time zone/],
    ['an end before its beginning', { startsAtMs: NOW + 2, endsAtMs: NOW + 1 }, 'ends_at', /after starts_at/],
    ['an end at its beginning', { startsAtMs: NOW + 1, endsAtMs: NOW + 1 }, 'ends_at', /after starts_at/],
    ['an end in the past', { endsAtMs: NOW - 1 }, 'ends_at', /no next run/],
    ['an end before the first tick', { cron: '0 0 1 1 *', endsAtMs: NOW + DAY_MS }, 'ends_at', /no next run/],
    ['all of years', { catchUp: 'all', catchUpWindowSeconds: 3 * year }, 'catch_up_window_seconds', /at most 2592000/],
    [
      'all of the seconds of a month',
      { cron: '* * * * * *', catchUp: 'all', catchUpWindowSeconds: 30 * 86_400 },
      'catch_up_window_seconds',
      new RegExp(`2592000 ticks; at most ${CATCH_UP_TICKS_MAX}`),
    ],
  ])('%s', (_, change, field, message) => {
    const problem = scheduleProblem({ ...schedule('0 0 * * *'), ...change }, NOW)
    expect(problem).toMatchObject({ field: `schedule.${field}`, message: expect.stringMatching(message) })
    expect(problem?.message).toMatch(new RegExp(`^schedule.${field} `))
  })

  test.each<Partial<Schedule>>([
    {},
    { cron: '  0   0 * * *  ' },
    { cron: '0 0 29 2 *' },
    { cron: '@hourly', catchUp: 'all' },
    { cron: '* * * * * *', catchUp: 'all' },
    { cron: '* * * * *', catchUp: 'all', catchUpWindowSeconds: 30 * 86_400 },
    { startsAtMs: 0, endsAtMs: NOW + DAY_MS },
    { startsAtMs: NOW + 10 * year * 1000 },
    { timeZone: 'America/Argentina/Buenos_Aires' },
    { timeZone: 'Etc/GMT+3' },
  ])('not so %j', (change) => {
    expect(scheduleProblem({ ...schedule('0 0 * * *'), ...change }, NOW)).toBeNull()
  })
})

function gaps(ticks: readonly number[]): Record<number, number> {
  const found: Record<number, number> = {}
  ticks.slice(1).forEach((tick, i) => {
    const gap = tick - (ticks[i] ?? Number.NaN)
    found[gap] = (found[gap] ?? 0) + 1
  })
  return found
}

test.each([
  ['@hourly', '0 * * * *'],
  ['@daily', '0 0 * * *'],
  ['@weekly', '0 0 * * 0'],
  ['@monthly', '0 0 1 * *'],
  ['@yearly', '0 0 1 1 *'],
])('%s is %s', (name, cron) => {
  const [from, to] = [at('2031-03-29T00:00:00Z'), at('2033-01-02T00:00:00Z')]
  const ticks = (rule: string) => ticksBetween(schedule(rule, 'Europe/Berlin'), from, to, 60)
  expect(ticks(name)).toEqual(ticks(cron))
  expect(ticks(name).length).toBeGreaterThan(1)
})
