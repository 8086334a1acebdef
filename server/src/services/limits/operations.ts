import type { Caller } from '../../core/limits/roles.ts'
import { withinOperations } from '../../store/limits/operations.ts'
import type { Command } from '../../store/port.ts'
import type { Deps } from '../deps.ts'
import { maximumReached } from './maximum.ts'

const setting = 'operations_per_user_max'

/** Throws the refusal when the caller has as many redrives and backfills running as it may. */
export async function beginOperation<T>(deps: Deps, id: string, { userId }: Caller, begin: Command<T>): Promise<T> {
  const operation = { id, actor: userId, max: deps.settings.get(setting) }
  const begun = await deps.store.write(withinOperations(operation, begin))
  if (begun !== null) return begun
  throw maximumReached(deps, {
    setting,
    says: (max) => `${userId} has ${max} redrives and backfills running, which is the maximum`,
    advice: 'wait until one has ended, abort one',
  })
}
