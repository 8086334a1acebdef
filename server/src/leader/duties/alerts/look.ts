import type { AlertRule } from '@ichido/sdk/protocol'
import type { Deps } from '../../../services/deps.ts'
import type { Store } from '../../../store/port.ts'
import { type Finding, findOpen } from '../../../store/system/alerts.ts'
import type { Loop } from '../../election/loop.ts'

export interface AlertOptions extends Pick<Deps, 'world' | 'store' | 'settings' | 'disks' | 'certificateEndsAtMs'> {
  /** Those that run on this node, which leads. */
  loops(): readonly Pick<Loop, 'name' | 'late'>[]
}

/** What a rule has found: what to tell of, and the ids of alerts that are over. */
export interface Look {
  open: Finding[]
  close: string[]
}

/** A rule, or several that look at the same. `max`: it need not find more. */
export type Rule = (options: AlertOptions, max: number) => Promise<Look>

/**
 * Opens what is found and not told yet, and closes what is no longer found. `unsure`: subjects whose alerts stay as they are.
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
