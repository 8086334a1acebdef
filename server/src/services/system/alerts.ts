import { ALERT_RULES, type AlertShape, type Page } from '@ichido/sdk/protocol'
import { type Alert, type AlertFilter, countOpenAlerts, listAlerts } from '../../store/system/alerts.ts'
import type { Deps } from '../deps.ts'
import { iso, isoOrNull } from '../iso.ts'
import type { FullTime } from './full-disks.ts'

/**
 * The leader opens and closes alerts; here they are only read. A full store cannot hold an alert: that one is told from this
 * node's memory, and the leader stores it when there is room.
 */
export interface AlertService {
  list(filter: AlertFilter, limit: number, cursor: string | null): Promise<Page<AlertShape>>
  /** How many are open, by rule. */
  counts(): Promise<Record<string, number>>
}

const NONE = Object.fromEntries(ALERT_RULES.map((rule) => [rule, 0]))

export function createAlertService({ store, fullDisks }: Deps): AlertService {
  return {
    async list(filter, limit, cursor) {
      const { rows, next } = await store.read(listAlerts(filter, limit, cursor))
      const { rule } = filter
      const tellsFull = cursor === null && (rule === null || rule === 'store_full')
      const full = tellsFull ? fullDisks.current.map(renderFull) : []
      return { data: [...full, ...rows.map(render)], next_cursor: next }
    },
    counts: async () => ({
      ...NONE,
      ...(await store.read(countOpenAlerts())),
      store_full: fullDisks.current.length,
    }),
  }
}

function renderFull({ alertId, place, message, beganAtMs }: FullTime): AlertShape {
  return render({ alertId, rule: 'store_full', subject: place, message, openedAtMs: beganAtMs, closedAtMs: null })
}

function render({ alertId, openedAtMs, closedAtMs, ...alert }: Alert): AlertShape {
  return { alert_id: alertId, ...alert, opened_at: iso(openedAtMs), closed_at: isoOrNull(closedAtMs) }
}
