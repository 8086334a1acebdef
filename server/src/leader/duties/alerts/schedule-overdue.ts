import { findOverdue } from '../../../store/system/alerts.ts'
import type { Rule } from './look.ts'

const RULE = 'schedule_overdue' as const
/** Twice the longest interval of the scheduler. */
const OVERDUE_MS = 60_000

/** Ten thousand schedules may be late, so the store answers with changes alone. */
export const lookForOverdueSchedules: Rule = async ({ store }, max) => {
  const { late, over } = await store.read(findOverdue(RULE, OVERDUE_MS, max))
  const open = late.map(({ name, dueAtMs }) => ({
    rule: RULE,
    subject: name,
    message: `The tick of ${name} that was due at ${new Date(dueAtMs).toISOString()} has not been made`,
  }))
  return { open, close: over }
}
