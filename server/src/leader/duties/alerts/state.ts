import type { AlertRule } from '@ichido/sdk/protocol'
import type { Deps } from '../../../services/deps.ts'
import { ONLINE_MS } from '../../../services/workers/workers.ts'
import { findEndingTokens } from '../../../store/access/access.ts'
import type { Store } from '../../../store/port.ts'
import { findServedQueues, findWaitingQueues } from '../../../store/runs/waiting.ts'
import { type Finding, findOpen, findOverdue } from '../../../store/system/alerts.ts'
import { readClock } from '../../../store/system/leadership.ts'
import type { Loop } from '../../election/loop.ts'

export interface AlertOptions extends Pick<Deps, 'world' | 'store' | 'settings' | 'disks' | 'certificateEndsAtMs'> {
  /** The loops of this node, which leads. */
  loops(): readonly Pick<Loop, 'name' | 'late'>[]
}

/** The changes that a rule found: alerts to open, and ids of alerts to close. */
export interface Look {
  open: Finding[]
  close: string[]
}

/** One rule, or several that read the same data. It need not find more than `max`. */
export type Rule = (options: AlertOptions, max: number) => Promise<Look>

/**
 * Opens alerts for new findings, and closes those of findings that are gone. Alerts of `unsure` subjects stay as they
 * are.
 */
export async function compare(
  store: Store,
  rule: AlertRule,
  found: ReadonlyMap<string, string>,
  unsure: ReadonlySet<string> = new Set(),
): Promise<Look> {
  const told = await store.read(findOpen(rule))
  const subjects = new Set(told.map(({ subject }) => subject))
  return {
    open: [...found].flatMap(([subject, message]) => (subjects.has(subject) ? [] : [{ rule, subject, message }])),
    close: told.flatMap(({ subject, alertId }) => (found.has(subject) || unsure.has(subject) ? [] : [alertId])),
  }
}

const RULE = 'schedule_overdue' as const
/** Twice the longest interval of the scheduler. */
const OVERDUE_MS = 60_000

/** Ten thousand schedules may be late, so the store returns only changes. */
export const lookForOverdueSchedules: Rule = async ({ store }, max) => {
  const { late, over } = await store.read(findOverdue(RULE, OVERDUE_MS, max))
  const open = late.map(({ name, dueAtMs }) => ({
    rule: RULE,
    subject: name,
    message: `The tick of ${name} that was due at ${new Date(dueAtMs).toISOString()} has not been made`,
  }))
  return { open, close: over }
}

export const lookForLateLoops: Rule = ({ store, loops }) => {
  const late = loops().flatMap(({ name, late }) => (late ? [name] : []))
  const message = (name: string) => `The loop ${name} of the leader has not finished a tick for five of its intervals`
  return compare(store, 'loop_late', new Map(late.map((name) => [name, message(name)])))
}

/** Only the queues that have waited longest are checked. */
const QUEUES_MAX = 1_000

/**
 * Both rules check due runs in queues that are not paused. The duration is taken from the oldest of these runs, so a
 * new leader does not restart it.
 */
export const lookAtQueues: Rule = async ({ store, settings }) => {
  const unservedMs = settings.get('alert_queue_unserved_for_seconds') * 1000
  const oldMs = settings.get('alert_oldest_waiting_threshold_seconds') * 1000
  const waiting = (await store.read(findWaitingQueues())).slice(0, QUEUES_MAX)
  const late = waiting.filter(({ oldestMs }) => oldestMs > unservedMs).map(({ queue }) => queue)
  const served = late.length === 0 ? new Set() : await store.read(findServedQueues(late, ONLINE_MS))
  const unserved = late
    .filter((queue) => !served.has(queue))
    .map((queue): [string, string] => [
      queue,
      `Runs of the queue ${queue} are due, and no worker takes it. Start one: ichido worker --queue ${queue} --exec COMMAND`,
    ])
  const old = waiting
    .filter(({ oldestMs }) => oldestMs > oldMs)
    .map(({ queue, oldestMs }): [string, string] => [
      queue,
      `A run of the queue ${queue} has been due for ${Math.round(oldestMs / 1000)} s, longer than ${oldMs / 1000} s. Start more workers, or raise its limit`,
    ])
  const looks = [
    await compare(store, 'queue_unserved', new Map(unserved)),
    await compare(store, 'oldest_waiting', new Map(old)),
  ]
  return { open: looks.flatMap(({ open }) => open), close: looks.flatMap(({ close }) => close) }
}

/** A disk that swings around the threshold has one alert, which closes when usage is this much lower. */
const CALM_PERCENT = 2

/** Checks the disks of the leading node. */
export const lookAtDisks: Rule = async ({ store, settings, disks }) => {
  const threshold = settings.get('alert_disk_nearly_full_threshold_percent')
  const used = ((await disks?.()) ?? []).map(({ folder, freeRatio }) => ({ folder, percent: (1 - freeRatio) * 100 }))
  const full = used
    .filter(({ percent }) => percent > threshold)
    .map(({ folder, percent }) => {
      const message = `The disk of ${folder} is ${Math.floor(percent)} % full, more than ${threshold} %. Free space, or shorten the retention times`
      return [folder, message] as const
    })
  const unsure = used.filter(({ percent }) => percent > threshold - CALM_PERCENT).map(({ folder }) => folder)
  return compare(store, 'disk_nearly_full', new Map(full), new Set(unsure))
}

const DAY_MS = 24 * 3_600_000
/** Only the tokens that end first are checked. */
const TOKENS_MAX = 1_000

export const lookAtCredentials: Rule = async ({ store, settings, certificateEndsAtMs }) => {
  const withinMs = settings.get('alert_credential_ending_threshold_days') * DAY_MS
  const ending = new Map<string, string>()
  for (const token of await store.read(findEndingTokens(Math.ceil(withinMs), TOKENS_MAX))) {
    const ends = `ends at ${new Date(token.endsAtMs).toISOString()}`
    if (token.of === 'user') {
      const message = `The API token ${JSON.stringify(token.name)} of ${token.owner} ${ends}. Make a new one: ichido token create`
      ending.set(`token ${token.id}`, message)
    } else {
      const message = `The token of the worker ${JSON.stringify(token.name)} ${ends}, and the worker does not renew it. Enroll it again: ichido workers enroll`
      ending.set(`worker ${token.id}`, message)
    }
  }
  if (certificateEndsAtMs !== undefined && certificateEndsAtMs - (await store.read(readClock())) < withinMs) {
    const message = `The certificate of TLS_CERT_FILE ends at ${new Date(certificateEndsAtMs).toISOString()}. Replace the file, and restart the node`
    ending.set('certificate', message)
  }
  return compare(store, 'credential_ending', ending)
}
