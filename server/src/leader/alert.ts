import type { AlertRule } from '@ichido/sdk/protocol'
import type { World } from '@ichido/sdk/world'
import type { Settings } from '../services/settings.ts'
import { type Finding, findOpen, findOverdue, turnAlerts } from '../store/commands/alerts.ts'
import type { Term } from '../store/commands/leadership.ts'
import type { Store } from '../store/port.ts'
import type { Loop } from './loop.ts'

/** Twice the longest interval of the scheduler. */
const OVERDUE_MS = 60_000
const DAY_MS = 24 * 3_600_000

export interface AlertOptions {
  world: World
  store: Store
  settings: Settings
  /** Those that run on this node, which leads. */
  loops(): readonly Pick<Loop, 'name' | 'late'>[]
}

/** What a rule has found: what to tell of, and the ids of alerts that are over. */
interface Look {
  open: Finding[]
  close: string[]
}

/**
 * Opens an alert for what is not as it should be, and closes it when that is over. A rule answers only with changes, so
 * that a tick is bounded however much is wrong; the unique index keeps it to one open alert for a rule and its subject.
 */
export function createAlert(options: AlertOptions, term: Term): () => Promise<number | null> {
  const { world, store, settings } = options
  return async () => {
    const batchMax = settings.get('alert_batch_max')
    const looks = [await lookForOverdue(options, batchMax), await lookForLate(options)]
    const found = looks.flatMap((look) => look.open).slice(0, batchMax)
    const open = found.map((finding) => ({ ...finding, alertId: world.uuid() }))
    const close = looks.flatMap((look) => look.close).slice(0, batchMax)
    const keepMs = Math.ceil(settings.get('alert_retention_days') * DAY_MS)
    const { opened, closed, removed } = await store.write(turnAlerts(term, { open, close, keepMs, batchMax }))
    return [opened, closed, removed].includes(batchMax) ? 0 : null
  }
}

const OVERDUE: AlertRule = 'schedule_overdue'
const LATE: AlertRule = 'loop_late'

async function lookForOverdue({ store }: AlertOptions, max: number): Promise<Look> {
  const { late, over } = await store.read(findOverdue(OVERDUE, OVERDUE_MS, max))
  const open = late.map(({ name, dueAtMs }) => ({
    rule: OVERDUE,
    subject: name,
    message: `The tick of ${name} that was due at ${new Date(dueAtMs).toISOString()} has not been made`,
  }))
  return { open, close: over }
}

async function lookForLate({ store, loops }: AlertOptions): Promise<Look> {
  const late = new Set(loops().flatMap(({ name, late }) => (late ? [name] : [])))
  const told = await store.read(findOpen(LATE))
  const subjects = new Set(told.map(({ subject }) => subject))
  const open = [...late]
    .filter((name) => !subjects.has(name))
    .map((name) => ({
      rule: LATE,
      subject: name,
      message: `The loop ${name} of the leader has not come to the end of a tick for five of its intervals`,
    }))
  return { open, close: told.filter(({ subject }) => !late.has(subject)).map(({ alertId }) => alertId) }
}
