import { expect, test } from 'vitest'
import { judge, MINUTE_MS, type MinuteSum, reachMs, type WindowLimits, type WindowRule } from './minute-counts.ts'

const LIMITS: WindowLimits = { threshold: 10, windowMs: 60 * MINUTE_MS, minEvents: 20, forMs: 0 }
const COUNTED: WindowRule = { part: 'dead_letters', whole: null, isOver: (part, _, threshold) => part > threshold }
const SHARE: WindowRule = {
  part: 'retries_failed',
  whole: 'retries_ended',
  isOver: (part, whole, threshold) => part * 100 > threshold * whole,
}
const HOUR = 1_000
const at = (minute: number, seconds = 30) => minute * MINUTE_MS + seconds * 1000
const dead = (minute: number, count: number): MinuteSum => ({ minute, name: 'dead_letters', count })
const retries = (ended: number, failed: number): MinuteSum[] => [
  { minute: HOUR, name: 'retries_ended', count: ended },
  { minute: HOUR, name: 'retries_failed', count: failed },
]

test('a count at its threshold is fine, and one more is over', () => {
  expect(judge(COUNTED, [dead(HOUR, 10)], LIMITS, at(HOUR))).toEqual({ verdict: 'within', part: 10, whole: 0 })
  expect(judge(COUNTED, [dead(HOUR, 10), dead(HOUR - 1, 1)], LIMITS, at(HOUR)).verdict).toBe('over')
})

test('a share at its threshold is fine, and with too few events it is never over', () => {
  const of = (ended: number, failed: number, threshold = 5) =>
    judge(SHARE, retries(ended, failed), { ...LIMITS, threshold }, at(HOUR)).verdict
  expect([of(20, 1), of(20, 2), of(40, 2), of(40, 3)]).toEqual(['within', 'over', 'within', 'over'])
  expect([of(19, 19), of(0, 0)]).toEqual(['within', 'within'])
  // 0.29 * 100 is 28.999999999999996.
  expect([of(100, 29, 29), of(100, 30, 29)]).toEqual(['within', 'over'])
})

test('nothing older than the window counts, and the current minute counts', () => {
  const verdictAt = (minute: number, windowMs = LIMITS.windowMs) =>
    judge(COUNTED, [dead(HOUR, 11)], { ...LIMITS, windowMs }, at(minute)).part
  expect([verdictAt(HOUR), verdictAt(HOUR + 59), verdictAt(HOUR + 60)]).toEqual([11, 11, 0])
  expect([verdictAt(HOUR, MINUTE_MS), verdictAt(HOUR + 1, MINUTE_MS), verdictAt(HOUR + 1, 90_000)]).toEqual([11, 0, 11])
})

test('a rule with a for-duration is broken only if it was at the end of each minute', () => {
  const verdictAt = (minute: number, seconds: number) =>
    judge(COUNTED, [dead(HOUR, 11)], { ...LIMITS, forMs: 120_000 }, at(minute, seconds)).verdict
  expect(verdictAt(HOUR, 59)).toBe('unsettled')
  expect(verdictAt(HOUR + 2, 59)).toBe('unsettled')
  expect(verdictAt(HOUR + 3, 0)).toBe('over')
})

test('a rule is kept again only after a twelfth of the window, or its for-duration', () => {
  const verdictAt = (minute: number, forMs = 0) =>
    judge(COUNTED, [dead(HOUR, 11)], { ...LIMITS, forMs }, at(minute, 0)).verdict
  expect([verdictAt(HOUR + 59), verdictAt(HOUR + 60), verdictAt(HOUR + 65)]).toEqual(['over', 'unsettled', 'unsettled'])
  expect(verdictAt(HOUR + 66)).toBe('within')
  expect([verdictAt(HOUR + 70, 600_000), verdictAt(HOUR + 71, 600_000)]).toEqual(['unsettled', 'within'])
})

test('a value that swings around its threshold is one alert', () => {
  const everyFiveAndAHalf = Array.from({ length: 65 }, (_, i) => dead(HOUR + Math.floor(5.5 * i), 1))
  const parts = new Set<number>()
  for (let minute = HOUR + 60; minute < HOUR + 350; minute++) {
    const { verdict, part } = judge(COUNTED, everyFiveAndAHalf, LIMITS, at(minute))
    parts.add(part)
    expect(verdict).not.toBe('within')
  }
  expect(parts).toEqual(new Set([10, 11]))
})

test('counts older than the reach of a rule change no judgement', () => {
  for (const forMs of [0, 90_000, 600_000]) {
    for (const seconds of [0, 30, 59]) {
      const limits = { ...LIMITS, forMs }
      const nowMs = at(HOUR, seconds)
      const oldest = Math.floor((nowMs - reachMs(limits)) / MINUTE_MS)
      const kept = [dead(HOUR, 11)]
      expect(judge(COUNTED, [...kept, dead(oldest - 1, 99)], limits, nowMs)).toEqual(
        judge(COUNTED, kept, limits, nowMs),
      )
    }
  }
})
