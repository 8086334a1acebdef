import type { FullDisks } from '../../services/system/alerts.ts'
import type { Store } from '../../store/port.ts'
import { recordAlerts, type Turned, turnAlerts } from '../../store/system/alerts.ts'
import type { Term } from '../../store/system/term.ts'
import {
  type AlertOptions,
  type Look,
  lookAtCredentials,
  lookAtDisks,
  lookAtQueues,
  lookForLateLoops,
  lookForOverdueSchedules,
  type Rule,
} from './alerts/state.ts'
import { lookAtCounts } from './alerts/windowed.ts'

const DAY_MS = 24 * 3_600_000

const RULES: readonly Rule[] = [
  lookForOverdueSchedules,
  lookForLateLoops,
  lookAtCounts,
  lookAtQueues,
  lookAtDisks,
  lookAtCredentials,
]

/** An alert that was just opened or closed. */
export type AlertChange = Turned['opened' | 'closed'][number] & { open: boolean }

/**
 * Opens alerts for problems, and closes them when the problems are over. A rule returns only changes, so a tick is
 * bounded however many problems there are. A unique index allows one open alert for a rule and subject.
 */
export function createAlert(
  options: AlertOptions & { onAlert(change: AlertChange): void },
  term: Term,
): () => Promise<number | null> {
  const { world, store, settings, onAlert } = options
  return async () => {
    const batchMax = settings.get('alert_batch_max')
    const looks: Look[] = []
    const failures: unknown[] = []
    for (const rule of RULES) {
      // A rule that fails does not delay the others.
      await rule(options, batchMax).then(
        (look) => looks.push(look),
        (error: unknown) => failures.push(error),
      )
    }
    const found = looks.flatMap((look) => look.open).slice(0, batchMax)
    const open = found.map((finding) => ({ ...finding, alertId: world.uuid() }))
    const close = looks.flatMap((look) => look.close).slice(0, batchMax)
    const keepMs = Math.ceil(settings.get('alert_retention_days') * DAY_MS)
    const { opened, closed, removed } = await store.write(turnAlerts(term, { open, close, keepMs, batchMax }))
    for (const alert of opened) onAlert({ ...alert, open: true })
    for (const alert of closed) onAlert({ ...alert, open: false })
    if (failures.length > 0) throw failures[0]
    return [opened.length, closed.length, removed].includes(batchMax) ? 0 : null
  }
}

interface RecordFullOptions {
  store: Store
  fullDisks: FullDisks
}

/** Stores the alerts of full disks once they have space again. Until then they are in this node's memory. */
export function createRecordFull({ store, fullDisks }: RecordFullOptions, term: Term): () => Promise<null> {
  return async () => {
    const times = fullDisks.ended
    if (times.length === 0) return null
    const alerts = times.map(({ alertId, place, message, beganAtMs, endedAtMs }) => ({
      alertId,
      rule: 'store_full' as const,
      subject: place,
      message,
      openedAtMs: beganAtMs,
      closedAtMs: endedAtMs,
    }))
    if (await store.write(recordAlerts(term, alerts))) fullDisks.recorded(times)
    return null
  }
}
