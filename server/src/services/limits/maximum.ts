import { IchidoError } from '@ichido/sdk/protocol'
import type { Problem } from '../../core/json/problem.ts'
import { type Caller, can } from '../../core/limits/roles.ts'
import type { SettingName } from '../../core/limits/settings.ts'
import { withinOperations } from '../../store/limits/operations.ts'
import type { Command } from '../../store/port.ts'
import type { Deps } from '../deps.ts'

interface Reached {
  setting: SettingName
  /** A sentence without its full stop: who has how many of what. */
  says(max: number): string
  /** What the caller can do, beside asking for a higher maximum. */
  advice: string
  /** Set for rates and for things that end soon: the answer is 429, and clients retry by themselves. */
  retryAfterMs?: number
}

/** The refusal of a request that would exceed a maximum. It is counted by the name of the setting. */
export function maximumReached(
  { settings, meter }: Pick<Deps, 'settings' | 'meter'>,
  { setting, says, advice, retryAfterMs }: Reached,
): IchidoError {
  meter.maximumReached(setting)
  const max = settings.get(setting)
  const message = maximumText(setting, says(max), advice)
  const code = retryAfterMs === undefined ? 'MAXIMUM_REACHED' : 'RATE_LIMITED'
  return new IchidoError(code, message, { setting, max }, { retryAfterMs })
}

export function maximumText(setting: SettingName, says: string, advice: string): string {
  return `${says}; ${advice}, or have an admin raise the setting ${setting}`
}

/** Throws the refusal if the caller has the maximum of running redrives and backfills. */
export async function beginOperation<T>(deps: Deps, id: string, { userId }: Caller, begin: Command<T>): Promise<T> {
  const setting = 'operations_per_user_max'
  const operation = { id, actor: userId, max: deps.settings.get(setting) }
  const begun = await deps.store.write(withinOperations(operation, begin))
  if (begun !== null) return begun
  throw maximumReached(deps, {
    setting,
    says: (max) => `${userId} has ${max} redrives and backfills running, which is the maximum`,
    advice: 'wait until one has ended, abort one',
  })
}

/** Priority goes before fairness: without a maximum, one user could delay all others. */
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
