/** Counts that are kept by the minute in the store, so that alerts survive restarts and changes of leaders. */
export type MinuteCount =
  | 'dead_letters'
  | 'leader_changes'
  | 'retries_ended'
  | 'retries_failed'
  | 'keyed_submits'
  | 'duplicate_submits'
  | 'runs_started'
  /** The sum of the delays of these runs, in ms. */
  | 'start_delay_ms'

export const MINUTE_MS = 60_000

/** The sum of a count in a minute, over all nodes. Minutes are numbered from 1970. */
export interface MinuteSum {
  minute: number
  /** A `MinuteCount`, or a name that only a newer node knows. */
  name: string
  count: number
}

/** A rule about the counts of a time window: a count, or the ratio of two counts. */
export interface WindowRule {
  part: MinuteCount
  whole: MinuteCount | null
  isOver(part: number, whole: number, threshold: number): boolean
}

export interface WindowLimits {
  threshold: number
  windowMs: number
  /** With a smaller `whole` the rule is not broken. */
  minEvents: number
  /** How long the rule must have been broken. */
  forMs: number
}

export interface Judgement {
  /** `unsettled`: neither state has lasted long enough, so an alert stays as it is. */
  verdict: 'over' | 'within' | 'unsettled'
  part: number
  whole: number
}

/**
 * A value that swings around its threshold is one alert: it closes after the value was within for this part of the
 * window.
 */
const CALM_PART_OF_WINDOW = 12

function calmMs({ windowMs, forMs }: Pick<WindowLimits, 'windowMs' | 'forMs'>): number {
  return Math.max(forMs, windowMs / CALM_PART_OF_WINDOW)
}

/** The age of the oldest counts that a judgement uses, including whole minutes. */
export function reachMs(limits: Pick<WindowLimits, 'windowMs' | 'forMs'>): number {
  return limits.windowMs + calmMs(limits) + 2 * MINUTE_MS
}

/**
 * Judges a rule from the counts alone, so that every leader judges alike. The window is the current minute and the
 * minutes before it. `forMs` is checked at the end of each minute.
 */
export function judge(rule: WindowRule, sums: readonly MinuteSum[], limits: WindowLimits, nowMs: number): Judgement {
  const current = Math.floor(nowMs / MINUTE_MS)
  const minutes = Math.ceil(limits.windowMs / MINUTE_MS)
  const sumUntil = (name: MinuteCount | null) => {
    const counts = sums.filter((sum) => sum.name === name)
    return (last: number) =>
      counts.reduce((sum, { minute, count }) => (minute <= last && minute > last - minutes ? sum + count : sum), 0)
  }
  const [partUntil, wholeUntil] = [sumUntil(rule.part), sumUntil(rule.whole)]
  const isOverAt = (last: number) => {
    const whole = wholeUntil(last)
    if (rule.whole !== null && whole < Math.max(1, limits.minEvents)) return false
    return rule.isOver(partUntil(last), whole, limits.threshold)
  }
  const over = isOverAt(current)
  const spanMs = over ? limits.forMs : calmMs(limits)
  // The first minute to check is the last that had ended when the span began.
  const first = spanMs === 0 ? current : Math.floor((nowMs - spanMs) / MINUTE_MS) - 1
  let settled = true
  for (let minute = first; settled && minute < current; minute++) settled = isOverAt(minute) === over
  return {
    verdict: settled ? (over ? 'over' : 'within') : 'unsettled',
    part: partUntil(current),
    whole: wholeUntil(current),
  }
}
