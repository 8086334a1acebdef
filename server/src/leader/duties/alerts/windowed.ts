import type { AlertRule } from '@ichido/sdk/protocol'
import {
  type Judgement,
  judge,
  MINUTE_MS,
  reachMs,
  type WindowLimits,
  type WindowRule,
} from '../../../core/limits/minute-counts.ts'
import type { SettingName } from '../../../core/limits/settings.ts'
import type { Settings } from '../../../services/system/settings.ts'
import { findMinuteCounts } from '../../../store/system/minute-counts.ts'
import { compare, type Look, type Rule } from './state.ts'

type WindowedRule = Extract<
  AlertRule,
  'dead_letters' | 'retry_failures' | 'duplicate_keys' | 'start_delay' | 'leader_changes'
>

interface Windowed extends WindowRule {
  subject: string
  threshold: SettingName
  /** Unset if the rule has no `whole`. */
  minEvents?: SettingName
  tell(judgement: Judgement, threshold: number, minutes: number): string
}

const isMore = (part: number, _whole: number, threshold: number) => part > threshold
// It multiplies, because with a fraction 29 of 100 would be more than 29 %.
const isMorePercent = (part: number, whole: number, threshold: number) => part * 100 > threshold * whole
const percent = ({ part, whole }: Judgement) => `${part} of ${whole} (${Math.round((part * 1000) / whole) / 10} %)`

/** Seed S3 §6 has the first four; docs/operations/monitor.md defines them. */
const RULES: Record<WindowedRule, Windowed> = {
  dead_letters: {
    subject: 'all queues',
    part: 'dead_letters',
    whole: null,
    isOver: isMore,
    threshold: 'alert_dead_letters_threshold',
    tell: ({ part }, threshold, minutes) =>
      `Dead letters made within ${minutes} min: ${part}, more than ${threshold}. See why: ichido dead list --group`,
  },
  retry_failures: {
    subject: 'all queues',
    part: 'retries_failed',
    whole: 'retries_ended',
    isOver: isMorePercent,
    threshold: 'alert_retry_failures_threshold_percent',
    minEvents: 'alert_retry_failures_min_events',
    tell: (judgement, threshold, minutes) =>
      `${percent(judgement)} retries failed within ${minutes} min, more than ${threshold} %. Retrying does not help: check the errors of the jobs`,
  },
  duplicate_keys: {
    subject: 'all keys',
    part: 'duplicate_submits',
    whole: 'keyed_submits',
    isOver: isMorePercent,
    threshold: 'alert_duplicate_keys_threshold_percent',
    minEvents: 'alert_duplicate_keys_min_events',
    tell: (judgement, threshold, minutes) =>
      `${percent(judgement)} submissions with a key repeated a key within ${minutes} min, more than ${threshold} %. A client repeats its requests`,
  },
  start_delay: {
    subject: 'all queues',
    part: 'start_delay_ms',
    whole: 'runs_started',
    isOver: (part, whole, threshold) => part / 1000 > threshold * whole,
    threshold: 'alert_start_delay_threshold_seconds',
    minEvents: 'alert_start_delay_min_events',
    tell: ({ part, whole }, threshold, minutes) =>
      `Runs started ${Math.round(part / whole / 1000)} s late on average within ${minutes} min (${whole} runs), more than ${threshold} s. Start more workers`,
  },
  leader_changes: {
    subject: 'leader',
    part: 'leader_changes',
    whole: null,
    isOver: isMore,
    threshold: 'alert_leader_changes_threshold',
    tell: ({ part }, threshold, minutes) =>
      `Changes of the leader within ${minutes} min: ${part}, more than ${threshold}. Nodes restart, or the database answers too slowly`,
  },
}

const NAMES = Object.keys(RULES) as WindowedRule[]

function limitsOf(settings: Settings, name: WindowedRule): WindowLimits {
  const { threshold, minEvents } = RULES[name]
  return {
    threshold: settings.get(threshold),
    windowMs: settings.get(`alert_${name}_window_seconds`) * 1000,
    minEvents: minEvents === undefined ? 0 : settings.get(minEvents),
    forMs: settings.get(`alert_${name}_for_seconds`) * 1000,
  }
}

/** How long counts must be kept. */
export function minuteCountsMs(settings: Settings): number {
  return Math.max(...NAMES.map((name) => reachMs(limitsOf(settings, name))))
}

export const lookAtCounts: Rule = async ({ store, settings }) => {
  const { sums, nowMs } = await store.read(findMinuteCounts(minuteCountsMs(settings)))
  const looks: Look[] = []
  for (const name of NAMES) {
    const rule = RULES[name]
    const limits = limitsOf(settings, name)
    const judgement = judge(rule, sums, limits, nowMs)
    const message = () => rule.tell(judgement, limits.threshold, Math.ceil(limits.windowMs / MINUTE_MS))
    const found = judgement.verdict === 'over' ? [[rule.subject, message()] as const] : []
    const unsure = judgement.verdict === 'unsettled' ? [rule.subject] : []
    looks.push(await compare(store, name, new Map(found), new Set(unsure)))
  }
  return { open: looks.flatMap(({ open }) => open), close: looks.flatMap(({ close }) => close) }
}
