import { nextTick, type Schedule, ticksBetween } from './schedule.ts'

/** A tick that is later than this was missed. A change of leaders takes up to 10 s, so it misses no tick. */
export const GRACE_MS = 30_000
/**
 * For this long after a jump of the store's clock, a tick was missed only if it is later than this: a clock that jumps
 * ahead by ten minutes must skip no tick. A longer jump is believed: the machine was asleep.
 */
export const CLOCK_DOUBT_MS = 3_600_000

/** The plan for a definition whose tick is due. */
export interface Plan {
  make: number[]
  skip: number[]
  /** Replaces many skips: the first and the last of them. */
  skipAll: { fromMs: number; untilMs: number } | null
  /** The next tick after this plan; null if there is none. */
  nextTickAtMs: number | null
}

interface Lateness {
  /** The first tick that was not decided yet. */
  dueAtMs: number
  nowMs: number
  /** How long the store's clock has run without a jump. */
  evenMs: number
  /** The most ticks to make, and the most skips to record one by one. */
  max: number
}

export function planTicks(schedule: Schedule, { dueAtMs, nowMs, evenMs, max }: Lateness): Plan {
  const endMs = nowMs + 1
  const fromMs = Math.max(dueAtMs, firstToMake(schedule, dueAtMs, nowMs, evenMs))
  const make = ticksFrom(schedule, dueAtMs, fromMs, endMs, max)
  const skip = dueAtMs < fromMs ? ticksFrom(schedule, dueAtMs, dueAtMs, fromMs, max + 1) : []
  const many = skip.length > max
  return {
    make,
    skip: many ? [] : skip,
    skipAll: many
      ? { fromMs: skip[0] ?? dueAtMs, untilMs: lastTicks(schedule, dueAtMs, fromMs, 1)[0] ?? fromMs }
      : null,
    nextTickAtMs: nextTick(schedule, make.length === max ? (make.at(-1) ?? nowMs) : nowMs),
  }
}

/** The first tick stays the one that was computed before, even if the rule has changed since. */
function ticksFrom(schedule: Schedule, dueAtMs: number, fromMs: number, toMs: number, max: number): number[] {
  if (dueAtMs < fromMs || dueAtMs >= toMs) return ticksBetween(schedule, fromMs, toMs, max)
  return [dueAtMs, ...ticksBetween(schedule, dueAtMs + 1, toMs, max - 1)]
}

/** The first tick to make. Ticks before it are not made up for. */
function firstToMake(schedule: Schedule, dueAtMs: number, nowMs: number, evenMs: number): number {
  const onTimeMs = nowMs - (evenMs < CLOCK_DOUBT_MS ? CLOCK_DOUBT_MS : GRACE_MS)
  if (schedule.catchUp === 'skip') return onTimeMs
  const windowMs = Math.min(onTimeMs, nowMs - schedule.catchUpWindowSeconds * 1000)
  if (schedule.catchUp === 'all') return windowMs
  // A tick that is on time makes up for the missed ticks before it.
  const [onTime] = ticksBetween(schedule, onTimeMs, nowMs + 1, 1)
  if (onTime !== undefined) return onTimeMs
  const [last] = lastTicks(schedule, Math.max(dueAtMs, windowMs), nowMs + 1, 1)
  return last ?? (dueAtMs >= windowMs ? dueAtMs : nowMs + 1)
}

const SPAN_MS = 60_000
const SPAN_TICKS_MAX = 1_000
/** Rules have no ticks from here on. A search backwards from the year 9999 would take a second. */
const RULES_END_MS = Date.UTC(3000, 0, 2)

/**
 * The last `count` ticks from `fromMs` on and before `toMs`, oldest first. Rules only look ahead, so it tries longer
 * and longer spans.
 */
export function lastTicks(schedule: Schedule, fromMs: number, toMs: number, count: number): number[] {
  const ticks: number[] = []
  let [spanMs, endMs] = [SPAN_MS, Math.min(toMs, RULES_END_MS)]
  while (ticks.length < count && endMs > fromMs) {
    const startMs = Math.max(fromMs, endMs - spanMs)
    const found = ticksBetween(schedule, startMs, endMs, SPAN_TICKS_MAX)
    if (found.length === SPAN_TICKS_MAX) spanMs = Math.ceil(spanMs / 16)
    else {
      ticks.unshift(...found)
      endMs = startMs
      spanMs *= 4
    }
  }
  return ticks.slice(-count)
}

/** The delay of a job after its tick. It is always the same for the same tick. */
export function jitterMs(definitionId: string, tickMs: number, jitterSeconds: number): number {
  let hash = 0x811c9dc5
  for (const char of `${definitionId}/${tickMs}`) hash = Math.imul(hash ^ char.charCodeAt(0), 0x01000193) >>> 0
  // The last characters changed mostly the low bits.
  hash = Math.imul(hash ^ (hash >>> 15), 0x2c1b3c6d) >>> 0
  return Math.floor((hash / 2 ** 32) * jitterSeconds * 1000)
}

export const OUTCOMES = ['job', 'skipped', 'waiting_quota', 'waiting_overlap'] as const
export type Outcome = (typeof OUTCOMES)[number]

/** A tick is recorded by the schedule or by a backfill. */
export const ORIGINS = ['schedule', 'backfill'] as const
export type Origin = (typeof ORIGINS)[number]

/** At most this many ticks of a definition wait for a free slot. Later ticks are skipped. */
export const WAITING_MAX = 1_000

/** Whether a job of the definition has not ended, and how many of its ticks wait. */
export interface DefinitionLoad {
  active: boolean
  waiting: number
  /** The active jobs are all of a backfill, which may take long: a current tick is not lost to it. */
  backfilledOnly?: boolean
}

interface SettledTick {
  outcome: Outcome
  reason: 'overlap' | 'quota' | null
  /** The load for the tick after it. */
  after: DefinitionLoad
}

/** The outcome of the next tick. */
export function settleTick(overlap: Schedule['overlap'], load: DefinitionLoad): SettledTick {
  const { active, waiting, backfilledOnly = false } = load
  if (overlap === 'allow') {
    // Ticks that wait come first.
    if (waiting === 0) return { outcome: 'job', reason: null, after: load }
    if (waiting >= WAITING_MAX) return { outcome: 'skipped', reason: 'quota', after: load }
    return { outcome: 'waiting_quota', reason: null, after: { ...load, waiting: waiting + 1 } }
  }
  if (waiting > 0 || (active && overlap === 'skip' && !backfilledOnly)) {
    return { outcome: 'skipped', reason: 'overlap', after: load }
  }
  if (active) return { outcome: 'waiting_overlap', reason: null, after: { ...load, waiting: waiting + 1 } }
  return { outcome: 'job', reason: null, after: { ...load, active: true } }
}
