import { ALERT_RULES, type AlertShape, type Page } from '@ichido/sdk/protocol'
import { type Alert, type AlertFilter, countOpenAlerts, listAlerts } from '../store/commands/alerts.ts'
import type { Deps } from './deps.ts'
import { iso, isoOrNull } from './render.ts'

/** The leader opens and closes alerts; here they are only read. */
export interface AlertService {
  list(filter: AlertFilter, limit: number, cursor: string | null): Promise<Page<AlertShape>>
  /** How many are open, by rule. */
  counts(): Promise<Record<string, number>>
}

const NONE = Object.fromEntries(ALERT_RULES.map((rule) => [rule, 0]))

export function createAlertService({ store }: Deps): AlertService {
  return {
    async list(filter, limit, cursor) {
      const { rows, next } = await store.read(listAlerts(filter, limit, cursor))
      return { data: rows.map(render), next_cursor: next }
    },
    counts: async () => ({ ...NONE, ...(await store.read(countOpenAlerts())) }),
  }
}

function render({ alertId, openedAtMs, closedAtMs, ...alert }: Alert): AlertShape {
  return { alert_id: alertId, ...alert, opened_at: iso(openedAtMs), closed_at: isoOrNull(closedAtMs) }
}
