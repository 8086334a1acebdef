import { describe, expect, test } from 'vitest'
import { nextTicks, type Schedule, scheduleProblem } from '../../../server/src/core/schedule/schedule.ts'
import { ruleInWords } from './rule-words.ts'

test.each([
  ['30 2 * * *', 'Every day at 02:30', '毎日 02:30'],
  ['@hourly', 'Every hour', '毎時'],
  ['@weekly', 'On Sunday at 00:00', '毎週 日曜日 00:00'],
  ['0 9,17 * * MON-FRI', 'Monday to Friday at 09:00 and 17:00', '毎週 月曜日 から 金曜日 まで 09:00、17:00'],
  ['0 0 * * FRI-SUN', 'Friday to Sunday at 00:00', '毎週 金曜日 から 日曜日 まで 00:00'],
  ['*/15 * * * *', 'Every 15 minutes', '15 分ごと'],
  ['*/2 * * * * *', 'Every 2 seconds', '2 秒ごと'],
  ['5 * * * *', 'At minute 5 of every hour', '毎時 5 分'],
  ['0 */6 * * *', 'Every day at 00:00, 06:00, 12:00 and 18:00', '毎日 00:00、06:00、12:00、18:00'],
  ['0 */2 * * *', 'Every 2 hours', '2 時間ごと'],
  [
    '*/10 9-17 * * 1-5',
    'Every 10 minutes from 09:00 to 17:59, Monday to Friday',
    '毎週 月曜日 から 金曜日 までに09:00 から 17:59 まで10 分ごと',
  ],
  ['30 4 1 JAN,jul *', 'On day 1 of the month in January and July at 04:30', '1 月、7 月の1 の日 04:30'],
  ['0 0 L * *', 'On the last day of the month at 00:00', '毎月 末日 00:00'],
  ['0 12 * * FRI#2', 'On the second Friday of the month at 12:00', '毎月 第 2 金曜日 12:00'],
  ['0 0 13 * FRI', 'On day 13 of the month or on Friday at 00:00', '毎月 13 の日または毎週 金曜日 00:00'],
  ['0 0 15W * *', '0 0 15W * *', '0 0 15W * *'],
])('%s', (cron, english, japanese) => {
  expect([ruleInWords(cron, 'en'), ruleInWords(cron, 'ja')]).toEqual([english, japanese])
})

const NOW_MS = Date.parse('2031-05-06T07:08:09Z')
const RULES = 3_000

function scheduleOf(cron: string): Schedule {
  const rest = { catchUp: 'last', catchUpWindowSeconds: 0, overlap: 'allow', jitterSeconds: 0 } as const
  return { cron, timeZone: 'UTC', ...rest, startsAtMs: null, endsAtMs: null }
}

/** Numbers that repeat with their seed, so that a failure can be seen again. */
function numbersFrom(seed: number): (below: number) => number {
  let state = seed
  return (below) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return Math.floor((state / 2 ** 32) * below)
  }
}

function anyRule(below: (max: number) => number): string {
  // Few values, so that many rules mean the same.
  const value = (min: number, max: number) => String([min, min + 1, max - 1, max][below(4)])
  const part = (min: number, max: number): string => {
    const [a, b] = [Number(value(min, max)), Number(value(min, max))]
    const range = `${Math.min(a, b)}-${Math.max(a, b)}`
    return ['*', '*', '*', `${a}`, range, `${range}/${1 + below(4)}`, `*/${1 + below(12)}`][below(7)] ?? '*'
  }
  const field = (min: number, max: number) => (below(5) === 0 ? `${part(min, max)},${part(min, max)}` : part(min, max))
  const day = () => ['L', 'LW', `${value(1, 28)}W`, `${value(1, 28)},L`, '1-5,L'][below(20)] ?? field(1, 31)
  const weekDay = () =>
    ['MON-FRI', 'sat,SUN', 'FRI#2', '5L', 'MON-WED#1', 'FRI-SUN', '1#1,3#2', '7'][below(20)] ?? field(0, 7)
  const fields = [field(0, 59), field(0, 23), day(), below(6) === 0 ? 'MAR-jun' : field(1, 12), weekDay()]
  return [...(below(4) === 0 ? [field(0, 59)] : []), ...fields].join(' ')
}

describe('rules that the server accepts', () => {
  const below = numbersFrom(7)
  const rules = Array.from({ length: RULES }, () => anyRule(below)).filter(
    (cron) => scheduleProblem(scheduleOf(cron), NOW_MS) === null,
  )

  test.each(['en', 'ja'] as const)('have words, and the same words mean the same ticks (%s)', (language) => {
    const seen = new Map<string, { cron: string; ticks: number[] }>()
    let worded = 0
    let shared = 0
    for (const cron of rules) {
      const words = ruleInWords(cron, language)
      if (words === cron) continue
      worded++
      const ticks = nextTicks(scheduleOf(cron), NOW_MS, 30)
      const before = seen.get(words)
      if (before === undefined) seen.set(words, { cron, ticks })
      else {
        shared++
        expect(ticks, `${before.cron} and ${cron} are both: ${words}`).toEqual(before.ticks)
      }
    }
    expect(worded).toBeGreaterThan(rules.length / 2)
    expect(shared).toBeGreaterThan(100)
  })
})

test.each(['', ' ', '* *', '@never', '1-', '*/0 * * * *', '9-1 * * * *', '<b>', '0 0 * * MON#9', 'constructor'])(
  'text that is no rule stays itself: %j',
  (text) => {
    expect(ruleInWords(text, 'en')).toBe(text)
  },
)
