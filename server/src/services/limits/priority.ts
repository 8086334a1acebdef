import type { Problem } from '../../core/json/problem.ts'
import { type Caller, can } from '../../core/limits/roles.ts'
import type { Deps } from '../deps.ts'

/** Priority goes before fairness: without a maximum, one user could keep all others waiting. */
export function priorityProblem(
  { settings }: Pick<Deps, 'settings'>,
  caller: Pick<Caller, 'userId' | 'role'>,
  priority = 0,
): Problem | null {
  const setting = can(caller, 'operate') ? 'operator_priority_max' : 'submitter_priority_max'
  const max = settings.get(setting)
  if (priority <= max) return null
  const message = `priority must be at most ${max} for the role ${caller.role}; lower it, or have an admin raise the setting ${setting}`
  return { field: 'priority', message }
}
