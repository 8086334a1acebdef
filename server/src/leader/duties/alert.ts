import { type Turned, turnAlerts } from '../../store/system/alerts.ts'
import type { Term } from '../../store/system/leadership.ts'
import { lookAtCredentials } from './alerts/credentials.ts'
import { lookAtDisks } from './alerts/disks.ts'
import type { AlertOptions, Look, Rule } from './alerts/look.ts'
import { lookForLateLoops } from './alerts/loop-late.ts'
import { lookAtQueues } from './alerts/queues.ts'
import { lookForOverdueSchedules } from './alerts/schedule-overdue.ts'
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

/** An alert that was opened or closed just now. */
export type AlertChange = Turned['opened' | 'closed'][number] & { open: boolean }

/**
 * Opens an alert for what is not as it should be, and closes it when that is over. A rule answers only with changes, so
 * that a tick is bounded however much is wrong; the unique index keeps it to one open alert for a rule and its subject.
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
      // One that fails does not hold up the others.
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
