import { describe, expect, test } from 'vitest'
import { nextTicks, type Schedule, ticksBetween } from './schedule.ts'
import { CLOCK_DOUBT_MS, GRACE_MS, jitterMs, lastTicks, planTicks, settleTick, WAITING_MAX } from './ticks.ts'

const [MINUTE, HOUR, DAY] = [60_000, 3_600_000, 86_400_000]
const NOW = Date.UTC(2031, 4, 6, 12, 0, 10)
const EVEN = Number.MAX_SAFE_INTEGER

const rule = (changes: Partial<Schedule> = {}): Schedule => ({
  cron: '0 * * * *',
  timeZone: 'UTC',
  catchUp: 'last',
  catchUpWindowSeconds: 86_400,
  overlap: 'allow',
  jitterSeconds: 0,
  startsAtMs: null,
  endsAtMs: null,
  ...changes,
})
const hours = (...list: number[]) => list.map((hour) => Date.UTC(2031, 4, 6, hour))
const plan = (schedule: Schedule, dueAtMs: number, changes: { nowMs?: number; evenMs?: number; max?: number } = {}) =>
  planTicks(schedule, { dueAtMs, nowMs: NOW, evenMs: EVEN, max: 100, ...changes })

describe('a plan', () => {
  const [nine = 0] = hours(9)

  test.each([
    // 12:00:10, ten seconds after a tick, which makes up for those before it.
    ['skip', NOW, hours(12), hours(9, 10, 11)],
    ['last', NOW, hours(12), hours(9, 10, 11)],
    ['all', NOW, hours(9, 10, 11, 12), []],
    // 12:20: the last tick was missed, too.
    ['skip', NOW + 20 * MINUTE, [], hours(9, 10, 11, 12)],
    ['last', NOW + 20 * MINUTE, hours(12), hours(9, 10, 11)],
    ['all', NOW + 20 * MINUTE, hours(9, 10, 11, 12), []],
  ] as const)('of catch-up %s at %d', (catchUp, nowMs, make, skip) => {
    expect(plan(rule({ catchUp }), nine, { nowMs })).toEqual({ make, skip, skipAll: null, nextTickAtMs: hours(13)[0] })
  })

  test('makes no tick that was missed before the window', () => {
    const window = { catchUpWindowSeconds: 2 * 3600 }
    expect(plan(rule({ catchUp: 'all', ...window }), nine)).toMatchObject({ make: hours(11, 12), skip: hours(9, 10) })
    const yearly = rule({ cron: '0 0 1 1 *', ...window })
    const dueAtMs = Date.UTC(2031, 0, 1)
    expect(plan(yearly, dueAtMs)).toMatchObject({ make: [], skip: [dueAtMs], nextTickAtMs: Date.UTC(2032, 0, 1) })
  })

  test('is bounded: the rest of the ticks comes later, and many skips are one', () => {
    const first = plan(rule({ catchUp: 'all' }), nine, { max: 2 })
    expect(first).toMatchObject({ make: hours(9, 10), nextTickAtMs: hours(11)[0] })
    const dueAtMs = NOW - 30 * DAY
    const { skip, skipAll, make } = plan(rule({ cron: '* * * * * *', catchUp: 'skip' }), dueAtMs, { max: 1000 })
    expect(skip).toEqual([])
    expect(skipAll).toEqual({ fromMs: dueAtMs, untilMs: NOW - GRACE_MS - 1000 })
    expect([make[0], make.length]).toEqual([NOW - GRACE_MS, GRACE_MS / 1000 + 1])
  })

  test('trusts no span longer than since the clock’s jump, up to an hour', () => {
    const often = rule({ cron: '*/10 * * * *', catchUp: 'skip' })
    expect(plan(often, NOW - HOUR, { evenMs: 5 }).skip).toEqual([])
    expect(plan(often, Date.UTC(2031, 4, 6, 10), { evenMs: 5 }).skip).toHaveLength(7)
    expect(plan(often, NOW - HOUR, { evenMs: CLOCK_DOUBT_MS }).make).toHaveLength(1)
  })

  test('keeps the tick that was due when the rule was changed', () => {
    const due = Date.UTC(2031, 4, 6, 11, 59, 59)
    expect(plan(rule(), due)).toMatchObject({ make: [due, ...hours(12)] })
    expect(plan(rule({ cron: '0 3 * * *' }), due)).toMatchObject({ make: [due] })
  })
})

test.each([
  ['* * * * * *', 2 * HOUR, 150],
  ['* 9 * * *', 3 * DAY, 200],
  ['*/7 3,22 * * *', 40 * DAY, 30],
  ['0 0 29 2 *', 3000 * DAY, 2],
  ['0 0 1 1 *', 100 * DAY, 1],
])('the last ticks of %s are the end of all ticks', (cron, spanMs, count) => {
  const schedule = rule({ cron, timeZone: 'Europe/Berlin' })
  const all = ticksBetween(schedule, NOW - spanMs, NOW, 100_000)
  expect(lastTicks(schedule, NOW - spanMs, NOW, count)).toEqual(all.slice(-count))
})

test('jitter is spread over its span, and constant for a tick', () => {
  const all = Array.from({ length: 1_000 }, (_, i) => jitterMs('0197-a', NOW + i * 1000, 60))
  expect(all).toEqual(Array.from({ length: 1_000 }, (_, i) => jitterMs('0197-a', NOW + i * 1000, 60)))
  for (let tenth = 0; tenth < 10; tenth++) {
    const inIt = all.filter((ms) => ms >= tenth * 6_000 && ms < (tenth + 1) * 6_000)
    expect(inIt.length).toBeGreaterThan(50)
  }
  expect(jitterMs('a', NOW, 0)).toBe(0)
})

test.each([
  ['allow', { active: true, waiting: 0 }, 'job'],
  ['allow', { active: true, waiting: 1 }, 'waiting_quota'],
  ['allow', { active: true, waiting: WAITING_MAX }, 'skipped'],
  ['skip', { active: false, waiting: 0 }, 'job'],
  ['skip', { active: true, waiting: 0 }, 'skipped'],
  ['skip', { active: false, waiting: 1 }, 'skipped'],
  ['queue_one', { active: false, waiting: 0 }, 'job'],
  ['queue_one', { active: true, waiting: 0 }, 'waiting_overlap'],
  ['queue_one', { active: true, waiting: 1 }, 'skipped'],
] as const)('overlap %s, %j: %s', (overlap, load, outcome) => {
  expect(settleTick(overlap, load).outcome).toBe(outcome)
})

test('the last ticks of the last year are found, and none after them', () => {
  for (const timeZone of ['UTC', 'Pacific/Kiritimati', 'Etc/GMT+12']) {
    const schedule = rule({ cron: '* * * * * *', timeZone })
    const [last = 0] = lastTicks(schedule, NOW, Date.parse('9999-12-31T00:00:00Z'), 1)
    expect(nextTicks(schedule, last - 1_000, 5)).toEqual([last])
  }
})
