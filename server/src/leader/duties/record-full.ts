import type { FullDisks } from '../../services/system/alerts.ts'
import type { Store } from '../../store/port.ts'
import { recordAlerts } from '../../store/system/alerts.ts'
import type { Term } from '../../store/system/leadership.ts'

export interface RecordFullOptions {
  store: Store
  fullDisks: FullDisks
}

/** Stores the alerts of disks that were full, once they have room: until then this node's memory tells of them. */
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
